"""Wu et al.'s Adaptive 1 and 2: step sizes that keep to a budget during a delay."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, dtypes, extras, kinds, transforms


class BudgetState(NamedTuple):
    """State of `share_of_budget` and `inverse_within_budget`."""

    recent: jax.Array  # the last step sizes, newest first, float32 [max_delay]


@kinds.checked
def share_of_budget(
    budget: ArrayLike, max_delay: int, *, share: kinds.OpenShare = 0.9
) -> optax.GradientTransformationExtraArgs:
    """Adaptive 1 of Wu et al.: each step is a share of the unused part of a budget.

        eta_t = share * max(budget - sum_{j=t-tau}^{t-1} eta_j, 0)
        u    <- -eta_t u

    A gradient that is tau updates late misses the last tau steps. If its own step is
    not zero, the sizes of these steps and its own step size sum to at most the budget.
    If the staleness never grows by more than 1 in a step, the sum keeps to the budget
    at every step; if it jumps, the steps before the jump may have used more, and the
    step is zero.

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
            A step of zero does not remove NaN from a gradient: see `refusing`.
        share: al in the paper, in (0, 1), about 0.9. May be traced.

    Returns:
        A transformation that keeps `max_delay` scalars, and needs one `staleness=` for
        all leaves (a mean is rounded up). Updates keep their dtype.

    Example:
        >>> tx = share_of_budget(1.0, 4, share=0.5)
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

    def choose(budget, left, tau):
        return jnp.multiply(share, jnp.maximum(left, 0.0))

    return _within_budget("share_of_budget", budget, max_delay, choose)


def inverse_within_budget(
    budget: ArrayLike, max_delay: int
) -> optax.GradientTransformationExtraArgs:
    """Adaptive 2 of Wu et al.: budget / (tau + 1) where it fits the budget, else 0.

        eta_t = budget / (tau + 1)   if sum_{j=t-tau}^{t-1} eta_j + eta_t <= budget
        eta_t = 0                    otherwise
        u    <- -eta_t u

    The step sizes keep to the budget as in `share_of_budget`. At a constant delay every
    step is budget / (tau + 1), once tau + 1 steps are done.

    Put this rule in place of the learning rate, as `share_of_budget`.

    Args:
        budget: the most that the step sizes may sum to, positive. May be traced.
        max_delay: the number of past step sizes kept, in steps. Static. A gradient with
            a larger staleness has no step.

    Returns:
        A transformation that keeps `max_delay` scalars, and needs one `staleness=` for
        all leaves (a mean is rounded up). Updates keep their dtype.

    Example:
        >>> tx = inverse_within_budget(1.0, 4)
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

    def choose(budget, left, tau):
        # sums of budget / (tau + 1) are rounded: `left` may be too small by roundings
        rounding = budget * jnp.finfo(tau.dtype).eps * (tau + 1.0)
        step = jnp.divide(budget, tau + 1.0)
        return jnp.where(step <= left + rounding, step, 0.0)

    return _within_budget("inverse_within_budget", budget, max_delay, choose)


@kinds.checked
def _within_budget(
    name: str,
    budget: kinds.Positive,
    max_delay: kinds.NonNegativeInt,
    choose: Callable[[ArrayLike, jax.Array, jax.Array], jax.Array],
) -> optax.GradientTransformationExtraArgs:
    """A step size, chosen from the budget that is left and the staleness."""

    def init_fn(params):
        return axes.vary_as(params, BudgetState(jnp.zeros(max_delay, float)))

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        updates, tau = extras.staleness_of(name, updates, staleness, one=True)
        checks.check_held("max_delay", max_delay, len(state.recent))
        tau = jnp.ceil(tau.astype(float))
        used = jnp.where(
            jnp.arange(max_delay, dtype=float) < tau, state.recent, 0.0
        ).sum()
        step = jnp.asarray(choose(budget, jnp.subtract(budget, used), tau), used.dtype)
        step = jnp.where(tau <= max_delay, step, 0.0)
        recent = jnp.concatenate([step[None], state.recent])[:max_delay]
        return dtypes.scaled(-step, updates), BudgetState(recent)

    return transforms.stateful(BudgetState, init_fn, update_fn)
