"""Gap-Aware: divides a gradient by the number of steps that its parameters moved."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, kinds, transforms
from delayjax._src.rules import norms


class GapAwareState(NamedTuple):
    """State of `gap_aware`."""

    step: jax.Array  # updates done, int32 []
    largest_rate: jax.Array  # the largest learning rate so far, real []
    mean_square: Any  # moving mean of |g|^2, real, float32 or wider


@kinds.checked
def gap_aware(
    learning_rate: kinds.Rate,
    *,
    decay: kinds.Share = 0.999,
    eps: kinds.Positive = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """Gap-Aware: divides a gradient by the number of steps its parameters moved.

        g <- g / Gap,  Gap = 1 + |x_t - x_{t-tau}| / C            elementwise
        C  = eta_max * sqrt(EMA_decay(g * g) / bias correction) + eps

    The EMA includes the current gradient. Put this rule before the optimizer.

    Args:
        learning_rate: the learning rate of the optimizer, a number or a schedule;
            eta_max is its largest value so far.
        decay: the decay of the mean square, in [0, 1). May be traced.
        eps: a positive number that keeps C positive. May be traced.

    Returns:
        A transformation whose state is one mean-square tree. Gradients keep their
        dtype. `update` needs `params` and `stale_params=`, as `compensate_delay` does.

    Example:
        >>> tx, params = gap_aware(0.1), jnp.array(1.0)
        >>> update, _ = tx.update(
        ...     jnp.array(2.0), tx.init(params), params, stale_params=jnp.array(0.8))
        >>> round(float(update), 4)  # moved by 0.2, one step of 0.1 * |g|: gap 2
        1.0

    References:
        Barkai, Hakimi and Schuster, Gap-aware mitigation of gradient staleness, ICLR
        2020, arXiv:1909.10802, section 4.
    """

    def init_fn(params):
        return GapAwareState(
            step=jnp.zeros((), jnp.int32),
            largest_rate=jnp.zeros((), dtypes.real_dtype(params)),
            mean_square=dtypes.real_zeros(params),
        )

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        moved = extras.moved("gap_aware", updates, params, stale_params)
        rate = transforms.rate_at(learning_rate, state.step)
        step = state.step + 1
        rate = jnp.asarray(rate, state.largest_rate.dtype)
        largest = jnp.maximum(state.largest_rate, rate)
        mean_square = norms.moving_mean_square(updates, state.mean_square, decay)
        count = step.astype(jnp.result_type(float))
        typical = optax.tree.bias_correction(mean_square, decay, count)

        def divide(gradient, dx, square):
            g, dx, square, rate = dtypes.in_one_dtype(gradient, dx, square, largest)
            typical_step = rate * jnp.sqrt(square) + eps
            return (g / (1.0 + jnp.abs(dx) / typical_step)).astype(gradient.dtype)

        updates = jax.tree.map(divide, updates, moved, typical)
        return updates, GapAwareState(step, largest, mean_square)

    return transforms.stateful(GapAwareState, init_fn, update_fn)
