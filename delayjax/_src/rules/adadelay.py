"""AdaDelay: a step size that falls with the step and with the delay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, dtypes, extras, transforms, trees
from delayjax._src.rules import ages, norms


class AdaDelayState(NamedTuple):
    """State of `adadelay`."""

    step: jax.Array  # updates done, int32 []
    mean_square: Any  # mean of g * g so far, float32 or wider; () for one step size


def adadelay(
    smoothness: ArrayLike, scale: ArrayLike, *, per_coordinate: bool = False
) -> optax.GradientTransformationExtraArgs:
    """AdaDelay: a step size that falls with the step and with the delay.

        eta_t = 1 / (L + c sqrt(t + tau))          t = 1, 2, ...
        u    <- -eta_t u

    with L = smoothness and c = scale. A coordinate i may have a step size of its own,

        eta_ti = 1 / (L + c c_i sqrt(t + tau)),    c_i^2 = mean of g_i^2 up to now

    The mean includes the current gradient, and late and fresh gradients have the same
    weight in it. Without delay c_i sqrt(t) is AdaGrad's root of the sum of squares.

    Put this rule in place of the learning rate. The paper's direction is the gradient,
    `delayed(adadelay(...), delay)`. For its projection onto a set, see
    `optax.projections`.

    Args:
        smoothness: L, the largest curvature, positive. May be traced.
        scale: c, non-negative, to be tuned. May be traced.
        per_coordinate: whether each coordinate has a step size of its own.

    Returns:
        A transformation that keeps one counter, or with `per_coordinate` also one
        mean-square tree, and needs `staleness=`: one, or a tree with one for each leaf.
        Updates keep their dtype.

    Example:
        >>> tx = adadelay(1.0, 0.5)
        >>> state = tx.init(None)
        >>> for tau in (0, 2, 6):  # 1 / (1 + 0.5 * (1, 2, 3))
        ...     update, state = tx.update(jnp.ones(()), state, staleness=tau)
        ...     print(f"{update:.3f}")
        -0.667
        -0.500
        -0.400

    References:
        Sra, Yu, Li and Smola, AdaDelay: delay adaptive distributed stochastic
        optimization, AISTATS 2016, arXiv:1508.05003.
    """
    smoothness = checks.check_scalar("smoothness", smoothness, positive=True)
    scale = checks.check_scalar("scale", scale)

    def init_fn(params):
        squares = dtypes.real_zeros(params) if per_coordinate else ()
        return AdaDelayState(jnp.zeros((), jnp.int32), squares)

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        del params, extra_args
        updates, tau = ages.take("adadelay", updates, staleness)
        step, squares = state.step + 1, state.mean_square
        if per_coordinate:
            extras.check_gradients("adadelay", updates)
            squares = jax.tree.map(
                lambda mean, g: (
                    mean
                    + (norms.square(g).astype(mean.dtype) - mean)
                    / step.astype(mean.dtype)
                ),
                *(squares, updates),
            )
        typical = jax.tree.map(jnp.sqrt, squares) if per_coordinate else 1.0

        def descend(u, tau, typical):
            age = jnp.sqrt(dtypes.wide(step) + dtypes.wide(tau))
            typical, age = dtypes.in_one_dtype(typical, age)
            eta = 1.0 / (smoothness + scale * typical * age)
            return dtypes.times(-eta, u)

        updates = jax.tree.map(
            descend,
            *(updates, trees.broadcast("staleness", tau, updates)),
            trees.broadcast("mean_square", typical, updates),
        )
        return updates, AdaDelayState(step, squares)

    return transforms.stateful(AdaDelayState, init_fn, update_fn)
