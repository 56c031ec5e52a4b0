"""The learning rate above which a real loss is unstable under delay."""

from typing import Any

import jax
import jax.numpy as jnp

from delayjax._src.ground import kinds
from delayjax._src.stability.curvature import Loss, sharpness, widened
from delayjax._src.stability.dynamics import Criterion, Dynamics


def predict_step_limit(
    loss: Loss,
    params: Any,
    batch: Any,
    dynamics: Dynamics,
    *,
    criterion: Criterion = "mean_square",
) -> float:
    """The learning rate above which small changes at `params` grow under SGD.

        dynamics.step_limit() / lambda

    with lambda the largest eigenvalue of the Hessian at `params`. A network changes its
    lambda: take the smallest limit along a short run with a small step. Do not use it
    for Adam: coordinates with a tiny second moment, which grows at once, would set the
    limit. Measure Adam over a grid of learning rates.

    Args:
        loss: (params, batch) -> a scalar.
        params: a tree of real arrays.
        batch: the second argument of `loss`; the noise of small batches is not counted.
        dynamics: the delay, and the momentum and other options of the SGD.
        criterion: as in `Dynamics.step_limit`.

    Returns:
        float64. For several delays measure `sharpness` once: see `learning_rate_limit`.

    Example:
        >>> bowl = lambda x, _: (4.0 * x[0] ** 2 + x[1] ** 2) / 2
        >>> heavy = Dynamics(1, momentum=0.9)
        >>> round(predict_step_limit(bowl, jnp.ones(2), None, heavy), 6)
        0.025

    References:
        Cohen et al., arXiv:2103.00065.
    """
    curvature = sharpness(loss, params, batch)
    return learning_rate_limit(curvature, dynamics, criterion=criterion)


@kinds.checked
def learning_rate_limit(
    sharpness: kinds.PositiveFloat,
    dynamics: Dynamics,
    *,
    criterion: Criterion = "mean_square",
) -> float:
    """The learning rate above which a direction of this curvature may grow.

        SGD:   dynamics.step_limit() / lambda
        Adam:  the same / (1 - b1), with the momentum b1

    This function returns the limit of SGD. For Adam give `dynamics` the momentum b1,
    and divide the result by 1 - b1 yourself; lambda is the sharpness preconditioned by
    a constant second moment. Above its limit Adam does not diverge: oscillations
    increase the second moment, and lambda falls.

    Args:
        sharpness: lambda, positive; for Adam `sharpness(...,
            preconditioner=adam_preconditioner(v))`.
        dynamics: the delay and the options of the optimizer.
        criterion: as in `Dynamics.step_limit`.

    Example:
        >>> [round(learning_rate_limit(20.0, Dynamics(tau)), 4) for tau in (0, 1, 4)]
        [0.1, 0.05, 0.0174]

    References:
        Cohen et al. (adaptive gradient methods), arXiv:2207.14484; their 38/eta is
        tau = 0 and b1 = 0.9 here.
    """
    return dynamics.step_limit(criterion) / float(sharpness)


@kinds.checked
def adam_preconditioner(
    second_moment: Any,
    *,
    eps: kinds.NonNegativeFloat = 1e-8,
    eps_root: kinds.NonNegativeFloat = 0.0,
) -> Any:
    """The tree by which Adam divides gradients: sqrt(v + eps_root) + eps.

    Args:
        second_moment: v, a tree of means of squared gradients, without bias: `nu` of
            `optax.adam`'s state divided by 1 - b2^t.
        eps: as in `optax.adam`.
        eps_root: as in `optax.adam`.

    Example:
        >>> adam_preconditioner(jnp.array([4.0, 0.0]), eps=0.5).tolist()
        [2.5, 0.5]
    """
    moments = widened("second_moment", second_moment)
    return jax.tree.map(lambda v: jnp.sqrt(v + eps_root) + eps, moments)
