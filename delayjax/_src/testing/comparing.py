"""Two trees compared, in words: their types, their numbers, their memory."""

import collections
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import trees, xla
from delayjax._src.testing.report import BrokenError

# one unit in the last bit of a narrow number, a few times
_NARROW = {"bfloat16": 2.0**-6, "float16": 2.0**-8}


def check_types(
    name: str,
    before: Any,
    after: Any,
    *,
    was: str = "at first",
    when: str = "after a step",
) -> None:
    """Checks that a tree keeps its structure and the type of each leaf.

    A type is a dtype, a shape, whether it is weak, the workers' axes over which it
    varies, and on Explicit axes its sharding.
    """
    ours, theirs = _types(name, before), _types(name, after)
    for path in dict.fromkeys((*ours, *theirs)):
        if path not in theirs:
            raise BrokenError(f"`{name}{path}` is gone {when}.")
        if path not in ours:
            raise BrokenError(f"`{name}{path}` is new {when}.")
        if ours[path] != theirs[path]:
            old, new = _said(ours[path]), _said(theirs[path])
            raise BrokenError(f"`{name}{path}` is {old} {was}, and {new} {when}.")
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise BrokenError(f"`{name}` has another structure {when}.")


def _types(name: str, tree: Any) -> dict[str, Any]:
    def typed(path, leaf):
        try:
            return jax.typeof(leaf)
        except TypeError:
            raise BrokenError(
                f"`{name}{path}` is a {type(leaf).__name__}, no array.",
                "keep arrays alone in a state, and what is static in a closure.",
            ) from None

    leaves = jax.tree.leaves_with_path(tree)
    paths = [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
    return {path: typed(path, leaf) for path, leaf in paths}


def _said(aval: Any) -> str:
    weak = ", weakly typed" if getattr(aval, "weak_type", False) else ""
    return f"{aval.str_short(short_dtypes=False)}{weak}"


def check_close(
    ours: Any, theirs: Any, tolerance: float, which: str, params: Any = ()
) -> None:
    """Checks that two trees have the same numbers, up to the rounding of XLA's fusions.

    A tolerance of 0 asks for the same bits. A leaf whose path ends as the path of a
    parameter in bfloat16 or float16 may differ by some units in their last bit.
    """
    if jax.tree.structure(ours) != jax.tree.structure(theirs):
        raise BrokenError(f"{which} have other structures.")
    limits = {
        jax.tree_util.keystr(path): _NARROW[jnp.result_type(leaf).name]
        for path, leaf in jax.tree.leaves_with_path(params)
        if jnp.result_type(leaf).name in _NARROW
    }
    others = jax.tree.leaves(theirs)
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), others, strict=True):
        where = trees.path_name(path)
        if (jnp.shape(a), jnp.result_type(a)) != (jnp.shape(b), jnp.result_type(b)):
            raise BrokenError(
                f"{which} have other types at {where}: {jax.typeof(a)} and"
                f" {jax.typeof(b)}."
            )
        limits_here = [limit for end, limit in limits.items() if where.endswith(end)]
        a, b = numbers(a), numbers(b)
        apart = ~is_close(a, b, tolerance and max([tolerance, *limits_here]))
        if apart.any():
            x, y = (value[apart].ravel()[0] for value in (a, b))
            raise BrokenError(f"{which} differ at {where}: {x} and {y}.")


def is_close(a: np.ndarray, b: np.ndarray, tolerance: float) -> np.ndarray:
    """Where two arrays are close; integers must be equal."""
    if (kind := xla.FLOATS.get(a.dtype)) and tolerance:  # of a history
        return is_close(a.view(kind), b.view(kind), tolerance)
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return a == b
    limit = tolerance and max(tolerance, _NARROW.get(a.dtype.name, 0.0))
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    return np.isclose(
        a.astype(kind), b.astype(kind), rtol=limit, atol=limit, equal_nan=True
    )


def numbers(leaf: Any) -> np.ndarray:
    """The numbers of an array, also of a key."""
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def check_apart(held: Mapping[str, Any], when: str) -> None:
    """Checks that no two leaves lie in one buffer, within trees and between them."""
    places = collections.defaultdict(dict)
    for name, tree in held.items():
        for path, leaf in jax.tree.leaves_with_path(tree):
            if isinstance(leaf, jax.Array) and leaf.nbytes:
                for shard in leaf.addressable_shards:
                    place = shard.device, shard.data.unsafe_buffer_pointer()
                    places[place][f"`{name}{jax.tree_util.keystr(path)}`"] = None
    for names in places.values():
        if len(names) > 1:
            raise BrokenError(f"{' and '.join(names)} share one buffer {when}.")
