"""Versions of the parameters, in a ring or in slots."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.cluster.trace import Arrivals
from delayjax._src.history import ring as rings
from delayjax._src.history import slots


class Version(NamedTuple):
    """A version of the parameters in the history."""

    params: Any
    number: Any  # updates applied before it, int32 []; () if no rule refuses one


def empty(newest: Version, capacity: int, *, slotted: bool) -> rings.Ring:
    """An empty history of versions like `newest`, in a ring or in slots."""
    init = slots.init if slotted else rings.init
    return init(_kept(newest, capacity), capacity)


def push(
    kept: rings.Ring, newest: Version, capacity: int, slot: jax.Array
) -> rings.Ring:
    """The history with the newest version; in `slot`, if it has slots."""
    item = _kept(newest, capacity)
    if isinstance(kept.slots, slots.Numbered):
        return slots.push(kept, item, slot)
    return rings.push(kept, item)


def _kept(newest: Version, capacity: int) -> Version:
    """The part of a version that is kept: no part where no gradient is late."""
    return newest if capacity > 1 else Version((), ())


def places(kept: rings.Ring, arrivals: Arrivals) -> jax.Array:
    """The place of each gradient's version: its slot, or its age in a ring."""
    if isinstance(kept.slots, slots.Numbered):
        return arrivals.slot
    return jnp.maximum(arrivals.staleness, 0)


def read(
    kept: rings.Ring,
    newest: Version,
    place: jax.Array,
    key: jax.Array,
    *,
    capacity: int,
    spread: float,
) -> Version:
    """The version in a place; with a `spread`, of each coordinate a newer one or it."""
    if capacity == 1:
        return newest
    if isinstance(kept.slots, slots.Numbered):
        return slots.read(kept, place, newest)
    if spread == 0.0:
        return rings.read(kept, place, newest)
    least = place - jnp.floor(spread * place).astype(jnp.int32)
    ages = optax.tree.random_like(
        # another key than the user's
        jax.random.fold_in(key, 0x5EED),
        newest.params,
        lambda key, shape, dtype: jax.random.randint(key, shape, least, place + 1),
    )
    number = jax.tree.map(lambda _: place, newest.number)
    return rings.read(kept, Version(ages, number), newest)


def are_kept(kept: rings.Ring, arrivals: Arrivals, capacity: int) -> jax.Array:
    """Whether all versions of this row are in their places, bool []."""
    if isinstance(kept.slots, slots.Numbered):
        number = kept.pushed - arrivals.staleness  # 0 or less before the first version
        is_there = (kept.slots.number[arrivals.slot] == number) & (number > 0)
        return (is_there | (arrivals.staleness < 0)).all()
    oldest = jnp.minimum(kept.pushed - 1 - kept.first, capacity - 1)
    return (arrivals.staleness <= oldest).all()


def check_capacity(params: Any, kept: rings.Ring, capacity: int) -> None:
    """Checks that a state keeps at least `capacity` versions."""
    held = min(map(len, jax.tree.leaves(kept.slots)), default=1)
    if jax.tree.leaves(params) and held < capacity:
        raise ValueError(
            f"`state` must keep {capacity} versions, got one that keeps {held}: change"
            " it with resize_history(state, training.init(params, key, ...))."
        )
