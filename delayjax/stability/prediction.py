"""The learning rate from which on a real loss is unstable under delay."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax import base
from delayjax.stability.curvature import sharpness, widened
from delayjax.stability.known import check_number
from delayjax.stability.limits import Criterion, step_limit
from delayjax.stability.recursion import Delay


def predict_step_limit(
    loss: Callable[[Any, Any], ArrayLike],
    params: Any,
    batch: Any,
    delay: Delay,
    optimizer: Callable[..., optax.GradientTransformation],
    *,
    modulation: Callable[[int], float] | None = None,
    criterion: Criterion = "mean_square",
    **options: Any,
) -> float:
    """The learning rate from which on small changes at `params` grow under delay.

        step_limit(delay, momentum) / lambda

    with lambda the largest eigenvalue of the Hessian at `params`. Training diverges
    there if lambda stays what it is: for least squares and other quadratics anywhere,
    for other losses near an optimum that they stay at.

    A network changes its lambda. The limit holds at this point and forecasts no run.
    Five perceptrons on digits, in full batches at delays of 0, 4 and 16, with and
    without momentum, trained at up to 0.4 to 5.8 times the limit of their first point,
    0.03 to 0.4 times that of a late one, and 1.5 to 9 times the smallest limit on the
    way. So take the smallest one along a short run with a small step.

    Adam is refused. Its limit would be that of coordinates whose second moment is tiny:
    these move first, by little, and their second moment grows at once. From the first
    point such a number was 38 to 430 times too low for the same perceptrons at delays
    of 4 and 16. With the second moment of a run it was 0.2 to 3 times the step of that
    run, whatever the step.

    Args:
        loss: (params, batch) -> a scalar.
        params: where, a tree of real arrays.
        batch: on what; the noise of small batches is left out.
        delay: in updates, an int or the probabilities of 0, 1, 2, ...
        optimizer: `optax.sgd` itself.
        modulation: a law of `dj.modulation` behind the optimizer.
        criterion: as in `step_limit`.
        options: the optimizer's own, by their names in Optax: momentum, nesterov.

    Returns:
        float64. Costs a `sharpness`; for several delays take that once, and
        `learning_rate_limit` of each.

    Raises:
        TypeError: as `sharpness` does; or if `optimizer` has no such option, or is a
            transformation that was already built.
        ValueError: as `sharpness` and `learning_rate_limit` do; or if `optimizer` is
            another, `optax.adam` too.

    Example:
        >>> def bowl(x, batch):
        ...     return (4.0 * x[0] ** 2 + x[1] ** 2) / 2
        >>> point = jnp.ones(2)
        >>> round(predict_step_limit(bowl, point, None, 1, optax.sgd), 6)
        0.25
        >>> round(predict_step_limit(bowl, point, None, 1, optax.sgd, momentum=0.9), 6)
        0.025

    References:
        Cohen et al., Gradient descent on neural networks typically occurs at the edge
        of stability, arXiv:2103.00065.
    """
    _rule(optimizer, options)
    if optimizer is optax.adam:
        raise ValueError(
            "`optimizer` must be optax.sgd, got adam, which diverges at no learning"
            " rate that the curvature tells: its second moment grows with every"
            " oscillation. Measure it over a grid of learning rates; the edge of"
            " stability at one second moment is learning_rate_limit of a sharpness"
            " with adam_preconditioner."
        )
    return learning_rate_limit(
        sharpness(loss, params, batch),
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
    criterion: Criterion = "mean_square",
    **options: Any,
) -> float:
    """The learning rate from which on a mode of this curvature may grow.

        SGD:   step_limit(delay, momentum) / lambda
        Adam:  step_limit(delay, b1) / ((1 - b1) lambda)

    For Adam it is the edge of stability: lambda is the sharpness preconditioned by a
    second moment that stands still. Training does not diverge there. The second moment
    grows with the oscillation, and lambda falls.

    Args:
        sharpness: lambda; for Adam `sharpness(..., preconditioner=
            adam_preconditioner(v))`.
        delay: in updates, an int or the probabilities of 0, 1, 2, ...
        optimizer: `optax.sgd` or `optax.adam` itself.
        modulation: a law of `dj.modulation` behind the optimizer.
        criterion: as in `step_limit`.
        options: the optimizer's own, by their names in Optax: momentum, nesterov; b1,
            nesterov.

    Returns:
        float64.

    Raises:
        TypeError: as `step_limit` does; or if `sharpness` is no number, `optimizer` has
            no such option, or is a transformation that was already built.
        ValueError: as `step_limit` does; or if `sharpness` is not positive and finite,
            or `optimizer` is another.

    Example:
        >>> [round(learning_rate_limit(20.0, tau, optax.sgd), 4) for tau in (0, 1, 4)]
        [0.1, 0.05, 0.0174]
        >>> round(learning_rate_limit(1.0, 0, optax.adam), 6)  # 2 (1 + b1) / (1 - b1)
        38.0

    References:
        Cohen et al., Adaptive gradient methods at the edge of stability,
        arXiv:2207.14484, whose 38/eta is tau = 0 and b1 = 0.9 here.
    """
    rule = _rule(optimizer, options)
    try:
        check_number("sharpness", sharpness, positive=True)
    except ValueError as error:
        raise ValueError(
            f"{error} It is the largest eigenvalue of a Hessian: where that is not"
            " positive, curvature limits no step, so measure it later in training."
        ) from None
    limit = step_limit(
        delay,
        momentum=rule.momentum,
        nesterov=rule.nesterov,
        modulation=modulation,
        criterion=criterion,
    )
    return limit / (rule.gain * float(sharpness))


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
        TypeError: if a leaf of `second_moment` is not real.
        ValueError: if it is empty, or one number is negative or not finite.

    Example:
        >>> adam_preconditioner(jnp.array([4.0, 0.0]), eps=0.5).tolist()
        [2.5, 0.5]
    """
    check_number("eps", eps)
    check_number("eps_root", eps_root)
    moments = widened("second_moment", second_moment)
    leaves = jax.tree.leaves(moments)
    if not leaves:
        raise ValueError("`second_moment` must hold at least one number, got none.")
    if all(map(base.is_concrete, leaves)):
        for leaf in leaves:
            if not (jnp.isfinite(leaf) & (leaf >= 0)).all():
                raise ValueError(
                    "`second_moment` must be finite and non-negative, got"
                    f" {float(leaf.min())} as the smallest number of a leaf."
                )
    return jax.tree.map(lambda v: jnp.sqrt(v + eps_root) + eps, moments)


_BEARING = ("momentum", "nesterov", "b1")  # on the limit


class _Rule(NamedTuple):
    """An optimizer as `step_limit` knows it, x - eta gain * momentum(g / D)."""

    momentum: float
    nesterov: bool
    gain: float


def _rule(optimizer: Callable[..., Any], options: dict[str, Any]) -> _Rule:
    if isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            "`optimizer` must be optax.sgd or optax.adam itself, and its options"
            " further arguments, got a transformation, which does not tell what it is."
        )
    if optimizer is not optax.sgd and optimizer is not optax.adam:
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise ValueError(
            f"`optimizer` must be optax.sgd or optax.adam, got {name}, whose limit has"
            " no formula: measure it over a grid of learning rates."
        )
    known = _options(optimizer, options)
    name = "momentum" if optimizer is optax.sgd else "b1"
    momentum = 0.0 if known[name] is None else known[name]
    check_number(name, momentum, below=1)
    # Adam's is a mean: what it moves by is (1 - b1) times the heavy ball's
    gain = 1.0 if optimizer is optax.sgd else 1 - float(momentum)
    return _Rule(float(momentum), known["nesterov"], gain)


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
