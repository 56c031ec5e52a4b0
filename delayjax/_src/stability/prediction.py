"""The learning rate above which a real loss is unstable under delay."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from delayjax._src import base
from delayjax._src.stability.curvature import sharpness, widened
from delayjax._src.stability.dynamics import Criterion, Dynamics


def predict_step_limit(
    loss: Callable[[Any, Any], ArrayLike],
    params: Any,
    batch: Any,
    dynamics: Dynamics,
    *,
    criterion: Criterion = "mean_square",
) -> float:
    """The learning rate above which small changes at `params` grow under SGD.

        dynamics.step_limit() / lambda

    with lambda the largest eigenvalue of the Hessian at `params`. Training diverges
    above this limit if lambda is constant: for quadratics anywhere, for other losses
    near an optimum. A network changes its lambda: take the smallest limit along a short
    run with a small step.

    Do not use it for Adam: coordinates with a tiny second moment would set the limit.
    They move first, by little, and their second moment grows at once. Measure Adam over
    a grid of learning rates.

    Args:
        loss: (params, batch) -> a scalar.
        params: a tree of real arrays.
        batch: the second argument of `loss`; the noise of small batches is not counted.
        dynamics: the delay, and the momentum and other options of the SGD.
        criterion: as in `Dynamics.step_limit`.

    Returns:
        float64. Costs one `sharpness`; for several delays measure it once and call
        `learning_rate_limit` for each.

    Example:
        >>> def bowl(x, batch):
        ...     return (4.0 * x[0] ** 2 + x[1] ** 2) / 2
        >>> point, heavy = jnp.ones(2), Dynamics(1, momentum=0.9)
        >>> round(predict_step_limit(bowl, point, None, heavy), 6)
        0.025

    References:
        Cohen et al., arXiv:2103.00065.
    """
    curvature = sharpness(loss, params, batch)
    return learning_rate_limit(curvature, dynamics, criterion=criterion)


def learning_rate_limit(
    sharpness: float, dynamics: Dynamics, *, criterion: Criterion = "mean_square"
) -> float:
    """The learning rate above which a direction of this curvature may grow.

        SGD:   dynamics.step_limit() / lambda
        Adam:  the same / (1 - b1), with the momentum b1

    For Adam lambda is the sharpness preconditioned by a constant second moment. Adam
    does not diverge at this edge of stability: the oscillation increases the second
    moment, and lambda falls.

    Args:
        sharpness: lambda, positive; for Adam `sharpness(...,
            preconditioner=adam_preconditioner(v))`.
        dynamics: the delay and the options of the optimizer.
        criterion: as in `Dynamics.step_limit`.

    Example:
        >>> [round(learning_rate_limit(20.0, Dynamics(tau)), 4) for tau in (0, 1, 4)]
        [0.1, 0.05, 0.0174]
        >>> b1 = 0.9  # of Adam: 2 (1 + b1) / (1 - b1)
        >>> round(learning_rate_limit(1.0, Dynamics(0, momentum=b1)) / (1 - b1), 6)
        38.0

    References:
        Cohen et al., Adaptive gradient methods at the edge of stability,
        arXiv:2207.14484; their 38/eta is tau = 0 and b1 = 0.9 here.
    """
    base.check_number("sharpness", sharpness, positive=True)
    return dynamics.step_limit(criterion) / float(sharpness)


def adam_preconditioner(
    second_moment: Any, *, eps: float = 1e-8, eps_root: float = 0.0
) -> Any:
    """The tree by which Adam divides gradients.

        D = sqrt(v + eps_root) + eps

    Args:
        second_moment: v, a tree of means of squared gradients, without bias: `nu` of
            `optax.adam`'s state divided by 1 - b2^t.
        eps: as in `optax.adam`.
        eps_root: as in `optax.adam`.

    Returns:
        A tree like `second_moment`, for `sharpness`.

    Example:
        >>> adam_preconditioner(jnp.array([4.0, 0.0]), eps=0.5).tolist()
        [2.5, 0.5]
    """
    base.check_number("eps", eps)
    base.check_number("eps_root", eps_root)
    moments = widened("second_moment", second_moment)
    return jax.tree.map(lambda v: jnp.sqrt(v + eps_root) + eps, moments)
