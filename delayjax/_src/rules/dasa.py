"""DASA: drops a gradient whose parameters have moved too far since it was taken."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, extras, transforms
from delayjax._src.rules import norms


class DasaState(NamedTuple):
    """State of `dasa`."""

    step: jax.Array  # updates done, int32 []
    dropped: jax.Array  # gradients dropped so far, int32 []


def dasa(
    learning_rate: optax.ScalarOrSchedule,
    reach: ArrayLike,
    *,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DASA: drops a gradient whose parameters have moved too far since it was taken.

        g <- g   if ||x_t - x_{t-tau}|| <= eps,    eps = reach * eta_t
        g <- 0   otherwise

    The norm is over all leaves. A gradient of any delay is kept if the parameters did
    not move. So the rate of convergence depends on the mean delay, not on the largest
    delay. After a large step the rule drops the gradients that were taken before it,
    about tau of them. If all gradients are equally late, this is slower than plain
    steps. The paper takes eps proportional to eta; here the user sets its constant.

    Put this rule before the optimizer, and before the mean over workers, which still
    divides by all of them: `optax.chain(dasa(eta, 2.0), exchange.mean(optimizer))`.
    A dropped gradient becomes 0, but its step still counts: a momentum behind this rule
    still moves the parameters. `drop_stale` and `refusing` keep the state of the
    optimizer too, and in `replay` a gradient that they refuse makes no version.

    Args:
        learning_rate: eta of the optimizer, a number or a schedule. May be traced.
        reach: eps / eta, positive, a distance per unit of step size: the parameters may
            have moved by that many gradients of norm 1. May be traced.
        axis_name: the workers' axes along which parameters differ, in `shard_map`.

    Returns:
        A transformation that counts the dropped gradients. Gradients keep their dtype.
        `update` needs `params` and `stale_params=`, which `delayed(...,
        keep_params=True)` supplies.

    Example:
        >>> tx = dasa(0.5, 2.0)  # eps = 1
        >>> state = tx.init(None)
        >>> for stale in (0.0, 1.0, 2.0):  # distances of 2, 1 and 0
        ...     update, state = tx.update(
        ...         jnp.ones(()), state, jnp.asarray(2.0), stale_params=stale)
        ...     print(update, state.dropped)
        0.0 1
        1.0 1
        1.0 1

    References:
        Dal Fabbro, Adibi, Poor, Kulkarni, Mitra and Pappas, DASA: delay-adaptive
        multi-agent stochastic approximation, 2024, arXiv:2403.17247.
    """
    learning_rate = transforms.as_rate(learning_rate, positive=True)
    reach = checks.check_scalar("reach", reach, positive=True)

    def init_fn(params):
        del params
        dropped = axes.vary(jnp.zeros((), jnp.int32), axis_name=axis_name)
        return DasaState(jnp.zeros((), jnp.int32), dropped)

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        del extra_args
        moved = extras.moved("dasa", updates, params, stale_params)
        threshold = reach * transforms.rate_at(learning_rate, state.step)
        near = jnp.sqrt(norms.squared_norm(moved)) <= threshold
        updates = jax.tree.map(lambda g: jnp.where(near, g, jnp.zeros_like(g)), updates)
        dropped = state.dropped + jnp.where(near, 0, 1)
        return updates, DasaState(state.step + 1, dropped)

    return transforms.stateful(DasaState, init_fn, update_fn)
