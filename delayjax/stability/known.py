"""Arguments that are known real numbers, checked by name."""

from typing import Any

import jax
import numpy as np

from delayjax import base


def check_known(**values: Any) -> None:
    """Refuses what `jax.jit` knows only when it runs.

    Raises:
        TypeError: if a value is traced, naming it.
    """
    for name, value in values.items():
        if not all(map(base.is_concrete, jax.tree.leaves(value))):
            raise TypeError(
                f"`{name}` must be known, got {value}: what is said of stability is no"
                " JAX program, compute it outside of jit, grad and vmap."
            )


def check_number(name: str, value: Any, **range_of: Any) -> None:
    """As `base.check_number`, of a value that is known.

    Raises:
        TypeError, ValueError: as `check_known` and `base.check_number` do.
    """
    check_known(**{name: value})
    base.check_number(name, value, **range_of)


def floats(name: str, values: Any) -> np.ndarray:
    """`values` as float64, of any shape.

    Raises:
        TypeError: if they are traced, ragged or no real numbers.

    Example:
        >>> floats("step", [1, 2])
        array([1., 2.])
    """
    check_known(**{name: values})
    return base.as_reals(name, values)
