"""Arguments that are known real numbers, checked by name."""

from typing import Any

import jax
import numpy as np

from delayjax._src import base


def check_known(**values: Any) -> None:
    """Refuses values that `jax.jit` traces, with a TypeError that names them."""
    for name, value in values.items():
        if not all(map(base.is_concrete, jax.tree.leaves(value))):
            raise TypeError(
                f"`{name}` must be known, got {value}: `stability` is no JAX program,"
                " compute it outside of jit, grad and vmap."
            )


def check_number(name: str, value: Any, **range_of: Any) -> None:
    """`base.check_number` for a value that must be known."""
    check_known(**{name: value})
    base.check_number(name, value, **range_of)


def floats(name: str, values: Any) -> np.ndarray:
    """`base.as_reals` for values that must be known.

    Example:
        >>> floats("step", [1, 2])
        array([1., 2.])
    """
    check_known(**{name: values})
    return base.as_reals(name, values)
