"""Workers that push their updates to a center and pull it: the DOWNPOUR family."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging import means, periods, races, visits
from delayjax._src.averaging.step_then_mix import step_then_mix, towards
from delayjax._src.ground import axes, dtypes, kinds, transforms


class PushedCenter(NamedTuple):
    """Memory of `downpour`."""

    center: Any  # xc, the same on all workers
    versions: Any  # the center after each of the last visits; () with a lock
    server_state: Any  # state of the server's optimizer, the same on all workers
    average: Any  # z, the same on all workers; () if there is none
    exchanges: Any  # that z has seen, int32 []; () if there is no z
    pushed: Any  # v^i: the worker's updates since it last pulled


@kinds.checked
def downpour(
    inner: transforms.Transformation,
    *,
    period: kinds.Count = 1,
    server: transforms.Transformation | None = None,
    average: kinds.FractionRate | None = None,
    order: visits.ArrivalOrder | None = None,
    lock_free: races.Races | None = None,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DOWNPOUR: workers push the sum of their updates to a center, and pull it.

        u    = U(g^i),    x^i <- x^i + u,    v^i <- v^i + u
        xc  <- xc + server(v^i),    x^i <- xc,    v^i <- 0

    where the second line is for steps at which `period` divides t + 1.

    | method | options |
    |---|---|
    | DOWNPOUR | `order=first_come(seconds)`; along a cluster's trace see
      `cluster.visits_to_rounds` |
    | Hogwild SGD with local models | `order=first_come(seconds), lock_free=races(key,
      age)` |
    | MDOWNPOUR | `inner=optax.scale(-eta), server=optax.trace(beta)`, period 1 |
    | ADOWNPOUR | `average=lambda k: 1 / (k + 1)` |
    | MVADOWNPOUR | `average=0.001` |
    | DPSGD, two levels | workers over `"workers"`, and on each worker threads that
      share its model: `inner=dj.delayed(dj.exchange.mean(optax.sgd(eta),
      axis_name="threads"), delay, max_delay=...)` |

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        period: H, local steps from one push to the next, at least 1. May be traced.
        server: an optimizer at the center that turns a push into an update; by default
            the push is the update.
        average: a, a number in (0, 1] or a schedule of the exchanges done, k = 0, 1,
            ...: z <- z + a (xc - z) after each exchange. With `order` each visit is an
            exchange. z is at least float32. By default there is no z.
        order: `by_rank()`, `first_come(seconds)`, or a function of the step: each
            worker pushes and pulls in its turn. By default all push at the same time,
            the center adds the sum, and all pull.
        lock_free: `races(key, max_age, lost=...)`: without a lock a worker pulls a mix
            of the center's versions; age 0 is the version after its push. The lost
            coordinates of a push are 0, also in what the server receives. Needs
            `order`.
        axis_name: the workers' axis, one name.

    Returns:
        A transformation whose state holds more than the state of `easgd`: the server's
        state and z once, and one tree of updates for each worker. Evaluate the `center`
        of the state, or its `average`, which is z.

    Example:
        >>> tx = downpour(optax.sgd(1.0), order=visits.by_rank())
        >>> def step(grad):
        ...     updates, state = tx.update(grad, tx.init(0 * grad), 0 * grad)
        ...     return updates, state.memory.center
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -4.], dtype=float32), Array([-4., -4.], dtype=float32))

    References:
        Dean et al. (DistBelief), NIPS 2012; as in arXiv:1412.6651 (EASGD) and its code
        sixin-zh/mpiT. As commonly reported: momentum, averages, and DPSGD (Mohamad et
        al., 2022, arXiv:2210.02882). Hogwild SGD: a reconstruction of arXiv:1708.02983.
    """
    server = optax.identity() if server is None else server
    at_center = transforms.as_transformation("server", server)
    access = races.access_to_center(lock_free, order)

    def begin(params):
        return PushedCenter(
            center=params,
            versions=access.begin(params),
            server_state=at_center.init(params),
            average=() if average is None else jax.tree.map(dtypes.wide, params),
            exchanges=() if average is None else jnp.zeros((), jnp.int32),
            pushed=optax.tree.zeros_like(axes.vary(params, axis_name=axis_name)),
        )

    def mix(step, memory, before, model):
        moved = towards(model, before)
        pushed = jax.tree.map(jnp.add, memory.pushed, moved)

        def serve(held, push):
            center, server_state, z, exchanges = held
            moves, server_state = at_center.update(push, server_state, center)
            center = optax.apply_updates(center, moves)
            if average is not None:
                share = transforms.rate_at(average, exchanges, "average")
                z = jax.tree.map(
                    lambda z, c: (z + share * (c.astype(z.dtype) - z)).astype(z.dtype),
                    *(z, center),
                )
                exchanges += 1
            return center, server_state, z, exchanges

        def visit(shared, push, worker, there):
            held, versions = shared
            push = access.land(push, step, worker)
            held = optax.tree.where(there, serve(held, push), held)
            versions = access.record(held[0], versions, there)
            pulled = access.read(held[0], versions, step, worker)
            return (held, versions), pulled

        def exchange(memory, model):
            center, versions, server_state, z, exchanges, pushed = memory
            held = center, server_state, z, exchanges
            if order is None:
                held = serve(held, means.total(pushed, axis_name))
                pulled, there = held[0], jnp.ones((), bool)
            else:
                (held, versions), pulled, there = visits.in_turn(
                    visit, (held, versions), pushed, order, step, axis_name
                )
            center, server_state, z, exchanges = held
            kept = visits.only(~there, pushed)
            mixed = optax.tree.where(there, pulled, model)
            memory = PushedCenter(center, versions, server_state, z, exchanges, kept)
            return axes.vary(mixed, axis_name=axis_name), memory

        memory = memory._replace(pushed=axes.vary(pushed, axis_name=axis_name))
        memory = visits.typed_beyond(memory, model, axis_name)
        model = axes.vary(model, axis_name=axis_name)
        return periods.choose(
            periods.due(step, period), exchange, lambda m, x: (x, m), memory, model
        )

    return step_then_mix("averaging.downpour", inner, mix, axis_name, begin)
