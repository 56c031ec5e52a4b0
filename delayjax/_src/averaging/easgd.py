"""Replicas tied to a center by springs: the EASGD family."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src import base, collectives
from delayjax._src.averaging import center as centers
from delayjax._src.averaging import racing, replicas
from delayjax._src.averaging.engine import averaged


class Center(NamedTuple):
    """Memory of `easgd`, the same on all workers."""

    center: Any  # xc
    versions: Any  # the center after each of the last visits; () with a lock


def easgd(
    inner: optax.GradientTransformation,
    *,
    moving_rate: ArrayLike | None = None,
    period: ArrayLike = 1,
    order: centers.ArrivalOrder | None = None,
    lock_free: racing.Races | None = None,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Elastic averaging: each worker and the center move towards each other.

    On worker i, with U(g) the step of its own optimizer at its own x^i, and where
    `period` divides t + 1

        d^i  = al (x^i - xc)
        x^i <- x^i + U(g^i) - d^i
        xc  <- xc + d^i,    of all workers

    and elsewhere x^i <- x^i + U(g^i). What the worker loses to the spring the center
    gains: x^1 + ... + x^P + xc is conserved but for the local steps. All workers read
    the same xc (synchronous), or, in turn, each what those before it have left.

    The family, under its papers' names:

    | method | options |
    |---|---|
    | synchronous EASGD; Sync EASGD | none |
    | asynchronous EASGD; Async EASGD | `order=first_come(seconds)`; along a cluster's
      trace, each worker with its own clock: see `cluster.visits_to_rounds` |
    | round-robin EASGD; Original EASGD | `order=round_robin()` |
    | MEASGD; Async MEASGD | `inner=optax.sgd(eta, momentum=beta)` |
    | EAMSGD | `inner=optax.chain(optax.scale(-eta), optax.trace(beta))`, gradients at
      `look_ahead(params, opt_state, beta)` |
    | EA-wild; Hogwild EASGD | `order=first_come(seconds), lock_free=races(key, age)` |
    | DOWNPOUR, MDOWNPOUR, ADOWNPOUR, MVADOWNPOUR | `downpour(...)` |
    | Async SGD; Async MSGD | `dj.replay` of a trace of `k_async(1)`, `optax.sgd(eta)`;
      with `momentum=beta` |
    | Hogwild!; Hogwild SGD | the same with `read_spread=1.0` |

    Args:
        inner: the worker's own optimizer. It receives its worker's extra arguments as
            they come.
        moving_rate: al = eta rho, the share of the distance moved at an exchange; 0.9
            / P by default, beta / P with the paper's beta. May be traced.
        period: H, local steps from one exchange to the next; tau in the paper. May be
            traced.
        order: `round_robin()`, `first_come(seconds)`, or a function of the step. By
            default all workers meet the center at once.
        lock_free: `races(key, max_age)`: the center is read and written without a lock.
            Needs `order`.
        axis_name: of the workers, one name.

    Returns:
        A transformation such that `params + updates` is x^i. Its state holds the center
        once, with races max_age + 1 times more, and `inner` on each worker. The model
        to evaluate is `center`: `optax.tree.get(state, "center")`. At an exchange a
        synchronous worker sends one model and all wait for the slowest; in turn a
        server sends and receives P of them one by one and nobody waits for another's
        gradient. Here all workers then gather the P models and do the server's part:
        each holds 2 P models meanwhile.

    Warns:
        UserWarning: in `update`, if the moving rate is outside of the range that is
            stable at small step sizes; see `moving_rate_limit`.

    Raises:
        ValueError: if `moving_rate` is negative, `period` below 1, races have no
            `order`, or (in `update`) a gradient is summed over the workers already.

    Example:
        >>> tx = easgd(optax.sgd(1.0), moving_rate=0.25)
        >>> def step(x, grad):
        ...     state = tx.init(jnp.zeros(()))  # the center starts at 0
        ...     updates, state = tx.update(grad, state, x)
        ...     return x + updates, state.memory.center
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([4.0, 8.0]), jnp.zeros(2))
        (Array([3., 6.], dtype=float32), Array([3., 3.], dtype=float32))

    References:
        Zhang, Choromanska and LeCun, Deep learning with elastic averaging SGD, NIPS
        2015, arXiv:1412.6651, eqs. (5) and (6), algorithms 1 and 2.
        You, Buluc and Demmel, Scaling deep learning on GPU and Knights Landing
        clusters, SC 2017, arXiv:1708.02983, for the variants' names.
        Wongpanich, You and Demmel (EA-wild), HPC Asia 2020; its pseudo-code is not
        public, and races are our reconstruction.
    """
    axis_name = replicas.check_axis("averaging.easgd", axis_name)
    if moving_rate is not None:
        base.check_number("moving_rate", moving_rate)
    period = replicas.check_period("period", period)
    racing.check("lock_free", lock_free, order)

    def begin(params):
        return Center(params, racing.begun(lock_free, params))

    def mix(step, memory, before, model):
        rate = _rate_of(moving_rate, order, axis_name)

        def pull(x, center):
            return jax.tree.map(
                lambda x, c: (rate * (x - c)).astype(c.dtype), x, center
            )

        def visit(shared, model, worker, there):
            center, versions = shared
            seen = racing.read(lock_free, center, versions, step, worker)
            moved = centers.only(there, pull(model, seen))
            moved = racing.landed(lock_free, moved, step, worker)
            center = jax.tree.map(jnp.add, center, moved)
            versions = racing.recorded(lock_free, center, versions, there)
            return Center(center, versions), seen

        def meet(memory):
            if order is None:
                pulled = pull(before, memory.center)
                gained = replicas.total(pulled, axis_name)
                center = jax.tree.map(jnp.add, memory.center, gained)
                return pulled, memory._replace(center=center)
            memory, seen, there = centers.in_turn(
                visit, memory, before, order, step, axis_name
            )
            return centers.only(there, pull(before, seen)), memory

        def stay(memory):
            return optax.tree.zeros_like(
                base.vary(memory.center, axis_name=axis_name)
            ), memory

        memory = replicas.typed_beyond(memory, model, axis_name)
        due = replicas.due(step, period)
        pulled, memory = (
            meet(memory) if due is True else jax.lax.cond(due, meet, stay, memory)
        )
        return jax.tree.map(jnp.subtract, model, pulled), memory

    return averaged("averaging.easgd", inner, mix, axis_name=axis_name, begin=begin)


def moving_rate_limit(
    num_workers: int, *, step_size: ArrayLike = 0.0, in_turn: bool = False
) -> ArrayLike:
    """The largest moving rate at which elastic averaging is stable on a quadratic.

        all at once   al <= (4 - 2 a) / (2 + 2 P - P a)
        in turn       al <= (4 - 2 a) / (4 - a),             for every P

    with a = eta h, step size times curvature, in [0, 2). Both are the same at P = 1.
    The first is exact; the second is enough for every P and needed at P = 1 alone: many
    workers in turn stay stable a little above it.

    Args:
        num_workers: P.
        step_size: a = eta h. At 0, the default, the limit for small steps, which no
            larger a exceeds.
        in_turn: whether the workers come to the center one after the other.

    Raises:
        ValueError: if `num_workers` is below 1 or `step_size` not in [0, 2).

    Example:
        >>> moving_rate_limit(4), moving_rate_limit(4, in_turn=True)
        (0.4, 1.0)

    References:
        Zhang, Choromanska and LeCun, NIPS 2015, arXiv:1412.6651, section 4 (in turn).
        All at once: the eigenvalues of (xm, xc) -> ((1 - a - al) xm + al xc,
        P al xm + (1 - P al) xc); ours.
    """
    workers = base.check_bound("num_workers", num_workers, at_least=1)
    base.check_number("step_size", step_size, below=2.0)
    a = step_size
    return (4 - 2 * a) / (4 - a if in_turn else 2 + 2 * workers - workers * a)


def look_ahead(params: Any, opt_state: Any, momentum: ArrayLike) -> Any:
    """EAMSGD: where a worker takes its gradient, a velocity ahead.

        v^i <- beta v^i - eta grad F(x^i + beta v^i)
        x^i <- x^i + v^i

    The velocity is that of `optax.trace(beta)` behind `optax.scale(-eta)`, so that it
    is in the units of updates.

    Args:
        params: x^i.
        opt_state: the state of any transformation with one `optax.trace` in it.
        momentum: beta, that of the trace. May be traced.

    Returns:
        x^i + beta v^i, like `params`.

    Raises:
        ValueError: if it is not in [0, 1), or there is no trace in the state, or
            several.

    Example:
        >>> tx = easgd(optax.chain(optax.scale(-0.1), optax.trace(0.5)))
        >>> state = tx.init(jnp.ones(2))
        >>> look_ahead(jnp.ones(2), state, 0.5)  # at rest
        Array([1., 1.], dtype=float32)

    References:
        Zhang, Choromanska and LeCun (EAMSGD), NIPS 2015, arXiv:1412.6651, algorithm 2.
    """
    base.check_number("momentum", momentum, below=1.0)

    def is_trace(node):
        return isinstance(node, optax.TraceState)

    found = list(filter(is_trace, jax.tree.leaves(opt_state, is_leaf=is_trace)))
    if len(found) != 1:
        raise ValueError(
            f"`opt_state` must hold one velocity, got {len(found)}: make the inner"
            " optimizer optax.chain(optax.scale(-eta), optax.trace(beta))."
        )
    velocity = found[0].trace
    if jax.tree.structure(params) != jax.tree.structure(velocity):
        raise ValueError(
            "`params` must be the tree whose velocity is in `opt_state`,"
            f" {jax.tree.structure(velocity)}, got {jax.tree.structure(params)}."
        )
    return jax.tree.map(
        lambda x, v: (x + momentum * v).astype(x.dtype), params, velocity
    )


def _rate_of(
    moving_rate: ArrayLike | None, order: centers.ArrivalOrder | None, axis_name: str
) -> ArrayLike:
    """al, of which an unstable one is warned of."""
    workers = collectives.workers_of(axis_name)
    if moving_rate is None:
        return 0.9 / workers
    limit = moving_rate_limit(workers, in_turn=order is not None)
    if base.is_concrete(moving_rate) and np.asarray(moving_rate) > limit:
        warnings.warn(
            f"`moving_rate` {moving_rate} is above {limit:.4g}, the limit of stability"
            f" of {workers} workers at small step sizes"
            f" ({'in turn' if order is not None else 'all at once'}): see"
            " averaging.moving_rate_limit, or leave it at 0.9 / P.",
            stacklevel=2,
        )
    return moving_rate
