"""Step sizes that a rule chooses from the delay.

A rule of this module stands at the end of a chain, in place of
`optax.scale_by_learning_rate`: it multiplies updates by minus its own step size. A law
of `modulation` is another thing: a factor behind an optimizer that has a learning rate.
`dasa` alone stands before the optimizer: its step size is 0, or the optimizer's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, dtypes, extras, transforms, trees

_WRAP = "wrap the whole chain, `delayed(optax.chain(...), delay)`"


class BudgetState(NamedTuple):
    """State of `adaptive_1` and `adaptive_2`."""

    recent: jax.Array  # the last step sizes, newest first, float32 [max_delay]


def adaptive_1(
    budget: ArrayLike, max_delay: int, *, share: ArrayLike = 0.9
) -> optax.GradientTransformationExtraArgs:
    """Wu et al., Adaptive 1: a share of the part of a budget that is not used yet.

        eta_t = share * max(budget - sum_{j=t-tau}^{t-1} eta_j, 0)
        u    <- -eta_t u

    A gradient that is tau updates late misses the last tau steps. Their sizes and its
    own sum to no more than the budget wherever the step is not zero. If the staleness
    never grows by more than 1 in a step, the sum keeps to the budget at every step; if
    it jumps, the steps before the jump may have used more, and the step is zero.

    With budget = h / L and h < 1, L the largest curvature, gradient descent on a
    quadratic never leaves the interval in which it starts, for any delays.

    Put this rule in place of the learning rate, `optax.chain(direction, rule)`: the
    budget bounds the step sizes themselves, so a factor behind another learning rate
    would be wrong. Behind Adam or Muon the steps keep to the budget, but no bound of
    the iterates is known.

    Args:
        budget: the most that the step sizes may sum to, positive. May be traced.
        max_delay: the number of past step sizes kept, in steps. Static. The rule does
            not know what a gradient with a larger staleness misses: its step is zero.
        share: al in the paper, in (0, 1), about 0.9. May be traced.

    Returns:
        A transformation that keeps `max_delay` scalars, and needs one `staleness=` for
        all leaves (a mean is rounded up). Updates keep their dtype.

    Example:
        >>> tx = adaptive_1(1.0, 4, share=0.5)
        >>> state = tx.init(None)
        >>> for tau in (0, 1, 2, 0, 5):  # 5 is more than the rule can see
        ...     update, state = tx.update(jnp.ones(()), state, staleness=tau)
        ...     print(update)
        -0.5
        -0.25
        -0.125
        -0.5
        -0.0

    References:
        Wu, Magnusson, Feyzmahdavian and Johansson, Delay-adaptive step-sizes for
        asynchronous learning, ICML 2022, arXiv:2202.08550.
    """
    checks.check_number("share", share, below=1.0, positive=True)

    def choose(left, tau):
        del tau
        return jnp.multiply(share, jnp.maximum(left, 0.0))

    return _within_budget("adaptive_1", budget, max_delay, choose)


def adaptive_2(
    budget: ArrayLike, max_delay: int
) -> optax.GradientTransformationExtraArgs:
    """Wu et al., Adaptive 2: the step of a constant delay, or none.

        eta_t = budget / (tau + 1)   if sum_{j=t-tau}^{t-1} eta_j + eta_t <= budget
        eta_t = 0                    otherwise
        u    <- -eta_t u

    The step sizes keep to the budget as in `adaptive_1`. At a constant delay every step
    is budget / (tau + 1), as soon as the history is that old.

    Put this rule in place of the learning rate, as `adaptive_1`.

    Args:
        budget: the most that the step sizes may sum to, positive. May be traced.
        max_delay: the number of past step sizes kept, in steps. Static. A gradient with
            a larger staleness has no step.

    Returns:
        A transformation that keeps `max_delay` scalars, and needs one `staleness=` for
        all leaves (a mean is rounded up). Updates keep their dtype.

    Example:
        >>> tx = adaptive_2(1.0, 4)
        >>> state = tx.init(None)
        >>> for tau in (1, 1, 1, 3, 0, 1):  # 3: the three steps before it use it all
        ...     update, state = tx.update(jnp.ones(()), state, staleness=tau)
        ...     print(update)
        -0.5
        -0.5
        -0.5
        -0.0
        -1.0
        -0.0

    References:
        Wu, Magnusson, Feyzmahdavian and Johansson, Delay-adaptive step-sizes for
        asynchronous learning, ICML 2022, arXiv:2202.08550.
    """

    def choose(left, tau):
        # 3 times budget / 3 rounds: what is left may be smaller by some roundings
        rounding = budget * jnp.finfo(jnp.float32).eps * (tau + 1.0)
        step = jnp.divide(budget, tau + 1.0)
        return jnp.where(step <= left + rounding, step, 0.0)

    return _within_budget("adaptive_2", budget, max_delay, choose)


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

    The mean includes the current gradient. It is plain: no gradient counts less for its
    delay. At no delay c_i sqrt(t) is AdaGrad's root of the sum of squares.

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
    checks.check_number("smoothness", smoothness, positive=True)
    checks.check_number("scale", scale)

    def init_fn(params):
        squares = dtypes.real_zeros(params) if per_coordinate else ()
        return AdaDelayState(jnp.zeros((), jnp.int32), squares)

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        del params, extra_args
        extras.require(staleness, "staleness", "adadelay", _WRAP)
        updates, tau = extras.take_staleness("adadelay", updates, staleness, mean=True)
        step, squares = state.step + 1, state.mean_square
        if per_coordinate:
            extras.check_gradients("adadelay", updates)
            squares = jax.tree.map(
                lambda mean, g: (
                    mean
                    + (_square(g).astype(mean.dtype) - mean) / step.astype(mean.dtype)
                ),
                *(squares, updates),
            )
        typical = jax.tree.map(jnp.sqrt, squares) if per_coordinate else 1.0

        def descend(u, tau, typical):
            age = jnp.sqrt(dtypes.wide(step) + dtypes.wide(tau))
            typical, age = dtypes.alike(typical, age)
            eta = 1.0 / (smoothness + scale * typical * age)
            return dtypes.times(-eta, u)

        updates = jax.tree.map(
            descend,
            *(updates, trees.broadcast("staleness", tau, updates)),
            trees.broadcast("mean_square", typical, updates),
        )
        return updates, AdaDelayState(step, squares)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def distance_capped(
    learning_rate: ArrayLike, reach: ArrayLike
) -> optax.GradientTransformationExtraArgs:
    """Dutta et al.: a step size that falls with the distance the parameters moved.

        eta_t = min( C / ||x_t - x_{t-tau}||^2, eta_max )
        u    <- -eta_t u

    with C = reach and eta_max = learning_rate. The norm is over all leaves. A late
    gradient keeps the full step while the parameters stay within sqrt(C / eta_max).

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
    checks.check_number("learning_rate", learning_rate, positive=True)
    checks.check_number("reach", reach, positive=True)

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        del extra_args
        moved = extras.moved("distance_capped", updates, params, stale_params)
        step = jnp.minimum(reach / _squared_norm(moved), learning_rate)
        return _descend(step, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


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

    The norm is over all leaves. A long delay does no harm where the parameters did not
    move, so the rate follows the mean delay and not the largest one: after a large step
    the gradients that missed it are dropped, about tau of them. If all gradients are
    equally late, this is slower than plain steps. The paper takes eps proportional to
    eta; its constant is the user's here.

    Put this rule before the optimizer, and before the mean over workers, which still
    divides by all of them: `optax.chain(dasa(eta, 2.0), exchange.mean(optimizer))`.
    It replaces the gradient alone, and the iteration counts: a momentum behind it still
    moves. `drop_stale` and `refusing` keep the state of the optimizer too, and in
    `replay` what they refuse makes no version.

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
    if not callable(learning_rate):
        checks.check_number("learning_rate", learning_rate, positive=True)
    checks.check_number("reach", reach, positive=True)

    def init_fn(params):
        del params
        dropped = axes.vary(jnp.zeros((), jnp.int32), axis_name=axis_name)
        return DasaState(jnp.zeros((), jnp.int32), dropped)

    def update_fn(updates, state, params=None, *, stale_params=None, **extra_args):
        del extra_args
        moved = extras.moved("dasa", updates, params, stale_params)
        threshold = reach * transforms.rate_at(learning_rate, state.step)
        near = jnp.sqrt(_squared_norm(moved)) <= threshold
        updates = jax.tree.map(lambda g: jnp.where(near, g, jnp.zeros_like(g)), updates)
        dropped = state.dropped + jnp.where(near, 0, 1)
        return updates, DasaState(state.step + 1, dropped)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _within_budget(
    name: str,
    budget: ArrayLike,
    max_delay: int,
    choose: Callable[[jax.Array, jax.Array], jax.Array],
) -> optax.GradientTransformationExtraArgs:
    """A step size, chosen from the budget that is left and the staleness."""
    checks.check_number("budget", budget, positive=True)
    max_delay = checks.check_bound("max_delay", max_delay)

    def init_fn(params):
        del params
        return BudgetState(jnp.zeros(max_delay, jnp.float32))

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        del params, extra_args
        updates, tau = _with_one_staleness(name, updates, staleness)
        tau = jnp.ceil(tau)
        used = jnp.where(
            jnp.arange(max_delay, dtype=jnp.float32) < tau, state.recent, 0.0
        ).sum()
        step = jnp.asarray(choose(jnp.subtract(budget, used), tau), jnp.float32)
        step = jnp.where(tau <= max_delay, step, 0.0)
        recent = jnp.concatenate([step[None], state.recent])[:max_delay]
        return _descend(step, updates), BudgetState(recent)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _with_one_staleness(
    needed_by: str, updates: Any, staleness: ArrayLike | None
) -> tuple[Any, jax.Array]:
    """The gradients and the staleness of all leaves, float32 []."""
    extras.require(staleness, "staleness", needed_by, _WRAP)
    if not trees.is_leaf(staleness):
        raise TypeError(
            f"`staleness` handed to `{needed_by}` must be one number for all leaves,"
            f" got {staleness!r}: give each part of the parameters a rule and a delay"
            " of its own, with optax.partition."
        )
    updates, tau = extras.take_staleness(needed_by, updates, staleness, mean=True)
    return updates, tau.astype(jnp.float32)


def _descend(step: jax.Array, updates: optax.Updates) -> optax.Updates:
    """-step u, for one step size, in the dtype of each leaf."""
    return jax.tree.map(lambda u: dtypes.times(-step, u), updates)


def _square(leaf: jax.Array) -> jax.Array:
    """|g|^2 of each coordinate, real, float32 or wider."""
    return jnp.square(jnp.abs(leaf).astype(dtypes.real_dtype(leaf)))


def _squared_norm(tree: Any) -> jax.Array:
    """The sum of |x|^2 over all leaves, float32 or wider []."""
    parts = jnp.array([_square(leaf).sum() for leaf in jax.tree.leaves(tree)])
    return jnp.sort(parts).sum()  # the same bits in any order of the leaves
