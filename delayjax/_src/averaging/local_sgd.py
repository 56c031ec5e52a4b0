"""Local steps, and a mean of all models at every H-th step."""

import optax

from delayjax._src.averaging import means, periods
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, kinds, transforms


@kinds.checked
def local_sgd(
    inner: transforms.Transformation,
    *,
    period: kinds.Count,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Local SGD: every `period` steps all models are replaced by their mean.

        x'^i = x^i + U(g^i)
        x^i <- (1/P) sum_j x'^j   where `period` divides t + 1,    else x'^i

    Args:
        inner: each worker's own optimizer, U; its state is not averaged. Extra
            arguments reach it unchanged.
        period: H, local steps from one average to the next, at least 1. May be traced.
        axis_name: the workers' axis, or several.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> tx = local_sgd(optax.sgd(1.0), period=2)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad), 0 * grad)
        ...     return first, first + tx.update(grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-4., -4.], dtype=float32))

    References:
        Stich, ICLR 2019, arXiv:1805.09767, algorithm 1.
    """

    def mix(step, memory, before, model):
        due = periods.due(step, period)
        middle = means.mean_when(due, model, axis_name)
        return optax.tree.where(due.now, middle, model), memory

    return step_then_mix("averaging.local_sgd", inner, mix, axis_name)
