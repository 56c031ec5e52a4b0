"""The learning rate above which a real loss is unstable under delay."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from delayjax._src.stability.curvature import sharpness, widened
from delayjax._src.stability.dynamics import Criterion, Dynamics
from delayjax._src.stability.known import check_number


def predict_step_limit(
    loss: Callable[[Any, Any], ArrayLike],
    params: Any,
    batch: Any,
    dynamics: Dynamics,
    *,
    criterion: Criterion = "mean_square",
) -> float:
    """The learning rate above which SGD makes small changes at `params` grow.

        dynamics.step_limit() / lambda

    with lambda the largest eigenvalue of the Hessian at `params`. Training diverges
    above it if lambda stays the same: for least squares and other quadratics anywhere,
    for other losses near an optimum.

    A network changes its lambda. The limit holds at this point and forecasts no run.
    Five perceptrons on digits, in full batches at delays of 0, 4 and 16, with and
    without momentum, trained at up to 0.4 to 5.8 times the limit of their first point,
    0.03 to 0.4 times the limit of a late point, and 1.5 to 9 times the smallest limit
    on the way. So take the smallest limit along a short run with a small step.

    It is not for Adam: coordinates with a tiny second moment would decide. They move
    first, by little, and their second moment grows at once. The number was 38 to 430
    times too low at the first point of the same perceptrons at delays of 4 and 16.
    Measure Adam over a grid of learning rates.

    Args:
        loss: (params, batch) -> a scalar.
        params: a tree of real arrays.
        batch: the second argument of `loss`; the noise of small batches is left out.
        dynamics: the delay, and the momentum and other options of the SGD.
        criterion: as in `Dynamics.step_limit`.

    Returns:
        float64. Costs a `sharpness`; for several delays measure it once and call
        `learning_rate_limit` for each.

    Raises:
        TypeError, ValueError: as `sharpness` and `learning_rate_limit` do.

    Example:
        >>> def bowl(x, batch):
        ...     return (4.0 * x[0] ** 2 + x[1] ** 2) / 2
        >>> point, heavy = jnp.ones(2), Dynamics(1, momentum=0.9)
        >>> round(predict_step_limit(bowl, point, None, heavy), 6)
        0.025

    References:
        Cohen et al., Gradient descent on neural networks typically occurs at the edge
        of stability, arXiv:2103.00065.
    """
    curvature = sharpness(loss, params, batch)
    return learning_rate_limit(curvature, dynamics, criterion=criterion)


def learning_rate_limit(
    sharpness: float, dynamics: Dynamics, *, criterion: Criterion = "mean_square"
) -> float:
    """The learning rate above which a direction of this curvature may grow.

        SGD:   dynamics.step_limit() / lambda
        Adam:  the same, over 1 - b1, with b1 as the momentum

    Adam's lambda is the sharpness preconditioned by a second moment that stands still.
    Training does not diverge at this edge of stability: the second moment grows with
    the oscillation, and lambda falls.

    Args:
        sharpness: lambda; for Adam `sharpness(..., preconditioner=
            adam_preconditioner(v))`.
        dynamics: the delay and the options of the optimizer.
        criterion: as in `Dynamics.step_limit`.

    Returns:
        float64.

    Raises:
        TypeError: if `sharpness` is no number.
        ValueError: if it is not positive and finite: where nothing curves upward there
            is no limit; or as `Dynamics.step_limit` does.

    Example:
        >>> [round(learning_rate_limit(20.0, Dynamics(tau)), 4) for tau in (0, 1, 4)]
        [0.1, 0.05, 0.0174]
        >>> b1 = 0.9  # of Adam: 2 (1 + b1) / (1 - b1)
        >>> round(learning_rate_limit(1.0, Dynamics(0, momentum=b1)) / (1 - b1), 6)
        38.0

    References:
        Cohen et al., Adaptive gradient methods at the edge of stability,
        arXiv:2207.14484, whose 38/eta is tau = 0 and b1 = 0.9 here.
    """
    check_number("sharpness", sharpness, positive=True)
    return dynamics.step_limit(criterion) / float(sharpness)


def adam_preconditioner(
    second_moment: Any, *, eps: float = 1e-8, eps_root: float = 0.0
) -> Any:
    """The tree by which Adam divides gradients.

        D = sqrt(v + eps_root) + eps

    Args:
        second_moment: v, a tree of means of squared gradients, without bias: `nu` of
            `optax.adam`'s state over 1 - b2^t.
        eps: as in `optax.adam`.
        eps_root: as in `optax.adam`.

    Returns:
        A tree like `second_moment`, for `sharpness`.

    Raises:
        TypeError: if a leaf of `second_moment` is not real.
        ValueError: if `eps` or `eps_root` is negative or not finite.

    Example:
        >>> adam_preconditioner(jnp.array([4.0, 0.0]), eps=0.5).tolist()
        [2.5, 0.5]
    """
    check_number("eps", eps)
    check_number("eps_root", eps_root)
    moments = widened("second_moment", second_moment)
    return jax.tree.map(lambda v: jnp.sqrt(v + eps_root) + eps, moments)
