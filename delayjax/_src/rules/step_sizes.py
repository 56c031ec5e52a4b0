"""Step sizes that fall with the delay, or with the distance of the parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, dtypes, extras, kinds, transforms, trees
from delayjax._src.rules import norms


class AdaDelayState(NamedTuple):
    """State of `adadelay`."""

    step: jax.Array  # updates done, int32 []
    mean_square: Any  # mean of g * g so far, float32 or wider; () for one step size


@kinds.checked
def adadelay(
    smoothness: kinds.Positive,
    scale: kinds.NonNegative,
    *,
    per_coordinate: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """AdaDelay: a step size that falls with the step and with the delay.

        eta_t = 1 / (L + c sqrt(t + tau))          t = 1, 2, ...
        u    <- -eta_t u

    with L = smoothness and c = scale. A coordinate i may have a step size of its own,

        eta_ti = 1 / (L + c c_i sqrt(t + tau)),    c_i^2 = mean of g_i^2 up to now

    The mean includes the current gradient, and late and fresh gradients have the same
    weight in it. Without delay c_i sqrt(t) is AdaGrad's root of the sum of squares.

    Put this rule in place of the learning rate. The paper's direction is the gradient,
    `delayed(adadelay(...), delay)`. For the paper's projection onto a set, see
    `optax.projections`.

    Args:
        smoothness: L, the largest curvature, positive. May be traced.
        scale: c, non-negative, to be tuned. May be traced.
        per_coordinate: whether each coordinate has a step size of its own.

    Returns:
        A transformation that keeps one counter, or with `per_coordinate` also one
        mean-square tree, and needs `staleness=`: one number, or a tree with a number
        for each leaf. Updates keep their dtype.

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

    def init_fn(params):
        squares = dtypes.real_zeros(params) if per_coordinate else ()
        return AdaDelayState(jnp.zeros((), jnp.int32), squares)

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        updates, tau = extras.staleness_of("adadelay", updates, staleness)
        step, squares = state.step + 1, state.mean_square
        if per_coordinate:
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


@kinds.checked
def distance_capped(
    learning_rate: kinds.Positive, reach: kinds.Positive
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

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        moved = extras.moved("distance_capped", updates, params, stale_params)
        step = jnp.minimum(reach / norms.squared_norm(moved), learning_rate)
        return dtypes.scaled(-step, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


class DasaState(NamedTuple):
    """State of `dasa`."""

    step: jax.Array  # updates done, int32 []
    dropped: jax.Array  # gradients dropped so far, int32 []


@kinds.checked
def dasa(
    learning_rate: kinds.PositiveRate,
    reach: kinds.Positive,
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
    Summaries of the paper name another rule for several agents, which keeps the nearer
    half of their gradients: `configs/dasa.py` has both.

    Put this rule before the optimizer, and before the mean over workers, which still
    divides by all of them: `optax.chain(dasa(eta, 2.0), exchange.mean(optimizer))`.
    A dropped gradient becomes 0, but its step still counts: a momentum behind this rule
    still moves the parameters. `drop_stale` and `refusing` keep the state of the
    optimizer too, and in `replay` a gradient that they refuse makes no version.

    Args:
        learning_rate: eta of the optimizer, a number or a schedule. May be traced.
        reach: eps / eta, positive, a distance per unit of step size: 2.0 accepts a move
            by two gradients of norm 1. May be traced.
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

    def init_fn(params):
        dropped = axes.vary(jnp.zeros((), jnp.int32), axis_name=axis_name)
        return DasaState(jnp.zeros((), jnp.int32), dropped)

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        moved = extras.moved("dasa", updates, params, stale_params)
        threshold = reach * transforms.rate_at(learning_rate, state.step)
        near = jnp.sqrt(norms.squared_norm(moved)) <= threshold
        updates = jax.tree.map(lambda g: jnp.where(near, g, jnp.zeros_like(g)), updates)
        dropped = state.dropped + jnp.where(near, 0, 1)
        return updates, DasaState(state.step + 1, dropped)

    return transforms.stateful(DasaState, init_fn, update_fn)
