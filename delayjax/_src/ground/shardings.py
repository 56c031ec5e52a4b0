"""The sharding of one worker's arrays over the other axes of a mesh."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

Specs = tuple[P, ...]
"""For each leaf, the spec of one worker's part over axes besides the workers' axes."""


def keeping(step: Callable[..., Any], specs: Specs) -> Callable[..., Any]:
    """A worker's step whose state keeps these specs; XLA would choose other specs.

    The state gets them before the step too, because in a loop XLA takes the specs of
    the first use.
    """

    def placed(state, batch):
        after, metrics = step(_kept(state, specs), batch)
        return _kept(after, specs), metrics

    return placed


def _kept(state: Any, specs: Specs) -> Any:
    """One worker's state, sharded over the mesh's other axes as the specs say."""
    mesh = jax.sharding.get_abstract_mesh()
    auto = mesh.auto_axes
    if not specs or not (auto or mesh.explicit_axes):
        return state

    def place(leaf, spec):
        if jax.typeof(leaf).memory_space == jax.memory.Space.Host:
            return leaf
        leaf = over_explicit(leaf, spec)
        if auto:
            leaf = jax.lax.with_sharding_constraint(leaf, over(auto, spec))
        return leaf

    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, map(place, leaves, specs))


def over_explicit(leaf: jax.Array, spec: P) -> jax.Array:
    """`leaf`, sharded over Explicit axes as a spec says."""
    held = jax.typeof(leaf).sharding
    explicit = held.mesh.explicit_axes
    if over(explicit, held.spec) == over(explicit, spec):
        return leaf
    return jax.sharding.reshard(leaf, NamedSharding(held.mesh, over(explicit, spec)))


def as_typed(leaf: jax.Array, like: Any) -> jax.Array:
    """`leaf`, sharded over Explicit axes as the type of `like` says."""
    return over_explicit(leaf, jax.typeof(like).sharding.spec)


def sharding_of(leaf: Any) -> Any:
    """The sharding of an array, or of its type; a tracer's type shows Explicit axes."""
    held = getattr(leaf, "sharding", None)
    return held if isinstance(held, NamedSharding) else jax.typeof(leaf).sharding


def spec_of(leaf: Any, axes: tuple[str, ...], mesh: AbstractMesh | None) -> P:
    """The spec of one worker's part over a mesh, or over any mesh; P() if not known."""
    is_traced = isinstance(leaf, jax.core.Tracer)  # its type does not show Auto axes
    array: Any = jax.typeof(leaf) if is_traced else leaf
    held = getattr(array, "sharding", None)
    is_known = isinstance(held, NamedSharding)
    if not is_known or mesh not in (None, held.mesh.abstract_mesh):
        return P()
    return P(*held.spec.partitions[len(axes) :])


def over(names: Iterable[str], spec: P) -> P:
    """A spec with only the axes in `names`."""
    parts = []
    for part in spec.partitions:
        axes = tuple(name for name in _axes_of(part) if name in names)
        parts.append(axes[0] if len(axes) == 1 else axes or None)
    while parts and parts[-1] is None:
        parts.pop()
    return P(*parts)


def without(names: Iterable[str], spec: P) -> P:
    """A spec without the axes in `names`."""
    return over(set(names_of(spec)) - set(names), spec)


def names_of(spec: P) -> tuple[str, ...]:
    """The axes in a spec."""
    return tuple(name for part in spec.partitions for name in _axes_of(part))


def auto_axes(mesh: AbstractMesh) -> AbstractMesh:
    """A mesh with Auto axes in place of Explicit axes."""
    auto = dict.fromkeys(mesh.explicit_axes, AxisType.Auto)
    return mesh.update_axis_types(auto)


def in_auto_axes(function: Callable[..., Any], args: Any, like: Any) -> Any:
    """`function(*args)`, in which XLA chooses shardings; results are sharded as `like`.

    It is for operations that refuse arrays which are sharded over Explicit axes, or
    that need the sharding of their result as an argument.
    """
    types = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding, like)
    if not any(sharding.mesh.explicit_axes for sharding in jax.tree.leaves(types)):
        return function(*args)
    return jax.sharding.auto_axes(function, out_sharding=types)(*args)


def _axes_of(part: Any) -> tuple[str, ...]:
    """The axes in one part of a spec."""
    return part if isinstance(part, tuple) else () if part is None else (part,)
