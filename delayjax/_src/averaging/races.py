"""Workers read and write a center, with a lock or without a lock."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging import visits
from delayjax._src.ground import kinds
from delayjax._src.history import ring


class Locked(NamedTuple):
    """A center with a lock: one worker at a time reads it and writes it."""

    def begin(self, center: Any) -> Any:
        """The versions that are kept at the start: no version."""
        return ()

    def read(self, center: Any, versions: Any, step: Any, worker: jax.Array) -> Any:
        """The center as a worker reads it."""
        return center

    def land(self, moved: Any, step: Any, worker: jax.Array) -> Any:
        """The change that a worker adds to the center."""
        return moved

    def record(self, center: Any, versions: Any, there: Any) -> Any:
        """The versions after a visit."""
        return versions


class Races(NamedTuple):
    """A center without a lock: its old reads and lost writes; see `races`."""

    max_age: int  # largest age of a read, in visits
    # (step int32 [], worker int32 [], tree) -> a tree like it: the age at which each
    # coordinate is read, int32, and whether the write of each coordinate is lost, bool
    ages: Callable[[jax.Array, jax.Array, Any], Any]
    lost: Callable[[jax.Array, jax.Array, Any], Any]

    def begin(self, center: Any) -> Any:
        """The ring of the center's versions at the start."""
        return ring.push(ring.init(center, self.max_age + 1), center)

    def read(self, center: Any, versions: Any, step: Any, worker: jax.Array) -> Any:
        """The center as a worker reads it: each coordinate from some version."""
        drawn = self.ages(step, worker, center)
        ages = jax.tree.map(lambda age: jnp.minimum(age, versions.pushed - 1), drawn)
        return ring.read(versions, ages, center)

    def land(self, moved: Any, step: Any, worker: jax.Array) -> Any:
        """The change that a worker adds to the center, zero where its write is lost."""
        lost = self.lost(step, worker, moved)
        return jax.tree.map(lambda d, gone: jnp.where(gone, 0, d), moved, lost)

    def record(self, center: Any, versions: Any, there: Any) -> Any:
        """The versions after a visit that made `center`; unchanged if not `there`."""
        # a select would copy the ring; without a visit the slot's content is rewritten
        oldest = ring.read(versions, self.max_age, center)
        after = ring.push(versions, optax.tree.where(there, center, oldest))
        return after._replace(pushed=versions.pushed + there)


@kinds.checked
def races(
    key: kinds.Key, max_age: kinds.NonNegativeInt, *, lost: kinds.Share = 0.0
) -> Races:
    """The `lock_free` of `easgd` and `downpour`: random ages of reads, lost writes.

        xc_read = each coordinate of xc as it was a(coordinate) visits ago,
                  a uniform on 0, ..., max_age
        xc     <- xc + d for each coordinate whose write is not lost

    Here d is the spring's pull in `easgd` (EA-wild) and the push in `downpour` (Hogwild
    SGD). A worker does not notice that its write is lost.

    Args:
        key: a PRNG key; each draw depends on step, worker and coordinate.
        max_age: the largest age of a read, in visits of any worker, at least 0; about
            P - 1 if all workers are equally fast. Static.
        lost: the probability that the write of a coordinate is lost, in [0, 1). May be
            traced.

    Example:
        >>> wild = races(jax.random.key(0), 2, lost=0.5)
        >>> wild.ages(0, 0, jnp.zeros(6))
        Array([1, 0, 0, 1, 1, 0], dtype=int32)
        >>> wild.lost(0, 0, jnp.zeros(6))
        Array([False,  True,  True, False, False, False], dtype=bool)

    References:
        Niu et al. (Hogwild!), NIPS 2011, arXiv:1106.5730. Wongpanich, You and Demmel
        (EA-wild), HPC Asia 2020; a reconstruction.
    """

    def each(draw, event):
        def drawn(step, worker, tree):
            visit = jax.random.fold_in(jax.random.fold_in(key, step), worker)
            leaves, structure = jax.tree.flatten(tree)
            keys = jax.random.split(jax.random.fold_in(visit, event), len(leaves))
            return jax.tree.unflatten(structure, map(draw, keys, leaves))

        return drawn

    def age(key, leaf):
        return jax.random.randint(key, leaf.shape, 0, max_age + 1, jnp.int32)

    def is_lost(key, leaf):
        return jax.random.uniform(key, leaf.shape, jnp.float32) < lost

    return Races(max_age, ages=each(age, 0), lost=each(is_lost, 1))


def access_to_center(
    lock_free: Races | None, order: visits.ArrivalOrder | None
) -> Races | Locked:
    """How workers read and write the center; without a lock they need an order."""
    if lock_free is None:
        return Locked()
    if order is None:
        raise ValueError("`order` must be given with `lock_free`, got None.")
    return lock_free
