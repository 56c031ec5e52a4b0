"""Eager outer steps: a worker's fresh change, and the late changes of the others."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging import periods, slices
from delayjax._src.averaging.step_then_mix import step_then_mix, varied
from delayjax._src.ground import axes, checks, collectives, kinds, transforms
from delayjax._src.history import wrapped


class Eager(NamedTuple):
    """Memory of `eager_outer`."""

    begun: Any  # x^i, the worker's model at the start of the round
    outer_state: Any  # the state of the worker's own server
    flight: Any  # `slices.Flight` of dl^i of the last round


@kinds.checked
def eager_outer(
    inner: transforms.Transformation,
    server: transforms.Transformation,
    *,
    period: kinds.PositiveInt,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Eager DiLoCo: outer steps by a worker's fresh and the others' last changes.

        x'^i = x'^i + U(g^i)                                      at every step
        dl^i_r = x^i - x'^i                                       after H steps
        x^i <- x^i + server( (dl^i_r + sum_{j /= i} dl^j_{r-1}) / P ),    x'^i <- x^i

    A change is sent during the H steps of a round, and no worker waits for it. dl_0 is
    0. Each worker has its own x; with one worker this is `outer`.

    Args:
        inner: as in `outer`.
        server: as in `outer`; its state is each worker's own.
        period: H, local steps in a round, at least 1. Static.
        axis_name: the workers' axis, or several.

    Returns:
        A transformation whose state holds for each worker x^i, the server's state, dl^i
        and `inner`, and once the mean. Every step has an all-reduce of 1/H of the
        model, in no branch, which a compiler can hide as in `outer`. Evaluate the mean
        of the workers' models.

    Raises:
        ValueError: in `update`, if the state was made with another period.
        TypeError: in `update`, if the server needs an extra argument, such as the loss.

    Example:
        >>> tx = eager_outer(optax.sgd(1.0), optax.sgd(1.0), period=1)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad * 0), grad * 0)
        ...     return first, first + tx.update(grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-0.5, -1.5], dtype=float32), Array([-2.5, -3.5], dtype=float32))

    References:
        Kale, Douillard and Donchev, Eager updates in DiLoCo, 2025, arXiv:2502.12996;
        the equal weights as commonly reported, the slices are ours.
    """
    server = transforms.as_transformation("server", server)

    def begin(params):
        state = wrapped.init("server", server, params, wrapper="eager_outer")
        box = slices.empty([params], params, period)
        state, outbox = varied((state, box), axis_name)
        flight = slices.Flight({}, outbox, axes.vary_as(params, box))
        return Eager(varied(params, axis_name), state, flight)

    def outer_step(inbox, begun, state, outbox, model):
        fresh = jax.tree.map(jnp.subtract, begun, model)
        last, mean = (slices.unpacked(box, fresh) for box in (outbox, inbox))
        workers = collectives.workers_of(axis_name)
        push = jax.tree.map(
            lambda new, old, mean: (new - old) / workers + mean, fresh, last, mean
        )
        moves, state = server.update(push, state, begun)
        begun = optax.apply_updates(begun, moves)
        return begun, state, slices.packed(fresh, outbox), begun

    def mix(step, memory, before, model):
        begun, state, flight = memory
        if jax.tree.leaves(model):
            checks.check_held("period", period, slices.number_of(flight.outbox))
            flight, model = slices.send(flight, step % period, True, model, axis_name)
        begun, state, outbox, model = periods.choose(
            periods.due(step, period),
            functools.partial(outer_step, flight.inbox),
            lambda *same: same,
            *varied((begun, state, flight.outbox, model), axis_name),
        )
        return model, Eager(begun, state, flight._replace(outbox=outbox))

    return step_then_mix("averaging.eager_outer", inner, mix, axis_name, begin)
