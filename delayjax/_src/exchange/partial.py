"""Means of the gradients that are there in time; the others are carried over."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src import base, collectives

Participation = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> whether this worker takes part, bool []."""


class Carried(NamedTuple):
    """Gradients of one worker, summed."""

    gradients: Any  # their sum
    held: jax.Array  # how many they are, int32 []
    ages: jax.Array  # the sum of their staleness, in steps, float32 []


class PartialMeanState(NamedTuple):
    """State of `partial_mean`."""

    staleness: jax.Array  # handed on by the last update, in steps, float32 []
    step: jax.Array  # updates done, int32 []
    carried: Carried  # each worker's, not sent yet
    inner_state: Any


def partial_mean(
    inner: optax.GradientTransformation,
    participates: Participation,
    *,
    carry_once: bool = False,
    axis_name: base.AxisName = "workers",
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the gradients that are there in time, and late ones later.

    With c_p what worker p carries, and A those that take part in step t,

        update_t = inner( (1/P) sum_{p in A} (c_p + g_p) )
        c_p     <- 0 for p in A,    c_p + g_p for the others

    No gradient is lost: what was fed, times P, and what is carried is the sum of all
    gradients so far. The divisor stays P, so a step with few of them is a small one.

    Args:
        inner: the transformation behind the sum. It receives `staleness=`, the mean age
            of the gradients in it (float32, in steps; a gradient that was carried for k
            steps counts k and what it was told before; 0 if none arrives), and neither
            `stale_params=` nor `worker=`, which differ. Where none arrives it is fed
            zeros.
        participates: step (int32 []) -> whether this worker's fresh gradient is there
            in time, bool []; `solo`, `majority`, or any function that reads the
            worker's `jax.lax.axis_index`.
        carry_once: whether what is carried enters the next sum even where its worker is
            late again, as in eager-SGD, in which the others' collective takes what lies
            in a late worker's buffer; only the fresh gradient is carried then, and none
            for more than a step. By default all waits until its worker takes part.
        axis_name: of the workers; several names for several axes.
        bucket_bytes: leaves smaller than this are sent together, as in `mean`.

    Returns:
        A transformation whose state holds one gradient tree a worker beside that of
        `inner`. Every worker enters the one all-reduce of each step, with zeros if it
        has nothing to send: this is what the rule does to training; the time that it
        saves is `cluster`'s to tell.

    Raises:
        ValueError: if `bucket_bytes` is negative, or (in `update`) a gradient is summed
            over the workers already, or the answer of `participates` is no scalar.

    Example:
        >>> tx = partial_mean(
        ...     optax.sgd(1.0), lambda step: jax.lax.axis_index("workers") <= step)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     second, state = tx.update(grad, state)
        ...     return first, second, state.staleness
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-0.5, -0.5], dtype=float32), Array([-3.5, -3.5], dtype=float32),
        Array([0.33333334, 0.33333334], dtype=float32))

    References:
        Li, Ben-Nun, Di Girolamo, Alistarh and Hoefler, Taming unbalanced training
        workloads in deep learning with partial collective operations (eager-SGD), PPoPP
        2020, arXiv:1908.04207: `carry_once` and `solo` or `majority`. That workers stay
        in step, and all see every sum, is ours.
    """
    inner = base.as_transformation("inner", inner)
    bucket_bytes = base.check_bound("bucket_bytes", bucket_bytes)

    def init_fn(params):
        nothing = Carried(
            gradients=optax.tree.zeros_like(params),
            held=jnp.zeros((), jnp.int32),
            ages=jnp.zeros((), jnp.float32),
        )
        return PartialMeanState(
            staleness=jnp.zeros((), jnp.float32),
            step=jnp.zeros((), jnp.int32),
            carried=base.vary(nothing, axis_name=axis_name),
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
        del stale_params, worker
        collectives.check_fresh("exchange.partial_mean", updates, axis_name)
        workers = collectives.workers_of(axis_name)
        in_time = participates(state.step)
        in_time = base.check_answer("participates(step)", in_time, jnp.bool_)
        fresh = Carried(updates, jnp.int32(1), _age(staleness))
        carried = state.carried
        carried = carried._replace(ages=carried.ages + carried.held)  # a step older
        nothing = optax.tree.zeros_like(carried)
        both = jax.tree.map(jnp.add, carried, fresh)

        sent = optax.tree.where(in_time, both, carried if carry_once else nothing)
        left = optax.tree.where(in_time, nothing, fresh if carry_once else both)
        sent = sent._replace(
            gradients=optax.tree.cast_like(sent.gradients, updates),
            held=sent.held.astype(jnp.float32),  # beside the ages in one bucket
        )
        total = collectives.sums(sent, axis_name, bucket_bytes)
        age = total.ages / jnp.maximum(total.held, 1.0)
        moves, inner_state = inner.update(
            jax.tree.map(lambda leaf: leaf / workers, total.gradients),
            state.inner_state,
            params,
            staleness=age,
            **extra_args,
        )
        left = optax.tree.cast_like(left, state.carried)
        return moves, PartialMeanState(
            staleness=age,
            step=state.step + 1,
            carried=base.typed_like(left, state.carried),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def solo(seconds: ArrayLike, *, axis_name: base.AxisName = "workers") -> Participation:
    """The first worker to arrive triggers the sum: who is not there then is late.

        p takes part in step t  iff  seconds[t, p] = min_q seconds[t, q]

    With times that are never equal that is one worker a step. Times rounded to what the
    trigger takes to reach the others let those in that arrive together.

    Args:
        seconds: float [T, P], when each worker has its gradient: compared within a step
            only, from its start or on a clock. From its end the table starts anew.
        axis_name: of the P workers; several names for several axes.

    Returns:
        The `participates` of `partial_mean`.

    Raises:
        TypeError: if `seconds` does not hold real numbers.
        ValueError: if it has not two dimensions, is empty or not finite, or (when
            asked) P is not the number of workers.

    Example:
        >>> arrives = solo([[1.0, 2.0, 1.0], [3.0, 2.0, 2.5]])
        >>> jax.vmap(lambda step, _: arrives(step), in_axes=(None, 0),
        ...     axis_name="workers")(1, jnp.arange(3))
        Array([False,  True, False], dtype=bool)

    References:
        Li et al. (eager-SGD), PPoPP 2020, arXiv:1908.04207, solo allreduce.
    """
    lateness = _lateness(seconds, axis_name)

    def participates(step):
        row, own = lateness(step)
        return row[own] <= 0

    return participates


def majority(
    key: jax.Array, seconds: ArrayLike, *, axis_name: base.AxisName = "workers"
) -> Participation:
    """A worker drawn beforehand triggers the sum: who comes after it is late.

        q(t) uniform on 0, ..., P - 1, the same on all workers
        p takes part in step t  iff  seconds[t, p] <= seconds[t, q(t)]

    The k-th to arrive takes part with probability (P - k + 1) / P: (P + 1) / 2 workers
    on average, and more where some arrive together.

    Args:
        key: a PRNG key; the draw of step t uses `fold_in(key, t)`.
        seconds: float [T, P], when each worker has its gradient, as in `solo`.
        axis_name: of the P workers; several names for several axes.

    Returns:
        The `participates` of `partial_mean`.

    Raises:
        TypeError, ValueError: as `solo` does; also if `key` is no PRNG key.

    Example:
        >>> arrives = majority(jax.random.key(0), [[0.0, 1.0, 2.0, 3.0]])
        >>> def share(step):
        ...     return jax.vmap(lambda _: arrives(step), axis_name="workers")(
        ...         jnp.arange(4)).mean()
        >>> sorted({float(share(step)) for step in range(50)})
        [0.25, 0.5, 0.75, 1.0]

    References:
        Li et al. (eager-SGD), PPoPP 2020, arXiv:1908.04207, majority allreduce.
    """
    base.check_key("key", key)
    lateness = _lateness(seconds, axis_name)

    def participates(step):
        row, own = lateness(step)
        trigger = jax.random.randint(jax.random.fold_in(key, step), (), 0, row.size)
        return row[own] <= row[trigger]

    return participates


def _lateness(
    seconds: Any, axis_name: base.AxisName
) -> Callable[[Any], tuple[jax.Array, jax.Array]]:
    """Of a step: how much later than the first each worker is, [P]; which this is."""
    seconds = collectives.check_table("seconds", seconds)
    if base.is_concrete(seconds) and not np.isfinite(seconds).all():
        raise ValueError(
            "`seconds` must be finite, got nan or inf: put what is later than all"
            " others in place of never."
        )
    # in the table's own precision: on a clock small differences of large times count
    table = jnp.asarray(seconds - seconds.min(axis=1, keepdims=True), jnp.float32)

    return lambda step: collectives.row_of("seconds", table, step, axis_name)


def _age(staleness: Any) -> jax.Array:
    """What a worker was told of its gradient's age, float32 []; 0 if nothing."""
    if staleness is None:
        return jnp.float32(0)
    if not jax.tree_util.treedef_is_leaf(jax.tree.structure(staleness)):
        raise TypeError(
            "`staleness` handed to `exchange.partial_mean` is a tree, but what it"
            " carries has one age: give the wrapper outside one delay for all leaves."
        )
    age = base.check_staleness("exchange.partial_mean", staleness, mean=True)
    return age.astype(jnp.float32)
