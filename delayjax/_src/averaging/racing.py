"""A center that is read and written without a lock."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src import base
from delayjax._src.averaging import center as centers
from delayjax._src.ring import ring


class Races(NamedTuple):
    """What goes wrong at a center without a lock, as functions: see `races`."""

    max_age: int  # of what is read, in visits
    # (step int32 [], worker int32 [], tree) -> a tree of int32 like it: what age each
    # coordinate is read at, and of bool: whether its write is lost
    ages: Callable[[jax.Array, jax.Array, Any], Any]
    lost: Callable[[jax.Array, jax.Array, Any], Any]


def races(key: jax.Array, max_age: int, *, lost: ArrayLike = 0.0) -> Races:
    """What a worker reads and writes at a center that has no lock.

        xc_read = each coordinate of xc as it was a(coordinate) visits ago,
                  a uniform on 0, ..., max_age
        xc     <- xc + d where the write is not lost

    with d what the worker adds: the spring's pull in `easgd` (EA-wild), its push in
    `downpour` (Hogwild SGD). Others write while a worker reads, so what it reads mixes
    versions that never were there as one. A lost write is in the worker, or forgotten
    by it, and not in the center. At age 0, none lost, there is a lock.

    Args:
        key: a PRNG key; a visit draws from step, worker and coordinate.
        max_age: of what is read, in visits of any worker; about P - 1 where all are as
            fast. Static.
        lost: the probability that a coordinate's write is lost, in [0, 1). May be
            traced.

    Returns:
        The `lock_free` of `easgd` and `downpour`.

    Raises:
        ValueError: if `max_age` is negative or `lost` not in [0, 1).

    Example:
        >>> wild = races(jax.random.key(0), 2, lost=0.5)
        >>> wild.ages(0, 0, jnp.zeros(6))
        Array([1, 0, 0, 1, 1, 0], dtype=int32)
        >>> wild.lost(0, 0, jnp.zeros(6))
        Array([False,  True,  True, False, False, False], dtype=bool)

    References:
        Niu et al. (Hogwild!), NIPS 2011, arXiv:1106.5730, for the races. Wongpanich,
        You and Demmel (EA-wild), HPC Asia 2020; a reconstruction.
    """
    base.check_key("key", key)
    max_age = base.check_bound("max_age", max_age)
    base.check_number("lost", lost, below=1.0)

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


def check(name: str, lock_free: Any, order: centers.ArrivalOrder | None) -> None:
    """Checks that workers that race come in some order.

    Raises:
        ValueError: if there is no `order`.
    """
    if lock_free is not None and order is None:
        raise ValueError(
            f"`{name}` needs `order`: workers that meet the center all at once do not"
            " race. Pass order=averaging.first_come(seconds) or round_robin()."
        )


def begun(lock_free: Races | None, center: Any) -> Any:
    """The versions of a center before all visits: a ring, or () with a lock."""
    if lock_free is None:
        return ()
    return ring.push(ring.init(center, lock_free.max_age + 1), center)


def read(
    lock_free: Races | None, center: Any, versions: Any, step: Any, worker: jax.Array
) -> Any:
    """The center as a worker reads it: each coordinate as it was some visits ago."""
    if lock_free is None:
        return center
    ages = jax.tree.map(
        lambda age: jnp.minimum(age, versions.pushed - 1),
        lock_free.ages(step, worker, center),
    )
    return ring.read(versions, ages, center)


def landed(lock_free: Races | None, moved: Any, step: Any, worker: jax.Array) -> Any:
    """`moved`, zero where the worker's write of it is lost."""
    if lock_free is None:
        return moved
    return jax.tree.map(
        lambda d, lost: jnp.where(lost, 0, d),
        moved,
        lock_free.lost(step, worker, moved),
    )


def recorded(lock_free: Races | None, center: Any, versions: Any, there: Any) -> Any:
    """The versions after a visit that has made `center`, where there was one."""
    if lock_free is None:
        return versions
    # no select over the history: who is not there puts back what its slot held
    oldest = ring.read(versions, lock_free.max_age, center)
    after = ring.push(versions, optax.tree.where(there, center, oldest))
    return after._replace(pushed=versions.pushed + there)
