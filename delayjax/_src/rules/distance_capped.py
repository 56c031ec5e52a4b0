"""A step size that falls with the distance that the parameters moved."""

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, dtypes, extras
from delayjax._src.rules import norms


def distance_capped(
    learning_rate: ArrayLike, reach: ArrayLike
) -> optax.GradientTransformationExtraArgs:
    """Dutta et al.: a step size that falls with the distance the parameters moved.

        eta_t = min( C / ||x_t - x_{t-tau}||^2, eta_max )
        u    <- -eta_t u

    with C = reach and eta_max = learning_rate. The norm is over all leaves. A late
    gradient keeps the full step if the parameters moved by at most sqrt(C / eta_max).

    Put this rule in place of the learning rate, `optax.chain(direction, rule)`: C has
    the unit of a step size times a squared distance, so it caps the step size itself.

    Args:
        learning_rate: eta_max, positive. May be traced.
        reach: C, positive. May be traced.

    Returns:
        A transformation without state. Updates keep their dtype. `update` needs
        `params` and `stale_params=`, which `delayed(..., keep_params=True)` supplies.

    Example:
        >>> tx = distance_capped(0.5, 1.0)
        >>> for stale in (0.0, 1.0, 2.0):  # distances of 2, 1 and 0
        ...     update, _ = tx.update(
        ...         jnp.ones(()), tx.init(None), jnp.asarray(2.0), stale_params=stale)
        ...     print(update)
        -0.25
        -0.5
        -0.5

    References:
        Dutta, Joshi, Ghosh, Dube and Nagpurkar, Slow and stale gradients can win the
        race, AISTATS 2018, arXiv:1803.01113.
    """
    learning_rate = checks.check_scalar("learning_rate", learning_rate, positive=True)
    reach = checks.check_scalar("reach", reach, positive=True)

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        del extra_args
        moved = extras.moved("distance_capped", updates, params, stale_params)
        step = jnp.minimum(reach / norms.squared_norm(moved), learning_rate)
        return dtypes.scaled(-step, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)
