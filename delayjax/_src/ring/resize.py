"""Histories of another depth, or without their slots in a checkpoint."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src import base, boxes
from delayjax._src.ring import ring as rings


def strip_history(state: Any) -> Any:
    """A state without the slots of its histories, for a small checkpoint.

    Args:
        state: the state of any transformation, a tree of states, or a `WorkerState`.

    Returns:
        The state with None for the slots of every ring. The clocks stay. To go on, call
        `resize_history(stripped, tx.init(params))`: the run continues at its step, and
        its history warms up again.

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
    """A state with histories of another depth: `max_delay` changed during training.

    Args:
        state: the state of a transformation, also a stripped one.
        like: a new state of the same transformation with the wanted depth, made by
            `init`. Only its rings are used.

    Returns:
        `state` with the rings of `like`, which hold the newest items that fit in both.
        A deeper history fills up first, as in the warm-up of `delayed`: "fresh" uses
        the items that are there, "skip" waits until the history is full, and "zeros"
        reads zeros. Costs one write and one read of each kept item.

    Raises:
        ValueError: if the two states differ in more than the depth of their rings, or
            `like` is not a new state (for example if the arguments are swapped).

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
            "`like` must be a state of the same transformation with another depth:"
            f" it is {wanted}, and `state` is {was}."
        )
    resized = [
        _resize(held, empty) if _is_ring(held) else held
        for held, empty in zip(old, new, strict=True)
    ]
    return jax.tree.unflatten(structure, resized)


def _resize(ring: rings.Ring, like: rings.Ring) -> rings.Ring:
    """The newest items of a history in another, empty history, with the boxes of that.

    Leaves may have leading axes (workers, cells). A leaf is None where nothing is kept.
    """
    empty = boxes.unboxed(like)
    _check_empty(empty)

    def boxed(slots, first):
        resized = rings.Ring(slots, pushed=ring.pushed, first=first)
        structure = jax.tree.structure(like, is_leaf=_is_none)
        leaves = jax.tree.leaves(resized, is_leaf=_is_none)
        return jax.tree.unflatten(structure, leaves)

    if ring.slots is None:  # stripped
        # `first` is a buffer of its own: a state that holds one twice can't be donated
        return boxed(empty.slots, jnp.copy(ring.pushed))
    lost = [ring.first]

    def fit(path, new, old):
        if old is None or new is None:
            lost.append(ring.pushed if new is not None else ring.first)
            return new
        sides = zip(new.shape, old.shape, strict=False)
        axes = [axis for axis, (n, m) in enumerate(sides) if n != m]
        if len(axes) > 1 or new.ndim != old.ndim or new.dtype != old.dtype:
            raise ValueError(
                f"`like` must differ in its depth alone: {base.path_name(path)} is"
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

        # an older item would overwrite a newer one: only so many fit
        return jax.lax.fori_loop(0, min(held, depth), keep, new)

    slots = jax.tree.map_with_path(
        fit, empty.slots, boxes.unboxed(ring.slots), is_leaf=_is_none
    )
    return boxed(slots, functools.reduce(jnp.maximum, lost))


def _check_empty(like: rings.Ring) -> None:
    is_used = base.is_concrete(like.pushed) and np.any(np.asarray(like.pushed) > 0)
    if like.slots is None or is_used:
        held = "no slots" if like.slots is None else f"{like.pushed} items pushed"
        raise ValueError(
            f"`like` must be a new state, as `init` makes it, got one with {held}: call"
            " resize_history(state, tx.init(params)), the old state first."
        )


def _is_none(node: Any) -> bool:
    return node is None


def _is_ring(node: Any) -> bool:
    return isinstance(node, rings.Ring)
