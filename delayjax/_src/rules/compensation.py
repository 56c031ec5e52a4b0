"""Rules that correct a gradient for the parameters' move since it was taken."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, dtypes, extras, transforms


class CompensateDelayState(NamedTuple):
    """State of `compensate_delay`."""

    mean_square: Any  # moving mean of |g|^2, real, at least float32; () unless adaptive


def compensate_delay(
    strength: ArrayLike, *, adaptive: bool = False, decay: ArrayLike = 0.95
) -> optax.GradientTransformationExtraArgs:
    """DC-ASGD: a first-order Taylor step of the gradient towards today's parameters.

        g <- g + lam * g * g * (x_t - x_{t-tau})        elementwise

    with lam = strength (DC-ASGD-c), or, adaptive (DC-ASGD-a),

        ms  <- decay * ms + (1 - decay) * g * g
        lam  = strength / sqrt(ms + 1e-7)

    Put this rule before the optimizer in a chain: it needs raw gradients.

    Args:
        strength: non-negative; in the paper 0.04 (c) and 2.0 (a) on CIFAR-10. May be
            traced.
        adaptive: whether each coordinate has its own lam.
        decay: the decay of the mean square, in [0, 1). May be traced.

    Returns:
        A transformation with an empty state, or with one mean-square tree if adaptive.
        Gradients keep their dtype. `update` needs x_t, `params`, and x_{t-tau},
        `stale_params=`, which `delayed(..., keep_params=True)` supplies.

    Example:
        >>> tx, params, stale = compensate_delay(0.5), jnp.array(1.0), jnp.array(0.5)
        >>> tx.update(jnp.array(2.0), tx.init(params), params, stale_params=stale)[0]
        Array(3., dtype=float32)

    References:
        Zheng et al., Asynchronous SGD with delay compensation, ICML 2017,
        arXiv:1609.08326, algorithm 2 (c) and the adaptive form (a) of its experiments.
    """
    checks.check_number("strength", strength)
    checks.check_number("decay", decay, below=1.0)

    def init_fn(params):
        return CompensateDelayState(dtypes.real_zeros(params) if adaptive else ())

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        del extra_args
        moved = extras.moved("compensate_delay", updates, params, stale_params)
        lam = jax.tree.map(lambda _: strength, updates)
        if adaptive:
            mean_square = _mean_square(updates, state.mean_square, decay)
            state = CompensateDelayState(mean_square)
            lam = jax.tree.map(lambda ms: strength / jnp.sqrt(ms + 1e-7), mean_square)

        def compensate(gradient, lam, dx):
            g, lam, dx = dtypes.alike(gradient, lam, dx)
            return (g + lam * g * jnp.conj(g) * dx).astype(gradient.dtype)

        updates = jax.tree.map(compensate, updates, lam, moved)
        return updates, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class GapAwareState(NamedTuple):
    """State of `gap_aware`."""

    step: jax.Array  # updates done, int32 []
    largest_rate: jax.Array  # the largest learning rate so far, float32 []
    mean_square: Any  # moving mean of |g|^2, real, float32 or wider


def gap_aware(
    learning_rate: optax.ScalarOrSchedule,
    *,
    decay: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """Gap-Aware: divides a gradient by the number of steps its parameters moved.

        g <- g / Gap,  Gap = 1 + |x_t - x_{t-tau}| / C            elementwise
        C  = eta_max * sqrt(EMA_decay(g * g) / bias correction) + eps

    The EMA includes the current gradient. Put this rule before the optimizer.

    Args:
        learning_rate: the optimizer's, a number or a schedule; eta_max is its largest.
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
    if not callable(learning_rate):
        checks.check_number("learning_rate", learning_rate)
    checks.check_number("decay", decay, below=1.0)
    checks.check_number("eps", eps, positive=True)

    def init_fn(params):
        return GapAwareState(
            step=jnp.zeros((), jnp.int32),
            largest_rate=jnp.zeros((), jnp.float32),
            mean_square=dtypes.real_zeros(params),
        )

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        del extra_args
        moved = extras.moved("gap_aware", updates, params, stale_params)
        rate = transforms.rate_at(learning_rate, state.step)
        step = state.step + 1
        largest = jnp.maximum(state.largest_rate, jnp.asarray(rate, jnp.float32))
        mean_square = _mean_square(updates, state.mean_square, decay)
        count = step.astype(jnp.result_type(float))
        typical = optax.tree.bias_correction(mean_square, decay, count)

        def divide(gradient, dx, square):
            g, dx, square, rate = dtypes.alike(gradient, dx, square, largest)
            typical_step = rate * jnp.sqrt(square) + eps
            return (g / (1.0 + jnp.abs(dx) / typical_step)).astype(gradient.dtype)

        updates = jax.tree.map(divide, updates, moved, typical)
        return updates, GapAwareState(step, largest, mean_square)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _mean_square(updates: Any, mean_square: Any, decay: ArrayLike) -> Any:
    """The next ms = decay * ms + (1 - decay) * |g|^2, in the precision of ms."""
    moments = optax.tree.update_moment_per_elem_norm(
        dtypes.as_wide_as(updates, mean_square), mean_square, decay, 2
    )
    return optax.tree.cast_like(moments, mean_square)
