"""Pushing what was learnt to a center and pulling the center: the DOWNPOUR family."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src import base
from delayjax._src.averaging import center as centers
from delayjax._src.averaging import racing, replicas
from delayjax._src.averaging.engine import averaged


class Server(NamedTuple):
    """Memory of `downpour`."""

    center: Any  # xc, the same on all workers
    versions: Any  # the center after each of the last visits; () with a lock
    server_state: Any  # of the server's optimizer, likewise
    average: Any  # z, the mean of the center over time, likewise; () if none is kept
    pushed: Any  # v^i: the worker's updates since it last pulled


def downpour(
    inner: optax.GradientTransformation,
    *,
    period: ArrayLike = 1,
    server: optax.GradientTransformation | None = None,
    average: optax.ScalarOrSchedule | None = None,
    order: centers.ArrivalOrder | None = None,
    lock_free: racing.Races | None = None,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DOWNPOUR: workers push the sum of their updates, and pull the center.

        u    = U(g^i),    x^i <- x^i + u,    v^i <- v^i + u
        xc  <- xc + server(v^i),    x^i <- xc,    v^i <- 0

    the second line where `period` divides t + 1. Unlike in elastic averaging nothing of
    the worker's own model is left after it.

    | method | options |
    |---|---|
    | DOWNPOUR | `order=first_come(seconds)`; along a cluster's trace, each worker with
      its own clock: see `cluster.visits_to_rounds` |
    | Hogwild SGD with local models | `order=first_come(seconds), lock_free=races(key,
      age)` |
    | MDOWNPOUR | `inner=optax.scale(-eta), server=optax.trace(beta)`, period 1 |
    | ADOWNPOUR | `average=lambda k: 1 / (k + 1)` |
    | MVADOWNPOUR | `average=0.001` |
    | DPSGD, two levels | workers over `"workers"`, and on each threads that share its
      model: `inner=dj.delayed(dj.exchange.mean(optax.sgd(eta), axis_name="threads"),
      delay, max_delay=...)`, eta of all threads together, a delay drawn on each; the
      threads hold one copy |

    Args:
        inner: the worker's own optimizer. It receives its worker's extra arguments as
            they come.
        period: H, local steps from one push to the next. May be traced.
        server: what is made of a push at the center; by default it is added.
        average: a, a number in (0, 1] or a schedule of the exchanges done, k = 0, 1,
            ...: z <- z + a (xc - z) after each. By default no z is kept.
        order: `round_robin()`, `first_come(seconds)`, or a function of the step: pushes
            are added one after the other, and each worker pulls right after its own.
            By default all push at once, their sum, and then pull.
        lock_free: `races(key, max_age, lost=...)`: pushes and pulls without a lock. A
            worker pulls a mix of versions of the center; age 0 is the version with its
            own push. The lost coordinates of a push are 0, for the server too. Needs
            `order`.
        axis_name: of the workers, one name.

    Returns:
        A transformation such that `params + updates` is x^i. Its state holds the center
        and the server's once, with races max_age + 1 times more, and on each worker one
        tree of updates and `inner`. The model to evaluate is `center`, or `average`:
        `optax.tree.get(state, "center")`. At an exchange a worker sends one model and
        receives one; in turn nobody waits for another's gradient. Here all workers then
        gather the P pushes: each holds 2 P models meanwhile.

    Raises:
        ValueError: if `period` is below 1, `average` not in (0, 1], races have no
            `order`, or (in `update`) a gradient is summed over the workers already.

    Example:
        >>> tx = downpour(optax.sgd(1.0), order=centers.round_robin())
        >>> def step(grad):
        ...     updates, state = tx.update(grad, tx.init(0 * grad), 0 * grad)
        ...     return updates, state.memory.center
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -4.], dtype=float32), Array([-4., -4.], dtype=float32))

    References:
        Dean et al. (DistBelief), NIPS 2012; as in Zhang, Choromanska and LeCun (EASGD),
        NIPS 2015, arXiv:1412.6651, and its code sixin-zh/mpiT. The forms with momentum
        and averages as commonly reported. Mohamad, Alamri and Bouchachia (DPSGD),
        Machine Learning 2022, arXiv:2210.02882, its loop likewise.
        You, Buluc and Demmel, SC 2017, arXiv:1708.02983, for Hogwild SGD; that its
        workers keep models between pushes, and how they race, is a reconstruction.
    """
    axis_name = replicas.check_axis("averaging.downpour", axis_name)
    period = replicas.check_period("period", period)
    at_center = base.as_transformation(
        "server", optax.identity() if server is None else server
    )
    if average is not None and not callable(average):
        base.check_number("average", average, positive=True)
        if base.is_concrete(average) and average > 1:
            raise ValueError(f"`average` must be in (0, 1], got {average}.")
    racing.check("lock_free", lock_free, order)

    def begin(params):
        return Server(
            center=params,
            versions=racing.begun(lock_free, params),
            server_state=at_center.init(params),
            average=() if average is None else params,
            pushed=optax.tree.zeros_like(base.vary(params, axis_name=axis_name)),
        )

    def mix(step, memory, before, model):
        moved = replicas.towards(model, before)
        pushed = jax.tree.map(jnp.add, memory.pushed, moved)

        def serve(center, server_state, push):
            moves, server_state = at_center.update(push, server_state, center)
            return optax.apply_updates(center, moves), server_state

        def visit(shared, push, worker, there):
            center, server_state, versions = shared
            push = racing.landed(lock_free, push, step, worker)
            center, server_state = optax.tree.where(
                there, serve(center, server_state, push), (center, server_state)
            )
            versions = racing.recorded(lock_free, center, versions, there)
            pulled = racing.read(lock_free, center, versions, step, worker)
            return (center, server_state, versions), pulled

        def exchange(memory, model):
            versions = memory.versions
            if order is None:
                push = replicas.total(memory.pushed, axis_name)
                center, server_state = serve(memory.center, memory.server_state, push)
                pulled, there = center, jnp.ones((), bool)
            else:
                shared = memory.center, memory.server_state, versions
                (center, server_state, versions), pulled, there = centers.in_turn(
                    visit, shared, memory.pushed, order, step, axis_name
                )
            z = memory.average
            if average is not None:
                exchanges = step // period
                share = average(exchanges) if callable(average) else average
                share = base.as_scalar("average(step)", share)
                z = jax.tree.map(
                    lambda z, c: (z + share * (c - z)).astype(z.dtype), z, center
                )
            kept = jax.tree.map(lambda v: jnp.where(there, 0, v), memory.pushed)
            mixed = optax.tree.where(there, pulled, model)
            memory = Server(center, versions, server_state, z, kept)
            return base.vary(mixed, axis_name=axis_name), memory

        def go_on(memory, model):
            return model, memory

        memory = memory._replace(pushed=base.vary(pushed, axis_name=axis_name))
        memory = replicas.typed_beyond(memory, model, axis_name)
        model = base.vary(model, axis_name=axis_name)
        due = replicas.due(step, period)
        if due is True:
            return exchange(memory, model)
        return jax.lax.cond(due, exchange, go_on, memory, model)

    return averaged("averaging.downpour", inner, mix, axis_name=axis_name, begin=begin)
