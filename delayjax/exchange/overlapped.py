"""The mean gradient of the step before, while this step's is computed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax import base, collectives
from delayjax.exchange import average


class OverlappedState(NamedTuple):
    """State of `overlapped_mean`."""

    staleness: Any  # handed on by the last update, in steps, float32 []
    outbox: Any  # each worker's gradient of the step before
    age: jax.Array  # that gradient's staleness when it was handed in, float32 []
    stale_params: Any  # that it was taken at; () without `keep_params`
    full: jax.Array  # whether there was a step before, bool []
    inner_state: Any


def overlapped_mean(
    inner: optax.GradientTransformation,
    *,
    axis_name: base.AxisName = "workers",
    keep_params: bool = False,
    weight: base.Law | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the mean of the workers' gradients of the step before.

    Step t sends the gradient of step t - 1, which depends on nothing that step t
    computes: a compiler can hide the sum behind the gradient of step t.

        update_t = inner( (1/P) sum_p g_p[t - 1] )

    It adds one to the staleness. At step 0, when nothing is there to send, `inner` and
    the updates are left untouched (zeros), as by `delayed(inner, 1, warmup="skip")` of
    the mean. Longer delays are a history before it: `delayed(overlapped_mean(inner),
    d)` is d + 1 steps late.

    Args:
        inner: the transformation behind the mean. It receives `staleness=`, one more
            than the mean of the workers' own (float32; int32 1 if they were told none),
            and no `worker=`.
        axis_name: of the workers; several names for several axes.
        keep_params: whether to keep the parameters of the step before, once, and to
            hand them on as `stale_params=`.
        weight: staleness -> weight in the mean, as in `mean`.
        bucket_bytes: leaves smaller than this are sent together, as in `mean`.

    Returns:
        A transformation whose state holds one gradient tree a worker (and with
        `keep_params` one parameter tree for all) beside that of `inner`. Sends one
        gradient tree a step. It selects between the old and the new state of `inner`,
        and so copies a history inside of it: put that outside.

    Raises:
        TypeError: if `inner` is no transformation, `weight` no function, or (in
            `update`) a gradient is not floating point, `staleness` is a tree, or under
            `keep_params` there are no `params`.
        NameError: in `update`, if there is no such axis.
        ValueError: if `bucket_bytes` is negative, or (in `update`) a gradient is summed
            over the workers already.

    Example:
        >>> tx = overlapped_mean(optax.sgd(1.0))
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     return first, tx.update(grad, state)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([0., 0.], dtype=float32), Array([-2., -2.], dtype=float32))
    """
    inner = base.as_transformation("inner", inner)
    if weight is not None and not callable(weight):
        raise TypeError(f"`weight` must be a function of staleness, got {weight!r}.")
    bucket_bytes = base.check_bound("bucket_bytes", bucket_bytes)

    def init_fn(params):
        return OverlappedState(
            staleness=jnp.zeros((), jnp.float32),
            outbox=base.as_own(optax.tree.zeros_like(params), axis_name),
            age=base.as_own(jnp.zeros((), jnp.float32), axis_name),
            stale_params=params if keep_params else (),
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
        worker=None,
        **extra_args,
    ):
        del worker
        collectives.check_fresh("exchange.overlapped_mean", updates, axis_name)
        mean, age, updates = average.average(
            state.outbox,
            None if staleness is None else state.age,
            axis_name=axis_name,
            weight=weight,
            bucket_bytes=bucket_bytes,
            meanwhile=updates,
        )
        handed: dict[str, Any] = {"staleness": age + 1}
        snapshot = ()
        if keep_params:
            snapshot = params if stale_params is None else stale_params
            base.require(
                *(snapshot, "params", "exchange.overlapped_mean(keep_params=True)"),
                "call `update(grads, state, params)`",
            )
            handed["stale_params"] = state.stale_params
        moves, inner_state = inner.update(
            mean, state.inner_state, params, **handed, **extra_args
        )
        moves, inner_state = optax.tree.where(
            state.full,
            (moves, inner_state),
            (optax.tree.zeros_like(moves), state.inner_state),
        )
        told = jnp.where(state.full, jnp.asarray(age + 1, jnp.float32), 0.0)
        return moves, OverlappedState(
            staleness=told,
            outbox=updates,
            age=_one_age(staleness, state.age),
            stale_params=snapshot,
            full=jnp.ones((), bool),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _one_age(staleness: Any, like: jax.Array) -> jax.Array:
    """What a worker was told of its gradient's age; 0 if nothing."""
    if staleness is None:
        return jnp.zeros_like(like)
    if not jax.tree_util.treedef_is_leaf(jax.tree.structure(staleness)):
        raise TypeError(
            "`staleness` handed to `exchange.overlapped_mean` is a tree, but its outbox"
            " has one age: give the wrapper outside one delay for all leaves."
        )
    age = base.check_staleness("exchange.overlapped_mean", staleness, mean=True)
    return base.typed_like(age.astype(jnp.float32), like)
