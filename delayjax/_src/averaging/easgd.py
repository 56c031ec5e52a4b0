"""Replicas that a spring ties to a shared center: the EASGD family."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import means, periods, races, visits
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, checks, collectives, kinds, transforms


class Center(NamedTuple):
    """Memory of `easgd`, the same on all workers."""

    center: Any  # xc
    versions: Any  # the center after each of the last visits; () with a lock


@kinds.checked
def easgd(
    inner: transforms.Transformation,
    *,
    moving_rate: kinds.NonNegative | None = None,
    period: kinds.Count = 1,
    order: visits.ArrivalOrder | None = None,
    lock_free: races.Races | None = None,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Elastic averaging: each worker and the center move towards each other.

    On worker i, with its own optimizer U at its own x^i, where `period` divides t + 1:

        d^i  = al (x^i - xc)
        x^i <- x^i + U(g^i) - d^i
        xc  <- xc + d^i,    for all workers

    and at other steps x^i <- x^i + U(g^i). By default all workers read the same xc
    (synchronous). With `order` they visit the center one by one, and each reads the xc
    of the visit before.

    | method | options |
    |---|---|
    | synchronous EASGD; Sync EASGD | none |
    | asynchronous EASGD; Async EASGD | `order=first_come(seconds)`; along a cluster's
      trace see `cluster.visits_to_rounds` |
    | round-robin EASGD; Original EASGD | `order=by_rank()` |
    | MEASGD; Async MEASGD | `inner=optax.sgd(eta, momentum=beta)` |
    | EAMSGD | `inner=optax.chain(optax.scale(-eta), optax.trace(beta))`, gradients at
      `look_ahead(params, opt_state, beta)` |
    | EA-wild; Hogwild EASGD | `order=first_come(seconds), lock_free=races(key, age)` |
    | Async SGD, Hogwild! | `dj.replay` of a trace of `k_async(1)`; `read_spread=1.0` |

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        moving_rate: al = eta rho, the fraction of the distance that one exchange moves;
            beta / P in the paper, by default 0.9 / P. May be traced. `update` warns if
            it is known and above `moving_rate_limit`.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        order: `by_rank()`, `first_come(seconds)`, or a function of the step.
        lock_free: `races(key, max_age)`, for a center without a lock. Needs `order`.
        axis_name: the workers' axis, one name.

    Returns:
        A transformation whose state holds the center once (with races, max_age + 1
        copies more) and `inner` for each worker. Evaluate the center:
        `optax.tree.get(state, "center")`. Each worker sends one model. Without `order`
        all wait for the slowest; with `order` each needs memory for 2 P models here.

    Example:
        >>> tx = easgd(optax.sgd(1.0), moving_rate=0.25)
        >>> def step(x, grad):
        ...     state = tx.init(jnp.zeros(()))  # the center starts at 0
        ...     updates, state = tx.update(grad, state, x)
        ...     return x + updates, state.memory.center
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([4.0, 8.0]), jnp.zeros(2))
        (Array([3., 6.], dtype=float32), Array([3., 3.], dtype=float32))

    References:
        Zhang, Choromanska and LeCun, NIPS 2015, arXiv:1412.6651, eqs. (5) and (6),
        algorithms 1 and 2; You, Buluc and Demmel, SC 2017, arXiv:1708.02983 (names).
        Wongpanich, You and Demmel (EA-wild), HPC Asia 2020; a reconstruction.
    """
    access = races.access_to_center(lock_free, order)

    def begin(params):
        return Center(params, access.begin(params))

    def mix(step, memory, before, model):
        workers = collectives.workers_of(axis_name)
        rate = 0.9 / workers if moving_rate is None else moving_rate
        limit = moving_rate_limit(workers, in_turn=order is not None)
        if checks.is_concrete(rate) and np.asarray(rate) > limit:
            warnings.warn(
                f"`moving_rate` {rate} is above {limit:.4g}, the stability limit of"
                f" {workers} workers ({'all at once' if order is None else 'in turn'})"
                " at small step sizes: see averaging.moving_rate_limit, or leave the"
                " default, 0.9 / P.",
                stacklevel=3,
            )

        def pull(x, center):
            return jax.tree.map(
                lambda x, c: (rate * (x - c)).astype(c.dtype), x, center
            )

        def visit(shared, model, worker, there):
            center, versions = shared
            seen = access.read(center, versions, step, worker)
            moved = visits.only(there, pull(model, seen))
            moved = access.land(moved, step, worker)
            center = jax.tree.map(jnp.add, center, moved)
            versions = access.record(center, versions, there)
            return Center(center, versions), seen

        def meet(memory):
            if order is None:
                pulled = pull(before, memory.center)
                gained = means.total(pulled, axis_name)
                center = jax.tree.map(jnp.add, memory.center, gained)
                return pulled, memory._replace(center=center)
            memory, seen, there = visits.in_turn(
                visit, memory, before, order, step, axis_name
            )
            return visits.only(there, pull(before, seen)), memory

        def stay(memory):
            center = axes.vary(memory.center, axis_name=axis_name)
            return optax.tree.zeros_like(center), memory

        memory = visits.typed_beyond(memory, model, axis_name)
        due = periods.due(step, period)
        pulled, memory = periods.choose(due, meet, stay, memory)
        return jax.tree.map(jnp.subtract, model, pulled), memory

    return step_then_mix("averaging.easgd", inner, mix, axis_name, begin)


@kinds.checked
def moving_rate_limit(
    num_workers: kinds.PositiveInt, *, step_size: ArrayLike = 0.0, in_turn: bool = False
) -> ArrayLike:
    """The largest moving rate at which elastic averaging is stable on a quadratic.

        all at once   al <= (4 - 2 a) / (2 + 2 P - P a)
        in turn       al <= (4 - 2 a) / (4 - a),             for every P

    The first limit is exact. The second is exact at P = 1 and sufficient for every P.

    Args:
        num_workers: P, at least 1.
        step_size: a = eta h, step size times curvature, in [0, 2).
        in_turn: whether the workers visit the center one after the other.

    Example:
        >>> moving_rate_limit(4), moving_rate_limit(4, in_turn=True)
        (0.4, 1.0)

    References:
        arXiv:1412.6651, section 4 (in turn). All at once: the eigenvalues of (xm, xc)
        -> ((1 - a - al) xm + al xc, P al xm + (1 - P al) xc); ours.
    """
    workers, a = num_workers, checks.check_scalar("step_size", step_size, "[0, 2)")
    return (4 - 2 * a) / (4 - a if in_turn else 2 + 2 * workers - workers * a)


@kinds.checked
def look_ahead(params: Any, opt_state: Any, momentum: kinds.Share) -> Any:
    """EAMSGD: the point x^i + beta v^i, at which a worker takes its gradient.

        v^i <- beta v^i - eta grad F(x^i + beta v^i)
        x^i <- x^i + v^i

    Args:
        params: x^i.
        opt_state: the state of any transformation with one `optax.trace(beta)` in it,
            behind `optax.scale(-eta)`; v^i is the state of the trace.
        momentum: beta, in [0, 1). May be traced.

    Example:
        >>> tx = easgd(optax.chain(optax.scale(-0.1), optax.trace(0.5)))
        >>> state = tx.init(jnp.ones(2))
        >>> look_ahead(jnp.ones(2), state, 0.5)  # at rest
        Array([1., 1.], dtype=float32)

    References:
        Zhang, Choromanska and LeCun (EAMSGD), NIPS 2015, arXiv:1412.6651, algorithm 2.
    """
    remedy = "give easgd an inner optimizer with one optax.trace(beta)"
    what = "state of optax.trace"
    state = transforms.state_in(opt_state, optax.TraceState, what, remedy)
    return jax.tree.map(
        lambda x, v: (x + momentum * v).astype(x.dtype), params, state.trace
    )
