"""Probabilities of a staleness of 0, 1, 2, ... updates."""

import numpy as np
from jax.typing import ArrayLike

_ROUNDING = 1e-6  # of a sum of probabilities, as float32 leaves it


def probabilities(name: str, values: ArrayLike) -> np.ndarray:
    """`values` as probabilities, float64; they sum to 1, and the last is not zero.

    Args:
        name: of the argument.
        values: a row that sums to 1 within 1e-6.

    Raises:
        TypeError: if it holds anything but real numbers.
        ValueError: if it is no row, one is negative or not finite, or they do not sum
            to 1.

    Example:
        >>> probabilities("pmf", [0.5, 0.5, 0.0]).tolist()
        [0.5, 0.5]
    """
    try:
        given = np.asarray(values)
        if given.dtype.kind in "bcSUmM":
            raise TypeError
        chances = given.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"`{name}` must be a row of the probabilities of 0, 1, 2, ... updates, got"
            f" {values!r}."
        ) from None
    if chances.ndim != 1:
        raise ValueError(
            f"`{name}` must be a row of the probabilities of 0, 1, 2, ... updates, got"
            f" shape {chances.shape}."
        )
    sound = np.isfinite(chances) & (chances >= 0)
    if not sound.all():
        raise ValueError(
            f"`{name}` must hold finite, non-negative probabilities, got"
            f" {chances[~sound][0]}."
        )
    total = chances.sum()
    if abs(total - 1) > _ROUNDING:
        raise ValueError(
            f"`{name}` must hold probabilities that sum to 1, got {total:.9g}: lengthen"
            " a law that was cut off, or divide by the sum."
        )
    return np.trim_zeros(chances, "b") / total
