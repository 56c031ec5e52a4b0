"""One gradient in flight: each step sends the gradient of the step before."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src import base, inners
from delayjax._src.exchange import mean as means


class OutboxState(NamedTuple):
    """State of `overlapped_mean` and `late_reduce`."""

    staleness: Any  # handed on by the last update, in steps, float32 []
    outbox: Any  # the gradient of the step before, of each worker or shard
    age: jax.Array  # staleness of that gradient when it came in, float32 []
    value: jax.Array  # the loss that came with it; 0 if there was none, float32 []
    stale_params: Any  # where it was taken; () without `keep_params`
    full: jax.Array  # whether there was a step before, bool []
    inner_state: Any


class Held(NamedTuple):
    """A gradient in flight, and what came with it."""

    gradient: Any
    age: Any  # its staleness, in steps; None where staleness is not handed on
    value: Any  # its loss; None where no loss is handed on


Send = Callable[[Held, Any, Any], tuple[Held, Any]]
"""(in flight, fresh gradient, params) -> its mean, and the gradient to hold next"""


def one_step_late(
    name: str,
    inner: optax.GradientTransformation,
    empty: Callable[[Any], Any],
    send: Send,
    *,
    axis_name: base.AxisName,
    keep_params: bool,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the gradient that the step before left in the outbox.

    `empty` makes from the parameters the zeros that are in the outbox at first; `name`
    is the public function, for errors.
    """
    inner = base.as_transformation("inner", inner)
    inners.check("inner", inner, wrapper=name)

    def init_fn(params):
        return OutboxState(
            staleness=jnp.zeros((), jnp.float32),
            outbox=empty(params),
            age=base.vary(jnp.zeros((), jnp.float32), axis_name=axis_name),
            value=base.vary(base.as_loss(name, None), axis_name=axis_name),
            # not the parameters: then one buffer would be donated twice
            stale_params=optax.tree.zeros_like(params) if keep_params else (),
            full=jnp.zeros((), bool),
            inner_state=inner.init(params),
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, value=None, **extra_args
    ):
        held = Held(
            state.outbox,
            age=None if staleness is None else state.age,
            value=None if value is None else state.value,
        )
        mean, outbox = send(held, updates, params)
        handed = means.of_all_workers(extra_args) | {"staleness": mean.age + 1}
        if value is not None:
            handed["value"] = mean.value.astype(jnp.result_type(value))
        kept = ()
        if keep_params:
            kept = extra_args.get("stale_params")
            kept = params if kept is None else kept
            remedy = "call `update(grads, state, params)`"
            base.require(kept, "params", f"{name}(keep_params=True)", remedy)
            kept = jax.tree.map(_own, kept)
            handed["stale_params"] = state.stale_params
        gradient = optax.tree.cast_like(mean.gradient, updates)
        moves, inner_state = inner.update(gradient, state.inner_state, params, **handed)
        moves, inner_state = optax.tree.where(
            state.full,
            (moves, inner_state),
            (optax.tree.zeros_like(moves), state.inner_state),
        )
        handed_on = jnp.asarray(mean.age + 1, jnp.float32)
        return moves, OutboxState(
            staleness=jnp.where(state.full, handed_on, 0.0),
            outbox=outbox,
            age=base.typed_like(means.one_age(name, staleness), state.age),
            value=base.typed_like(base.as_loss(name, value), state.value),
            stale_params=kept,
            full=jnp.ones((), bool),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _own(leaf: Any) -> Any:
    """Outside of `jit` a copy, so that no buffer is donated twice."""
    return jnp.copy(leaf) if base.is_concrete(leaf) else leaf
