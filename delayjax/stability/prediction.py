"""The learning rate at which a real loss diverges under delay."""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax import base
from delayjax.stability.curvature import sharpness, widened
from delayjax.stability.limits import Criterion, step_limit
from delayjax.stability.recursion import Delay


def predict_step_limit(
    loss: Callable[[Any, Any], ArrayLike],
    params: Any,
    batch: Any,
    delay: Delay,
    optimizer: Callable[..., optax.GradientTransformation],
    *,
    second_moment: Any = None,
    modulation: Callable[[int], float] | None = None,
    criterion: Criterion = "mean",
    **options: Any,
) -> float:
    """The learning rate from which on training diverges at `params` under a delay.

    With lambda the largest eigenvalue of the Hessian there, and of D^{-1} H for Adam,
    D = sqrt(v) + eps,

        SGD with momentum:  step_limit(delay, momentum) / lambda
        Adam:               step_limit(delay, b1) / ((1 - b1) lambda)

    the latter as if v stood still, which b2 near 1 makes it. Where curvature still
    grows, as it does early in training until it is at the limit, the limit falls.

    Args:
        loss: (params, batch) -> a scalar.
        params: where, a tree of real arrays.
        batch: on what; the noise of small batches is left out.
        delay: in updates, an int or the probabilities of 0, 1, 2, ...
        optimizer: `optax.sgd` or `optax.adam` itself.
        second_moment: v of Adam, without bias, a tree like `params`; by default the
            square of the gradient, as at its first step.
        modulation: a law of `dj.modulation` behind the optimizer.
        criterion: as in `step_limit`.
        options: the optimizer's own, by their names in Optax: momentum, nesterov; b1,
            b2, eps, eps_root, nesterov.

    Returns:
        float64; `inf` where no curvature is positive. Costs a `sharpness`; for several
        delays take that once, and `learning_rate_limit` of each.

    Raises:
        TypeError: as `sharpness` does; or if `optimizer` has no such option, or is a
            transformation that was already built.
        ValueError: as `sharpness` and `step_limit` do; or if `optimizer` is another.

    Example:
        >>> def bowl(x, batch):
        ...     return (4.0 * x[0] ** 2 + x[1] ** 2) / 2
        >>> point = jnp.ones(2)
        >>> round(predict_step_limit(bowl, point, None, 1, optax.sgd), 6)
        0.25
        >>> round(predict_step_limit(bowl, point, None, 1, optax.sgd, momentum=0.9), 6)
        0.025
        >>> round(predict_step_limit(bowl, point, None, 1, optax.adam), 3)
        1.0

    References:
        Cohen et al., Gradient descent on neural networks typically occurs at the edge
        of stability, arXiv:2103.00065; Adaptive gradient methods at the edge of
        stability, arXiv:2207.14484, whose 38/eta is tau = 0 and b1 = 0.9 here.
    """
    rule = _rule(optimizer, options)
    divisor = None
    if rule.preconditioner is not None:
        if second_moment is None:
            gradient = jax.jit(jax.grad(loss))(widened(params), batch)
            second_moment = jax.tree.map(jnp.square, gradient)
        divisor = rule.preconditioner(second_moment)
    elif second_moment is not None:
        raise ValueError("`second_moment` is of Adam alone: leave it out.")
    curvature = sharpness(loss, params, batch, preconditioner=divisor)
    return learning_rate_limit(
        curvature,
        delay,
        optimizer,
        modulation=modulation,
        criterion=criterion,
        **options,
    )


def learning_rate_limit(
    sharpness: float,
    delay: Delay,
    optimizer: Callable[..., optax.GradientTransformation],
    *,
    modulation: Callable[[int], float] | None = None,
    criterion: Criterion = "mean",
    **options: Any,
) -> float:
    """`predict_step_limit` where the curvature is known.

    Args:
        sharpness: lambda; of Adam that of the preconditioned Hessian, `sharpness(...,
            preconditioner=adam_preconditioner(v))`.
        delay: in updates, an int or the probabilities of 0, 1, 2, ...
        optimizer: `optax.sgd` or `optax.adam` itself.
        modulation: a law of `dj.modulation` behind the optimizer.
        criterion: as in `step_limit`.
        options: the optimizer's own; see `predict_step_limit`.

    Returns:
        float64; `inf` where the curvature is not positive.

    Raises:
        TypeError, ValueError: as `predict_step_limit` does; or if `sharpness` is no
            finite number.

    Example:
        >>> [round(learning_rate_limit(20.0, tau, optax.sgd), 4) for tau in (0, 1, 4)]
        [0.1, 0.05, 0.0174]
        >>> round(learning_rate_limit(1.0, 0, optax.adam), 6)  # 2 (1 + b1) / (1 - b1)
        38.0
    """
    rule = _rule(optimizer, options)
    try:
        curvature = float(sharpness)
    except (TypeError, ValueError):
        raise TypeError(f"`sharpness` must be a number, got {sharpness!r}.") from None
    if not math.isfinite(curvature):
        raise ValueError(f"`sharpness` must be finite, got {curvature}.")
    limit = step_limit(
        delay,
        momentum=rule.momentum,
        nesterov=rule.nesterov,
        modulation=modulation,
        criterion=criterion,
    )
    return limit / (rule.gain * curvature) if curvature > 0 else math.inf


def adam_preconditioner(
    second_moment: Any, *, eps: float = 1e-8, eps_root: float = 0.0
) -> Any:
    """What Adam divides gradients by.

        D = sqrt(v + eps_root) + eps

    Args:
        second_moment: v, a tree of means of squared gradients, without bias: `nu` of
            `optax.adam`'s state over 1 - b2^t.
        eps: as of `optax.adam`.
        eps_root: likewise.

    Returns:
        A tree like `second_moment`, for `sharpness`.

    Raises:
        ValueError: if an `eps` is negative or not finite.

    Example:
        >>> adam_preconditioner(jnp.array([4.0, 0.0]), eps=0.5).tolist()
        [2.5, 0.5]
    """
    base.check_number("eps", eps)
    base.check_number("eps_root", eps_root)
    return jax.tree.map(lambda v: jnp.sqrt(v + eps_root) + eps, widened(second_moment))


# on the limit; b2 by how well the second moment may be taken to stand still
_BEARING = ("momentum", "nesterov", "b1", "b2", "eps", "eps_root")


class _Rule(NamedTuple):
    """An optimizer as `step_limit` knows it, x - eta gain * momentum(g / D)."""

    momentum: float
    nesterov: bool
    gain: float
    preconditioner: Callable[[Any], Any] | None  # second moment -> D; None is 1


def _rule(optimizer: Callable[..., Any], options: dict[str, Any]) -> _Rule:
    if isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            "`optimizer` must be optax.sgd or optax.adam itself, and its options"
            " further arguments, got a transformation, which does not tell what it is."
        )
    if optimizer not in (optax.sgd, optax.adam):
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise ValueError(
            f"`optimizer` must be optax.sgd or optax.adam, got {name}, whose limit has"
            " no formula: measure it over a grid of learning rates."
        )
    known = _options(optimizer, options)
    if optimizer is optax.sgd:
        return _Rule(known["momentum"] or 0.0, known["nesterov"], 1.0, None)

    def preconditioner(second_moment):
        return adam_preconditioner(
            second_moment, eps=known["eps"], eps_root=known["eps_root"]
        )

    # its momentum is a mean: what it moves by is (1 - b1) times the heavy ball's
    return _Rule(known["b1"], known["nesterov"], 1 - known["b1"], preconditioner)


def _options(optimizer: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """All that bear on the limit, by name; of others a TypeError."""
    all_of_them = inspect.signature(optimizer).parameters
    names = [name for name in all_of_them if name in _BEARING]
    for name in options:
        if name not in names:
            raise TypeError(
                f"`{optimizer.__name__}` has no option `{name}` that bears on its"
                f" limit, only {', '.join(names)}; the learning rate is the answer."
            )
    defaults = {name: all_of_them[name].default for name in names}
    return defaults | options
