"""DC-ASGD: a Taylor step of a late gradient towards the current parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, kinds, transforms
from delayjax._src.rules import norms


class CompensateDelayState(NamedTuple):
    """State of `compensate_delay`."""

    mean_square: Any  # moving mean of |g|^2, real, at least float32; () unless adaptive


@kinds.checked
def compensate_delay(
    strength: kinds.NonNegative, *, adaptive: bool = False, decay: kinds.Share = 0.95
) -> optax.GradientTransformationExtraArgs:
    """DC-ASGD: a first-order Taylor step of a gradient to the current parameters.

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

    def init_fn(params):
        return CompensateDelayState(dtypes.real_zeros(params) if adaptive else ())

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        moved = extras.moved("compensate_delay", updates, params, stale_params)
        lam = jax.tree.map(lambda _: strength, updates)
        if adaptive:
            mean_square = norms.moving_mean_square(updates, state.mean_square, decay)
            state = CompensateDelayState(mean_square)
            lam = jax.tree.map(lambda ms: strength / jnp.sqrt(ms + 1e-7), mean_square)

        def compensate(gradient, lam, dx):
            g, lam, dx = dtypes.in_one_dtype(gradient, lam, dx)
            return (g + lam * g * jnp.conj(g) * dx).astype(gradient.dtype)

        updates = jax.tree.map(compensate, updates, lam, moved)
        return updates, state

    return transforms.stateful(CompensateDelayState, init_fn, update_fn)
