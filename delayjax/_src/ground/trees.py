"""Checks that trees have the same types, prefixes of trees, and names of leaves."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import named_arrays


def broadcast(name: str, prefix: Any, tree: Any) -> Any:
    """`prefix` with one value for each leaf of `tree`; boxes in either are ignored."""
    bare, whole = named_arrays.unboxed((prefix, tree))
    leaves, wanted = jax.tree.flatten(whole)
    places = jax.tree.unflatten(wanted, list(range(len(leaves))))
    try:
        values, structure = jax.tree.flatten(_as_dicts(bare), is_leaf=is_function)
        parts = structure.flatten_up_to(_as_dicts(places))
    except ValueError as error:
        must = f"`{name}` must be one value or a prefix of the tree, got {bare!r}"
        raise ValueError(f"{must}: {error}") from error
    repeated: list[Any] = [None] * len(leaves)
    for value, part in zip(values, parts, strict=True):
        for place in jax.tree.leaves(part):
            repeated[place] = value
    return jax.tree.unflatten(jax.tree.structure(tree), repeated)


def _as_dicts(tree: Any) -> Any:
    """`tree` with dictionaries in place of other mappings, such as `nnx.State`."""

    def is_mapping(node):
        return isinstance(node, Mapping) and type(node) is not dict

    def as_dict(node):
        if not is_mapping(node):
            return node
        return {key: _as_dicts(value) for key, value in node.items()}

    return jax.tree.map(as_dict, tree, is_leaf=is_mapping)


def is_function(node: Any) -> bool:
    """Whether a node of a tree is a function. A callable model is a tree instead."""
    is_partial = isinstance(node, jax.tree_util.Partial)
    return is_partial or (callable(node) and jax.tree_util.all_leaves([node]))


def by_leaf(name: str, choice: Any, tree: Any) -> list[tuple[Any, Any, Any]]:
    """The path of each leaf of a tree, the leaf, and what the user chose for it.

    Args:
        name: the name of `choice` in errors.
        choice: a function of a leaf's path, as "blocks/attention/kernel", and the leaf;
            or a prefix tree.
        tree: without boxes.
    """
    named = jax.tree.leaves_with_path(tree)
    if is_function(choice):
        text = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
        return [(path, leaf, choice(text(path), leaf)) for path, leaf in named]
    answers = jax.tree.leaves(broadcast(name, choice, tree))
    return [(*leaf, answer) for leaf, answer in zip(named, answers, strict=True)]


def chosen(name: str, choice: Any, tree: Any) -> Any:
    """A tree of bools: whether each leaf of a tree is chosen; see `by_leaf`."""
    answers = by_leaf(name, choice, tree)
    for path, _, answer in answers:
        if type(answer) not in (bool, np.bool_):
            raise TypeError(
                f"`{name}` must say True or False of each leaf, got {answer!r} at"
                f" {path_name(path)}."
            )
    return jax.tree.unflatten(
        jax.tree.structure(tree), [bool(answer) for *_, answer in answers]
    )


def is_leaf(tree: Any) -> bool:
    """Whether a tree is one value. A function is one value."""
    return jax.tree_util.all_leaves([tree], is_leaf=is_function)


def path_name(path: Any) -> str:
    """The name of a leaf in an error."""
    return jax.tree_util.keystr(path) or "the root"


def masked_like(tree: Any, updates: Any) -> Any:
    """`tree` (an extra argument) masked as `optax.masked` masked the updates."""

    def is_masked(node):
        return isinstance(node, optax.MaskedNode)

    if not any(map(is_masked, jax.tree.leaves(updates, is_leaf=is_masked))):
        return tree
    return jax.tree.map(
        lambda update, part: update if is_masked(update) else part,
        *(updates, tree),
        is_leaf=is_masked,
    )


def check_gradients(updates: Any) -> None:
    """Checks that every gradient is floating point or complex."""
    for path, leaf in jax.tree.leaves_with_path(updates):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"`updates` must be floating-point gradients, got {dtype} at"
                f" {path_name(path)}: cast it, or leave it out with optax.masked."
            )


def check_numbers(name: str, tree: Any) -> None:
    """Checks that no leaf is a PRNG key, because keys cannot be added."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        if jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key):
            raise TypeError(
                f"`{name}` must hold numbers, got a PRNG key at {path_name(path)}."
            )


def check_same_types(rule: str, tree: Any, like: Any, *, dtypes: bool = True) -> None:
    """Checks that two trees have the same structure, shapes and, by default, dtypes."""

    def kinds(tree):
        return {
            path_name(path): f"{jnp.result_type(leaf) if dtypes else ''}"
            f"{list(jnp.shape(leaf))}"
            for path, leaf in jax.tree.leaves_with_path(tree)
        }

    got, wanted = kinds(tree), kinds(like)
    changed = sorted(dict(got.items() ^ wanted.items()))
    if changed or jax.tree.structure(tree) != jax.tree.structure(like):
        where = changed[0] if changed else "the root"
        raise TypeError(
            f"{rule}, got {got.get(where)} for {wanted.get(where)} at {where}."
        )


def check_same_shapes(rule: str, tree: Any, like: Any) -> None:
    """Checks that two trees have the same structure and shapes."""
    check_same_types(rule, tree, like, dtypes=False)
