"""Histories of another depth, or left out of a checkpoint."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src import base, boxes
from delayjax._src.ring import ring as rings


def strip_history(state: Any) -> Any:
    """A state without what its histories hold, for a small checkpoint.

    Args:
        state: of any transformation, or a tree of them; also a `WorkerState`.

    Returns:
        The same with None for the slots of every ring; the clocks stay. Fill it up
        again with `resize_history(stripped, tx.init(params))`: the run goes on at its
        step, with a history that warms up anew.

    Example:
        >>> import delayjax as dj, optax
        >>> tx = dj.delayed(optax.sgd(0.1), 8)
        >>> stripped = strip_history(tx.init(jnp.zeros(1000)))
        >>> sum(leaf.nbytes for leaf in jax.tree.leaves(stripped)) < 100
        True
    """
    return jax.tree.map(
        lambda node: node._replace(slots=None) if _is_ring(node) else node,
        state,
        is_leaf=_is_ring,
    )


def resize_history(state: Any, like: Any) -> Any:
    """A state with histories of another depth: `max_delay` changed in mid-training.

    Args:
        state: of a transformation, also one that was stripped.
        like: the state of the same transformation with the depth that is wanted, as its
            `init` makes it: only its rings are used.

    Returns:
        `state` with the rings of `like`, and in them the newest items that both can
        hold. A deeper history begins with these and fills up: until then `delayed`
        behaves as in its warm-up, "fresh" takes what is there, "skip" waits until it is
        full, and "zeros" reads zeros.

    Raises:
        ValueError: if the two states differ in more than the depth of their rings, or
            `like` is not a new state (the arguments are swapped).

    Example:
        >>> import delayjax as dj, optax
        >>> params = jnp.zeros(3)
        >>> state = dj.delayed(optax.sgd(0.1), 2).init(params)
        >>> later = dj.delayed(optax.sgd(0.1), 4)
        >>> resize_history(state, later.init(params)).gradients.slots.shape
        (5, 3)
    """
    old = jax.tree.leaves(boxes.unboxed(state), is_leaf=_is_ring)
    new, structure = jax.tree.flatten(like, is_leaf=_is_ring)
    was, wanted = (
        jax.tree.structure(boxes.unboxed(tree), is_leaf=_is_ring)
        for tree in (state, like)
    )
    if was != wanted:
        raise ValueError(
            "`like` must be the state of the same transformation, with another depth at"
            f" most: it is {wanted}, and `state` is {was}."
        )
    resized = [
        resize(held, empty) if _is_ring(held) else held
        for held, empty in zip(old, new, strict=True)
    ]
    return jax.tree.unflatten(structure, resized)


def resize(ring: rings.Ring, like: rings.Ring) -> rings.Ring:
    """The newest items of one history in another, deeper or shallower.

    Args:
        ring: the history.
        like: an empty one of the wanted depth, of items of the same tree and shapes
            kept in the same way. Leaves may have leading axes (workers, cells).

    Returns:
        `like` with the items of `ring`, each at its age; the clock goes on. A leaf
        without slots in either (None) has none kept: then, and where the new history is
        deeper, `first` says from where on there are items in all of it; what is older
        reads as zeros. Costs the items that are kept, written and read once.

    Raises:
        ValueError: if the leaves differ in more than their depth, or `like` is not
            empty.

    Example:
        >>> item = jnp.zeros(())
        >>> ring = rings.init(item, 2)
        >>> for value in (1.0, 2.0, 3.0):
        ...     ring = rings.push(ring, item + value)
        >>> ring = resize(ring, rings.init(item, 4))
        >>> [float(rings.read(ring, age, item)) for age in (0, 1, 2)], int(ring.first)
        ([3.0, 2.0, 0.0], 1)
    """
    empty = boxes.unboxed(like)
    _check_empty(empty)
    ring = boxes.unboxed(ring)
    # `first` is a buffer of its own: a state that holds one twice can't be donated
    if ring.slots is None:  # stripped
        return _boxed_like(
            like, empty._replace(pushed=ring.pushed, first=jnp.copy(ring.pushed))
        )
    lost = [ring.first]

    def fit(path, new, old):
        if old is None or new is None:
            lost.append(ring.pushed if new is not None else ring.first)
            return new
        sides = zip(new.shape, old.shape, strict=False)
        axes = [axis for axis, (n, m) in enumerate(sides) if n != m]
        if len(axes) > 1 or new.ndim != old.ndim or new.dtype != old.dtype:
            where = jax.tree_util.keystr(path) or "the root"
            raise ValueError(
                f"`like` must differ in its depth alone: {where} is"
                f" {new.dtype}{list(new.shape)}, and was {old.dtype}{list(old.shape)}."
            )
        if not axes:
            return old
        axis = axes[0]
        depth, held = new.shape[axis], old.shape[axis]
        if depth > held:
            lost.append(ring.pushed - held)

        def keep(age, slots):
            place = ring.pushed - 1 - age
            item = jax.lax.dynamic_index_in_dim(old, place % held, axis, keepdims=True)
            return jax.lax.dynamic_update_slice_in_dim(slots, item, place % depth, axis)

        # older ages would find newer items in their slots: only what fits is kept
        return jax.lax.fori_loop(0, min(held, depth), keep, new)

    old = jax.tree.leaves(ring.slots, is_leaf=_is_none)
    new, structure = jax.tree.flatten_with_path(empty.slots, is_leaf=_is_none)
    if len(old) != len(new):
        raise ValueError(
            f"`like` must be a history of the same items, got {structure}, and was"
            f" {jax.tree.structure(ring.slots, is_leaf=_is_none)}."
        )
    slots = [fit(path, n, o) for (path, n), o in zip(new, old, strict=True)]
    return _boxed_like(
        like,
        rings.Ring(
            jax.tree.unflatten(structure, slots),
            pushed=ring.pushed,
            first=functools.reduce(jnp.maximum, lost),
        ),
    )


def _check_empty(like: rings.Ring) -> None:
    """Checks that a ring is as `init` makes it, where its values are known."""
    if like.slots is None or (
        base.is_concrete(like.pushed) and np.any(np.asarray(like.pushed) > 0)
    ):
        held = "no slots" if like.slots is None else f"{like.pushed} items pushed"
        raise ValueError(
            f"`like` must be a new state, as `init` makes it, got one with {held}: call"
            " resize_history(state, tx.init(params)), the old state first."
        )


def _boxed_like(like: rings.Ring, ring: rings.Ring) -> rings.Ring:
    """`ring` with the boxes of `like`."""
    structure = jax.tree.structure(like, is_leaf=_is_none)
    return jax.tree.unflatten(structure, jax.tree.leaves(ring, is_leaf=_is_none))


def _is_none(node: Any) -> bool:
    return node is None


def _is_ring(node: Any) -> bool:
    return isinstance(node, rings.Ring)
