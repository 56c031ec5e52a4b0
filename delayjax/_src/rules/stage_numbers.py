"""Numbers for each leaf or layer, such as the delays of pipeline stages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, dtypes, named_arrays, trees
from delayjax._src.history import layers


def check(name: str, numbers: Any) -> Any:
    """The argument `name`, a tree of numbers and of `delays.Layers`, without boxes."""

    def checked(one):
        is_layers = isinstance(one, layers.Layers)
        return one if is_layers else checks.check_scalar(name, one)

    numbers = named_arrays.unboxed(numbers)
    return jax.tree.map(checked, numbers, is_leaf=trees.is_function)


def by_leaf(name: str, numbers: Any, like: Any) -> Any:
    """The number of each leaf of `like`, without boxes: real [], or [L, 1, ...].

    Raises:
        ValueError: if `numbers` is no prefix of `like`, or a leaf has another number of
            layers than its `Layers`.
    """
    bare = named_arrays.unboxed(like)

    def array(number, leaf):
        if isinstance(number, layers.Layers):
            number = layers.column(number, np.asarray(number.delays), leaf)
        return jnp.asarray(number, dtypes.real_dtype(leaf))

    owners = layers.owners(name, numbers, bare)
    return jax.tree.map(array, owners, bare, is_leaf=trees.is_function)
