"""DGA: a worker applies its update at once, and the mean some steps later."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from delayjax._src.averaging import means
from delayjax._src.averaging.step_then_mix import step_then_mix, towards
from delayjax._src.ground import axes, checks, kinds, transforms
from delayjax._src.history import ring


class Outbox(NamedTuple):
    """Memory of `dga`."""

    outbox: Any  # the worker's update whose mean arrives next
    later: Any  # ring of its newer updates; () at delay 1


@kinds.checked
def dga(
    inner: transforms.Transformation,
    delay: kinds.PositiveInt,
    *,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DGA: a worker applies its own update now, and d steps later the mean instead.

        u_t = U(g^i_t)
        x^i <- x^i + u_t + (mean_j u^j_{t-d} - u_{t-d})

    The models differ only by the workers' own last d updates.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        delay: d, in steps, at least 1. Static. For no delay use `exchange.mean`.
        axis_name: the workers' axis, or several.

    Returns:
        A transformation whose state holds d + 1 updates (one at d = 1) and `inner` for
        each worker. A compiler can hide its all-reduce behind the gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = dga(optax.sgd(1.0), 1)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad), 0 * grad)
        ...     return first, first + tx.update(0 * grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-2., -2.], dtype=float32))

    References:
        Zhu et al., Delayed gradient averaging, NeurIPS 2021, as commonly reported.
    """

    def begin(params):
        model = axes.vary(params, axis_name=axis_name)
        later = ring.init(model, delay) if delay > 1 else ()
        return Outbox(optax.tree.zeros_like(model), later)

    def mix(step, memory, before, model):
        held = memory.later.slots if memory.later else np.zeros(1)
        for slots in jax.tree.leaves(held):
            checks.check_held("delay", delay, len(slots))
        moved = towards(model, before)
        mean, moved = means.mean_beside(moved, memory.outbox, axis_name)
        mixed = jax.tree.map(lambda x, m, o: x + (m - o), model, mean, memory.outbox)
        if delay == 1:
            return mixed, Outbox(moved, ())
        # slots that were never written are zeros, so they add no correction
        later = ring.push(memory.later, moved)
        return mixed, Outbox(ring.read(later, delay - 1, moved), later)

    return step_then_mix("averaging.dga", inner, mix, axis_name, begin)
