"""Changes the depth of a history, or leaves its slots out of a checkpoint."""

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import treedef_is_leaf

from delayjax._src.ground import checks, named_arrays, refusal, trees, xla
from delayjax._src.history import deliveries, lookback, shared_clocks
from delayjax._src.history import ring as rings
from delayjax._src.history.slots import Numbered


def strip_history(state: Any) -> Any:
    """A state without the slots of its histories, for a small checkpoint.

    Args:
        state: the state of any transformation, a tree of states, or a `WorkerState`.

    Returns:
        The state with None for the slots of every ring. To go on at the same step, with
        a history that warms up again, call `resize_history(stripped, tx.init(params))`.
        The gradients in flight of `delivered` are lost.

    Example:
        >>> import delayjax as dj, optax
        >>> tx = dj.delayed(optax.sgd(0.1), 8)
        >>> strip_history(tx.init(jnp.zeros(1000))).gradients.slots is None
        True
    """
    return jax.tree.map(
        lambda node: (
            node._replace(slots=None) if shared_clocks.is_history(node) else node
        ),
        state,
        is_leaf=shared_clocks.is_history,
    )


def resize_history(state: Any, like: Any, *, reset: Any = None) -> Any:
    """A state with histories of another depth or precision, changed during training.

    Args:
        state: the state of a transformation, or a stripped state.
        like: a new state with the wanted depth, from `init` of the same transformation,
            which may have another delay around it, or none. Only its histories are
            used, and the leaves that are `reset`.
        reset: the leaves that are replaced by leaves of `like`, which may have another
            shape: a function of a leaf's path in the state, as "inner_state/0/mu/embed"
            or "gradients/slots/embed", and the leaf. In a history the gradients of
            these leaves are zeros until new gradients arrive.

    Returns:
        `state` with the rings of `like`, which hold the newest items that fit in both,
        in the precision of `like` (`ring.cast`). The versions of `replay` keep their
        slots, so a run can go on along a trace that is longer or needs more versions.
        A deeper history fills up first, as in the warm-up of `delayed`. If the last
        gradient was refused, the oldest kept item is lost. Costs one write and one read
        of each kept item. All gradients in flight of `delivered` are kept.
        If the new history is shallower, a gradient that is due after its last step
        becomes due at its last step.
        Where only `like` has a producer of staleness (`delayed`), the history is empty,
        its clock begins at 0 and it warms up; the state of the optimizer goes on. Where
        only `state` has one, its gradients are dropped, and the optimizer goes on. In
        the same way a rule that refuses (`refusing`) is added, or is left out.

    Raises:
        ValueError: if `like` belongs to another transformation or to other parameters;
            if `reset` chooses a leaf of a history that keeps parameters or is sharded.

    Example:
        >>> import delayjax as dj, optax
        >>> two, four = (dj.delayed(optax.sgd(1), n).init(jnp.ones(3)) for n in (2, 4))
        >>> resize_history(two, four).gradients.slots.shape
        (5, 3)
        >>> plain = resize_history(two, optax.sgd(1).init(jnp.ones(3)))
        >>> resize_history(plain, four).gradients.slots.shape
        (5, 3)
    """

    def parts_of(tree):
        return jax.tree.flatten(tree, is_leaf=shared_clocks.is_history)

    given, bare = named_arrays.unboxed((state, like))
    state = _with_producers(given, bare)
    new, structure = parts_of(like)
    (_, was), (_, wanted) = parts_of(state), parts_of(bare)
    if was != wanted:
        raise _other_leaves(state, bare, shared_clocks.is_history)
    if reset is not None:
        state = _with_reset(state, bare, reset)
    old, _ = parts_of(state)
    _check_sizes(old, [named_arrays.unboxed(part) for part in new])
    resized = [
        _RESIZE[type(held)](held, empty) if type(held) in _RESIZE else held
        for held, empty in zip(old, new, strict=True)
    ]
    return jax.tree.unflatten(structure, resized)


def _with_producers(state: Any, like: Any) -> Any:
    """A state with the producers and rules that refuse of `like`, and no others."""

    def parts_of(node):
        return jax.tree.flatten(node, is_leaf=lambda part: part is not node)

    around, wanted_around = (list(_wrappers(tree)) for tree in (state, like))
    if around[:1] != wanted_around[:1]:
        if around and around[0] not in wanted_around:
            return _with_producers(state.inner_state, like)
        if wanted_around and wanted_around[0] not in around:
            inner_state = _with_producers(state, like.inner_state)
            # without the slots, so that an empty history is not copied
            return strip_history(like)._replace(inner_state=inner_state)
    (parts, kind), (others, wanted) = parts_of(state), parts_of(like)
    if kind != wanted or shared_clocks.is_history(state) or treedef_is_leaf(kind):
        return state
    return kind.unflatten(map(_with_producers, parts, others))


def _wrappers(state: Any) -> Iterator[type]:
    """The producers and rules that refuse around an optimizer, the outermost first."""
    while refusal.wraps_optimizer(state):
        yield type(state)
        state = state.inner_state


def _with_reset(state: Any, like: Any, reset: Any) -> Any:
    """A state in which the chosen leaves are replaced by the leaves of `like`."""
    taken, kept = [], []

    def begun(path, old, new, is_new):
        # a stripped subtree is kept
        paths = taken if is_new is True else kept
        paths.append(jax.tree_util.keystr(path, simple=True, separator="/"))
        return new if is_new is True else old

    chosen = trees.chosen("reset", reset, like)
    state = jax.tree.map_with_path(begun, state, like, chosen, is_leaf=_is_none)
    slots = [path for path in taken if "slots/" in path]
    is_joined = not slots and re.search(r"slots/\d+( |$)", " ".join(kept))
    if not taken or is_joined or re.search("slots/(params|item)", " ".join(slots)):
        raise ValueError(
            "`reset` must choose leaves by their paths in the state, and only gradients"
            f" in a history, got {taken}: or call strip_history(state) first."
        )
    return state


def _check_sizes(old: list[Any], new: list[Any]) -> None:
    """Checks that two states belong to the same parameters: only depths may differ.

    The slots of a gradient do not show which axis is the depth. The slots of its age,
    in the history that follows in a state of `delayed`, show it: they are as deep.
    """
    ages: Any = None
    for held, empty in reversed(list(zip(old, new, strict=True))):
        if not shared_clocks.is_history(held):
            _check_changes(empty, held, ())
        elif empty.slots is None or held.slots is None:  # stripped
            ages = None
        elif isinstance(held.slots, Numbered):
            numbers = empty.slots.number, held.slots.number
            _check_changes(empty.slots, held.slots, numbers)
        elif isinstance(held.slots, lookback.Origin):
            ages = empty.slots.age, held.slots.age
        elif ages is not None:
            _check_changes(empty.slots, held.slots, ages)
            ages = None


def _check_changes(new: Any, old: Any, depths: Any) -> None:
    """Checks that each leaf changed its shape as its leaf in `depths`, or not at all.

    `depths` has a new and an old tree, of as many leaves or of one; () if no leaf may
    change.
    """

    def changes(n, o):
        pairs = [] if n is None or o is None else zip(n.shape, o.shape, strict=False)
        return [(size, was) for size, was in pairs if size != was]

    def leaves(tree):
        return jax.tree.leaves_with_path(tree, is_leaf=_is_none)

    allowed = [[]]
    if depths:
        allowed = [
            changes(n, o) for (_, n), (_, o) in zip(*map(leaves, depths), strict=True)
        ]
    got, was = (jax.tree.structure(tree, is_leaf=_is_none) for tree in (new, old))
    if got != was:
        raise _other_leaves(old, new, _is_none)
    both = list(zip(leaves(new), leaves(old), strict=True))
    allowed *= len(both) if len(allowed) == 1 else 1
    for ((path, n), (_, o)), depth in zip(both, allowed, strict=False):
        if changes(n, o) not in ([], depth):
            raise _no_depth(path, n, o)


def _other_leaves(state: Any, like: Any, is_leaf: Callable[[Any], bool]) -> ValueError:
    """The error where two trees differ in structure. It names the first difference."""

    def paths(tree):
        leaves = jax.tree.leaves_with_path(tree, is_leaf=is_leaf)
        return [trees.path_name(path) for path, _ in leaves]

    both = itertools.zip_longest(paths(state), paths(like), fillvalue="nothing")
    pairs = ((was, got) for was, got in both if was != got)
    was, got = next(pairs, ("its containers", "other containers"))
    return ValueError(
        f"`like` must have the structure of `state`, got {got} in place of {was}: make"
        " it with `init` of the same optimizer and parameters. Only a producer of"
        " staleness or a rule that refuses may be added or left out."
    )


def _no_depth(path: Any, new: jax.Array, old: jax.Array) -> ValueError:
    return ValueError(
        f"`like` must differ in its depth and precision alone: {trees.path_name(path)}"
        f" is {new.dtype}{list(new.shape)}, and was {old.dtype}{list(old.shape)}."
    )


def _resize(ring: rings.Ring, like: rings.Ring) -> rings.Ring:
    """The newest items of a history, in the empty history `like`."""
    empty = named_arrays.unboxed(like)
    _check_new(empty.slots, ring.slots, empty.pushed)
    lost = [ring.first]

    def fit(path, new, old):
        if old is None or new is None:
            lost.append(ring.pushed if new is not None else ring.first)
            return new
        axis = _depth_axis(path, new, old)
        if axis is None:
            return _as_kept(old, new)
        depth, held = new.shape[axis], old.shape[axis]
        if isinstance(ring.slots, Numbered):  # each item stays where it is
            kept = jax.lax.slice_in_dim(old, 0, min(depth, held), axis=axis)
            kept = _as_kept(kept, new)
            return jax.lax.dynamic_update_slice_in_dim(new, kept, 0, axis)
        if depth > held:
            lost.append(ring.pushed - held)

        def keep(age, slots):
            place = ring.pushed - 1 - age
            item = jax.lax.dynamic_index_in_dim(old, place % held, axis, keepdims=True)
            item = _as_kept(item, slots)
            return jax.lax.dynamic_update_slice_in_dim(slots, item, place % depth, axis)

        # more items do not fit: an older item would overwrite a newer item. The slot of
        # a lost item may hold a refused gradient
        count = jnp.minimum(min(held, depth), ring.pushed - ring.first)
        return jax.lax.fori_loop(0, count, keep, new)

    if ring.slots is None:  # stripped
        # a copy, because a state that holds a buffer twice cannot be donated
        slots, first = empty.slots, jnp.copy(ring.pushed)
    else:
        slots = jax.tree.map_with_path(fit, empty.slots, ring.slots, is_leaf=_is_none)
        first = functools.reduce(jnp.maximum, lost)
    resized = rings.Ring(slots, ring.pushed, first)
    return _boxed(resized, like)


def _resize_calendar(
    calendar: deliveries.Calendar, like: deliveries.Calendar
) -> deliveries.Calendar:
    """The items of a calendar; items due after the new end are due at its last step."""
    empty = named_arrays.unboxed(like)
    _check_new(empty.slots, calendar.slots, empty.step)
    if calendar.slots is None:  # stripped
        return _boxed(empty._replace(step=calendar.step), like)
    _check_changes(empty.slots, calendar.slots, (empty.due, calendar.due))
    held, capacity = calendar.due.shape[-1], empty.due.shape[-1]

    def fit(path, new, old):
        if old is None or new is None:  # of a leaf that is frozen in one of both
            return new
        axis = _depth_axis(path, new, old)
        if axis is None:
            return old

        def move(ahead, slots):
            slot = (calendar.step + ahead) % held
            target = (calendar.step + jnp.minimum(ahead, capacity - 1)) % capacity
            item = jax.lax.dynamic_index_in_dim(old, slot, axis, keepdims=True)
            due = jax.lax.dynamic_index_in_dim(calendar.due, slot, -1, keepdims=False)
            due = due.reshape(*due.shape, *(1,) * (item.ndim - due.ndim))
            item = jnp.where(due > 0, item, jnp.zeros_like(item))
            item += jax.lax.dynamic_index_in_dim(slots, target, axis, keepdims=True)
            return jax.lax.dynamic_update_slice_in_dim(slots, item, target, axis)

        return jax.lax.fori_loop(0, held, move, new)

    slots = jax.tree.map_with_path(fit, empty.slots, calendar.slots, is_leaf=_is_none)
    due: Any = fit((), empty.due, calendar.due)
    return _boxed(deliveries.Calendar(slots, due, calendar.step), like)


_RESIZE = {rings.Ring: _resize, deliveries.Calendar: _resize_calendar}


def _check_new(slots: Any, old: Any, clock: Any) -> None:
    """Checks that a history is as `init` makes it."""
    # a single leaf with a depth of 0 has no slots either
    is_stripped = slots is None and old is not None and not trees.is_leaf(old)
    is_used = checks.is_concrete(clock) and np.any(np.asarray(clock) > 0)
    if is_stripped or is_used:
        held = "no slots" if is_stripped else f"{clock} items pushed"
        raise ValueError(
            f"`like` must be a new state, as `init` makes it, got one with {held}."
        )


def _as_kept(kept: jax.Array, like: jax.Array) -> jax.Array:
    """Slots in the precision of `like`."""
    if kept.dtype == like.dtype:
        return kept
    return xla.as_bits(xla.from_bits(kept, rings.dtype_of(kept)), like.dtype)


def _depth_axis(path: Any, new: jax.Array, old: jax.Array) -> int | None:
    """The axis along which the sizes of two histories' slots differ, or None."""
    sides = zip(new.shape, old.shape, strict=False)
    axes = [axis for axis, (n, m) in enumerate(sides) if n != m]
    floats = (jnp.issubdtype(rings.dtype_of(x), jnp.floating) for x in (new, old))
    fits = new.dtype == old.dtype or all(floats)
    if len(axes) > 1 or new.ndim != old.ndim or not fits:
        raise _no_depth(path, new, old)
    return axes[0] if axes else None


def _boxed(history: Any, like: Any) -> Any:
    """A history with its leaves in the boxes of `like`."""
    leaves = jax.tree.leaves(history, is_leaf=_is_none)
    return jax.tree.unflatten(jax.tree.structure(like, is_leaf=_is_none), leaves)


def _is_none(node: Any) -> bool:
    return node is None
