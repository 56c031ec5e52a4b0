"""A model in fragments, which are exchanged one after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import named_arrays, trees

Fragments = int | Callable[[str, Any], Any] | Any
"""See `outer`."""


class Split:
    """Cuts trees like the model into its fragments.

    A fragment is a tree of the model's structure. It has an `optax.MaskedNode` in place
    of a leaf in another fragment, and some layers of a leaf in several fragments.

    Attributes:
        count: F, the number of fragments.
    """

    def __init__(self, fragments: Fragments, model: Any):
        """Takes the argument `fragments` of `outer`, and arrays or their shapes."""
        self._structure = jax.tree.structure(model)
        self._numbers = _numbers(fragments, model)
        distinct = sorted({int(n) for leaf in self._numbers for n in leaf.ravel()})
        is_count = isinstance(fragments, int)
        # also of a model without leaves, such as Optax's placeholder
        self.count = fragments if is_count else max(len(distinct), 1)
        if distinct == list(range(self.count)) or not self._numbers:
            return
        if is_count:
            raise ValueError(
                "`fragments` must leave a leaf to each of the fragments, which have"
                f" about one size, got {fragments} for {len(self._numbers)} leaves:"
                " lower it, or number leaves or layers by a function of their path."
            )
        raise ValueError(
            "`fragments` must number the fragments 0, 1, ..., each with at least one"
            f" leaf or layer, got {distinct}."
        )

    def check(self, centers: Sequence[Any], model: Any) -> None:
        """Checks that a state's fragments have the shapes of these fragments."""
        for number, center in enumerate(centers):
            trees.check_same_types(
                f"`fragments` must cut fragment {number} as the state has it",
                *(center, self.cut(model, number)),
            )

    def cut(self, tree: Any, number: int) -> Any:
        """The fragment with this number; an empty tree is returned whole."""
        if self.count == 1 or not jax.tree.leaves(tree):
            return tree
        leaves = zip(jax.tree.leaves(tree), self._numbers, strict=True)
        return self._structure.unflatten(
            [_part(leaf, numbers, number) for leaf, numbers in leaves]
        )

    def replaced(self, tree: Any, number: int, fragment: Any) -> Any:
        """`tree` with `fragment` in place of the fragment with this number."""
        if self.count == 1 or not jax.tree.leaves(tree):
            return fragment
        parts = iter(jax.tree.leaves(fragment))
        leaves = zip(jax.tree.leaves(tree), self._numbers, strict=True)
        return self._structure.unflatten(
            [
                _with_part(leaf, numbers, number, parts) if number in numbers else leaf
                for leaf, numbers in leaves
            ]
        )


def _numbers(fragments: Fragments, model: Any) -> list[np.ndarray]:
    """The fragment of each leaf, [], or of its layers, [1, ..., 1, L]."""
    bare = named_arrays.unboxed(model)
    if isinstance(fragments, int):
        sizes = np.asarray([max(np.size(leaf), 1) for leaf in jax.tree.leaves(bare)])
        middles = sizes.cumsum() - sizes / 2
        numbers = (middles * fragments // max(sizes.sum(), 1)).astype(int)
        return [np.asarray(number) for number in numbers]
    return [
        _checked(answer, path, np.shape(leaf))
        for path, leaf, answer in trees.by_leaf("fragments", fragments, bare)
    ]


def _checked(answer: Any, path: Any, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.asarray(answer)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(
            f"`fragments` must be integers, got {answer!r} at {trees.path_name(path)}."
        )
    layers = numbers.shape[-1:]
    if numbers.ndim and (
        numbers.shape[:-1] != (1,) * (numbers.ndim - 1)
        or shape[numbers.ndim - 1 : numbers.ndim] != layers
    ):
        raise ValueError(
            "`fragments` must be one number for a leaf, or one for each of its layers,"
            f" [L] or [1, ..., L], got shape {list(numbers.shape)} for a leaf of shape"
            f" {list(shape)} at {trees.path_name(path)}."
        )
    return numbers


def _layers(numbers: np.ndarray, number: int) -> tuple[Any, ...]:
    """The index of a fragment's layers in a leaf."""
    return (slice(None),) * (numbers.ndim - 1) + (np.flatnonzero(numbers == number),)


def _part(leaf: Any, numbers: np.ndarray, number: int) -> Any:
    if number not in numbers:
        return optax.MaskedNode()
    return leaf[_layers(numbers, number)] if numbers.ndim else leaf


def _with_part(leaf: Any, numbers: np.ndarray, number: int, parts: Any) -> Any:
    part = next(parts)
    if not numbers.ndim:
        return part
    return jnp.asarray(leaf).at[_layers(numbers, number)].set(part)
