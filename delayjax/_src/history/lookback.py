"""A history of gradients: each step pushes one and reads one of some age."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import (
    axes,
    checks,
    extras,
    named_arrays,
    trees,
)
from delayjax._src.ground.refusal import register_producer
from delayjax._src.history import delays
from delayjax._src.history import ring as rings


class Origin(NamedTuple):
    """The origin of a gradient, kept beside it in the history."""

    age: Any  # its staleness when `update` received it, int32 [] or one for each leaf
    value: Any  # the loss that came with it, or 0, float32 []
    params: Any  # the parameters at which it was taken; () without `keep_params`


@register_producer
class DelayedState(NamedTuple):
    """State of `delayed`."""

    staleness: Any  # handed on by the last update, in steps, int32 [] or a tree
    gradients: rings.Ring  # leaves [max_delay + 1, *shape]; None where max_delay is 0
    origins: rings.Ring  # of `Origin`, with the same depths
    inner_state: Any


Item = tuple[Any, Origin]
"""A gradient and its origin."""

Kept = tuple[rings.Ring, rings.Ring]
"""The rings of the gradients and of their origins."""


@dataclasses.dataclass(frozen=True)
class History:
    """The gradients of the last steps and their origins.

    Each leaf of a gradient has its own depth and age. A leaf with a depth of 0 is not
    kept: `read` returns the leaf that was pushed last.
    """

    storage: rings.Storage  # of the gradients
    max_delay: Any  # the largest age of each leaf: an int, or a prefix tree of ints
    one_age: bool  # whether all leaves that are kept are read at one age
    keep_params: bool
    axis_name: tuple[str, ...]

    @property
    def deepest(self) -> int:
        """The largest age of any leaf."""
        return max(jax.tree.leaves(self.max_delay), default=0)

    def init(self, params: Any, bounded_by: str) -> tuple[Any, Kept]:
        """The ages at the start, 0, and the empty history.

        An error names `bounded_by`, the argument that `max_delay` comes from.
        """

        def empty(storage, depths, part):
            bounds = self.deepest if self.one_age else depths
            capacity = jax.tree.map(lambda depth: depth + 1, bounds)
            return storage.init(without(part, depths), capacity)

        bounds = self.per_leaf(bounded_by, self._bounds, params)
        age = jax.tree.map(lambda _: jnp.zeros((), jnp.int32), bounds)
        loss = extras.as_loss(None)
        item = params, Origin(age, loss, params if self.keep_params else ())
        item = axes.vary(item, axis_name=self.axis_name)
        gradients, origins = map(empty, *self._places, item)
        return item[1].age, (gradients, origins)

    def ages(self, asked: Any, oldest: Any, like: Any) -> Any:
        """clip(asked, 0, min(oldest, max_delay)), int32 [] or one for each leaf."""
        return jax.tree.map(
            lambda asked, bound: delays.clip(asked, jnp.minimum(oldest, bound)),
            self.per_leaf("delay", asked, like),
            self.per_leaf("max_delay", self._bounds, like),
        )

    def push(self, kept: Kept, item: Item) -> Kept:
        """The history with `item` at age 0."""

        def push(storage, depths, ring, part):
            bounds = jax.tree.leaves(trees.broadcast("max_delay", depths, part))
            rings.check_depth(ring.slots, [bound for bound in bounds if bound > 0])
            return storage.push(ring, without(part, depths))

        gradients, origins = map(push, *self._places, kept, item)
        return gradients, origins

    def read(self, kept: Kept, ages: Any, newest: Item) -> Item:
        """The item of these ages, after `push` of the newest."""

        def read(storage, depths, ring, age, fresh):
            return filled(storage.read(ring, age, without(fresh, depths)), fresh)

        oldest = functools.reduce(jnp.maximum, jax.tree.leaves(ages), jnp.int32(0))
        both = self._of_both(ages, ages, oldest)
        gradient, origin = map(read, *self._places, kept, both, newest)
        return gradient, origin

    def per_leaf(self, name: str, value: Any, tree: Any) -> Any:
        """`value` if all leaves have one age, else a tree of a value for each leaf."""
        if self.one_age:
            return value
        return trees.broadcast(name, value, named_arrays.unboxed(tree))

    @property
    def _places(self) -> tuple[Any, Any]:
        """The storages and the depths of gradients and of origins."""
        storages = self.storage, self.storage.of_origins or rings.plain
        return storages, self._of_both(self.max_delay, self._bounds, self.deepest)

    @property
    def _bounds(self) -> Any:
        """The largest age that is read, of all leaves or of each leaf."""
        return self.deepest if self.one_age else self.max_delay

    def _of_both(self, leaves: Any, ages: Any, oldest: Any) -> tuple[Any, Any]:
        """The ages of a gradient and of its origin, whose loss has the age `oldest`."""
        return leaves, Origin(ages, oldest, leaves if self.keep_params else ())

    def check(self, kept: Kept, updates: Any, params: Any) -> None:
        """Checks gradients against the parameters, and rings against this history.

        `push` checks the shapes.
        """
        bare = named_arrays.unboxed((updates, updates if params is None else params))
        got, wanted = map(jax.tree.structure, bare)
        if got != wanted:
            raise ValueError(
                f"`updates` must have the structure of the parameters, {wanted}, got"
                f" {got}."
            )
        gradients, origins = kept
        was_kept = origins.slots is not None and jax.tree.leaves(origins.slots.params)
        is_kept = self.deepest and jax.tree.leaves(updates)
        if is_kept:
            checks.check_held("keep_params", self.keep_params, bool(was_kept))
        self._check_dtypes(gradients.slots, updates, params)

    def _check_dtypes(self, slots: Any, *like: Any) -> None:
        """Checks that slots have the dtype of the storage, or dtypes of an item."""
        held = {str(rings.dtype_of(x)) for x in jax.tree.leaves(slots)}
        kept = [without(item, self.max_delay) for item in like if item is not None]
        wanted = [{str(jnp.result_type(x)) for x in jax.tree.leaves(y)} for y in kept]
        if self.storage.dtype is not None:
            wanted = [{str(self.storage.dtype)}]
        # `push` refuses a state of another depth
        if held and wanted[0] and held not in wanted:
            raise ValueError(
                f"`history` keeps {' and '.join(sorted(wanted[0]))}, but the history in"
                f" the state holds {' and '.join(sorted(held))}: convert it with"
                " resize_history(state, tx.init(params))."
            )


def filled(late: Any, fresh: Any) -> Any:
    """`late`, with the leaves of `fresh` where it has None."""
    return jax.tree.map(
        lambda new, old: new if old is None else old,
        *(fresh, late),
        is_leaf=named_arrays.is_box,
    )


def trained(frozen: Any, tree: Any) -> Any:
    """Gradients or updates, with zeros for `frozen` leaves."""
    if frozen is None:
        return tree
    zeros = axes.typed_like(optax.tree.zeros_like(tree), tree)
    is_frozen = trees.chosen("frozen", frozen, named_arrays.unboxed(tree))
    parts = tree, zeros, is_frozen
    return rings.map_leaves(lambda x, zero, off: zero if off else x, *parts)


def depths_of(frozen: Any, max_delay: Any, tree: Any) -> Any:
    """`max_delay` of each leaf of a tree, and 0 for `frozen` leaves."""
    if frozen is None:
        return max_delay
    bare = named_arrays.unboxed(tree)
    bounds = trees.broadcast("max_delay", max_delay, bare)
    is_frozen = trees.chosen("frozen", frozen, bare)
    return jax.tree.map(lambda off, bound: 0 if off else bound, is_frozen, bounds)


def without(tree: Any, depths: Any) -> Any:
    """`tree` with None in place of leaves that are never late."""
    return jax.tree.map(
        lambda node, depth: node if any(jax.tree.leaves(depth)) else None,
        *(tree, trees.broadcast("max_delay", depths, tree)),
        is_leaf=named_arrays.is_box,
    )
