"""One gradient on its way: each step sends what the step before has left."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src import base, inners


class OutboxState(NamedTuple):
    """State of `overlapped_mean` and `late_reduce`."""

    staleness: Any  # handed on by the last update, in steps, float32 []
    outbox: Any  # the gradient of the step before, of each worker or shard
    age: jax.Array  # that gradient's staleness when it was handed in, float32 []
    value: jax.Array  # the loss handed in with it; 0 where there was none, float32 []
    stale_params: Any  # that it was taken at; () without `keep_params`
    full: jax.Array  # whether there was a step before, bool []
    inner_state: Any


class Held(NamedTuple):
    """A gradient on its way and what came with it."""

    gradient: Any
    age: Any  # its staleness, steps; None where staleness is not handed on
    value: Any  # the loss; None where no loss is handed on


Send = Callable[[Held, Any, Any], tuple[Held, Any]]
"""(what waits, fresh gradient, params) -> its mean, and the gradient to hold next."""


def one_step_late(
    name: str,
    inner: optax.GradientTransformation,
    *,
    empty: Callable[[Any], Held],
    send: Send,
    keep_params: bool,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` what the step before has left in the outbox.

    Args:
        name: of the public function, for errors.
        inner: the transformation behind the exchange.
        empty: params -> zeros, which wait before the first step.
        send: what is exchanged, and how.
        keep_params: whether to keep the parameters of the step before.

    Raises:
        ValueError: if it cannot stand behind a late gradient.
    """
    inner = base.as_transformation("inner", inner)
    inners.check("inner", inner, wrapper=name)

    def init_fn(params):
        zeros = empty(params)
        return OutboxState(
            staleness=jnp.zeros((), jnp.float32),
            outbox=zeros.gradient,
            age=zeros.age,
            value=zeros.value,
            # nothing reads them at step 0; the parameters themselves would be donated
            # twice, here and as parameters
            stale_params=optax.tree.zeros_like(params) if keep_params else (),
            full=jnp.zeros((), bool),
            inner_state=inner.init(params),
        )

    def update_fn(
        updates,
        state,
        params=None,
        *,
        staleness=None,
        stale_params=None,
        value=None,
        worker=None,
        **extra_args,
    ):
        del worker
        held = Held(
            state.outbox,
            age=None if staleness is None else state.age,
            value=None if value is None else state.value,
        )
        mean, outbox = send(held, updates, params)
        handed: dict[str, Any] = {"staleness": mean.age + 1}
        if value is not None:
            handed["value"] = mean.value.astype(jnp.result_type(value))
        snapshot = ()
        if keep_params:
            snapshot = params if stale_params is None else stale_params
            base.require(
                *(snapshot, "params", f"{name}(keep_params=True)"),
                "call `update(grads, state, params)`",
            )
            snapshot = jax.tree.map(_own, snapshot)
            handed["stale_params"] = state.stale_params
        moves, inner_state = inner.update(
            optax.tree.cast_like(mean.gradient, updates),
            state.inner_state,
            params,
            **handed,
            **extra_args,
        )
        moves, inner_state = optax.tree.where(
            state.full,
            (moves, inner_state),
            (optax.tree.zeros_like(moves), state.inner_state),
        )
        age = jnp.asarray(mean.age + 1, jnp.float32)
        return moves, OutboxState(
            staleness=jnp.where(state.full, age, 0.0),
            outbox=outbox,
            age=_one_age(name, staleness, state.age),
            value=base.typed_like(base.as_loss(name, value), state.value),
            stale_params=snapshot,
            full=jnp.ones((), bool),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _own(leaf: Any) -> Any:
    """An array of the state's own: eagerly, the caller's could be donated twice."""
    return jnp.copy(leaf) if base.is_concrete(leaf) else leaf


def _one_age(name: str, staleness: Any, like: jax.Array) -> jax.Array:
    """The age that a gradient came with; 0 if it came with none."""
    if staleness is None:
        return jnp.zeros_like(like)
    if not jax.tree_util.treedef_is_leaf(jax.tree.structure(staleness)):
        raise TypeError(
            f"`staleness` handed to `{name}` is a tree, but its outbox has one age:"
            " give the wrapper outside one delay for all leaves."
        )
    age = base.check_staleness(name, staleness, mean=True)
    return base.typed_like(age.astype(jnp.float32), like)
