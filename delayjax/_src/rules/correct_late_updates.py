"""Applies the last update in place of updates that have not arrived yet."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, transforms, trees

_WRAP = (
    "wrap the whole chain, `delayed(optax.chain(optimizer, correct_late_updates()),"
    " delay)`"
)


class CorrectLateUpdatesState(NamedTuple):
    """State of `correct_late_updates`."""

    ahead: Any  # p = tau u of the last step, like the parameters


def correct_late_updates() -> optax.GradientTransformationExtraArgs:
    """Error feedback for late updates: each is corrected when the next one is known.

    At step t the optimizer makes u_t from a gradient that is tau_t steps late, and the
    updates of tau_t newer gradients have not arrived. The last known update is applied
    in place of each of them, and the substitutes of the step before are subtracted:

        p_t = tau_t u_t
        d_t = u_t + p_t - p_{t-1},    p_{-1} = 0

    so that d_0 + ... + d_t = u_0 + ... + u_t + tau_t u_t. Only the last term is a
    guess, so errors do not accumulate. With a delay of one step

        d_t = u_t + (u_t - u_{t-1}) = 2 u_t - u_{t-1}

    where u_t - u_{t-1} corrects the step before, in which u_{t-1} was applied in place
    of u_t. Put this rule last in a chain, behind the learning rate.

    Take a quadratic of curvature lam, a delay of one step, and heavy ball with a step
    size eta and a momentum beta. Without this rule the iterates converge for
    eta lam < m, where m = 1 - beta, and with it up to

        eta lam = (sqrt(m^2 + 4 m) - m) / 2

    The rule raises the limit if beta > 1/2: to 2.7 times at 0.9, to 4 times at 0.95. It
    lowers the limit if beta < 1/2: from 1 to 0.62 without momentum. On a quadratic it
    extrapolates the parameters by the delay, so for other delays the limit is
    `stability.Dynamics(tau, momentum=beta, extrapolation=tau).step_limit()`, the edge
    for the roots of

        (z - 1) (z - beta) z^tau + eta lam ((1 + tau) z - tau) = 0

    Far below the limit the decay rate of a mode differs from the rate without a delay
    by terms of third order in eta lam; without this rule it differs by terms of second
    order. The price is noise: for gradients with independent noise the variance of an
    update is 1 + 2 tau (1 + tau) (1 - beta) times as large. That is 5 at a delay of 1
    without momentum and 1.4 at beta = 0.9, and 41 and 5 at a delay of 4. The rule is
    for short delays and a large momentum.

    Returns:
        A transformation whose state is one tree, for any delay. `update` needs
        `staleness=`, one number, or one for each leaf or layer; it may change. If the
        staleness is always 0, updates do not change. Updates keep their dtype.

    Example:
        >>> tx = optax.chain(optax.sgd(1.0), correct_late_updates())
        >>> state = tx.init(jnp.zeros(()))
        >>> for grad, tau in ((1.0, 0), (1.0, 1), (3.0, 1), (3.0, 0)):
        ...     update, state = tx.update(jnp.asarray(grad), state, staleness=tau)
        ...     print(update)
        -1.0
        -2.0
        -5.0
        0.0

    References:
        Zmushko et al., One-step gradient delay is not a barrier for large-scale
        asynchronous pipeline parallel LLM pretraining, 2026, arXiv:2606.30634, has an
        error feedback on updates with a delay of one step. We could not read its
        formula, only a summary: it uses the difference of two successive updates, as
        this rule does. The form for longer delays, and the limits above, are ours.
        Extrapolated parameters: Chen, Yang and Cheng, SpecTrain, 2018,
        arXiv:1809.02839.
    """

    def init_fn(params):
        return CorrectLateUpdatesState(jax.tree.map(jnp.zeros_like, params))

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        name = "correct_late_updates"
        updates, tau = extras.staleness_of(
            name, updates, staleness, _WRAP, by_layer=True
        )
        ahead = jax.tree.map(
            lambda u, tau, before: dtypes.times(tau, u).astype(before.dtype),
            *(updates, trees.broadcast("staleness", tau, updates), state.ahead),
        )
        updates = jax.tree.map(
            lambda u, p, before: u + (p.astype(u.dtype) - before.astype(u.dtype)),
            *(updates, ahead, state.ahead),
        )
        return updates, CorrectLateUpdatesState(ahead)

    return transforms.stateful(CorrectLateUpdatesState, init_fn, update_fn)
