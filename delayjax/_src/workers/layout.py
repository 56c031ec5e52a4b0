"""The number of workers along each axis, and the sharding of their arrays."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import shardings, trees
from delayjax._src.workers.state import Axes, each


@dataclasses.dataclass(frozen=True)
class Layout:
    """The workers' axes, and the mesh on which they run."""

    counts: dict[str, int]  # of the workers along each axis
    mesh: Mesh | None = None  # None where the workers are simulated

    @property
    def names(self) -> tuple[str, ...]:
        """The workers' axes."""
        return tuple(self.counts)

    def sizes(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The number of workers along each of these axes."""
        return tuple(self.counts[name] for name in axes)

    def abstract_mesh(self) -> AbstractMesh:
        """A mesh with the workers' axes, and with other axes that the step may name."""
        if self.mesh is not None:
            return self.mesh.abstract_mesh
        mesh = jax.sharding.get_abstract_mesh()
        further = (*mesh.auto_axes, *mesh.explicit_axes)
        sizes = {name: mesh.shape[name] for name in further} | self.counts
        auto = (AxisType.Auto,) * len(sizes)
        return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=auto)

    def spec(self, leaf: Any, axes: tuple[str, ...] = ()) -> P:
        """How a worker's part is sharded over other axes, as far as it is known."""
        mesh = None if self.mesh is None else self.mesh.abstract_mesh
        return shardings.without(self.names, shardings.spec_of(leaf, axes, mesh))

    def typed(self, leaf: Any, axes: tuple[str, ...]) -> Any:
        """A leaf of all workers, with its sharding over Explicit axes in its type."""
        sharding = self._type(self.spec(leaf, axes), axes)
        return leaf if sharding is None else jax.sharding.reshard(leaf, sharding)

    def shapes_of_one(self, name: str, tree: Any, axes: Axes) -> Any:
        """Shapes of one worker's part of the argument `name`, a tree of all workers."""

        def part(path, leaf, leaf_axes):
            sizes, shape = self.sizes(leaf_axes), jnp.shape(leaf)
            if shape[: len(leaf_axes)] != sizes:
                raise ValueError(
                    f"`{name}` must have leading axes {sizes}, the workers along"
                    f" {leaf_axes}, got shape {shape} at {trees.path_name(path)}."
                )
            return _shaped(
                leaf, shape[len(leaf_axes) :], self._type(self.spec(leaf, leaf_axes))
            )

        leaves, structure = jax.tree.flatten_with_path(tree)
        parts = [
            part(*leaf, leaf_axes) for leaf, leaf_axes in zip(leaves, axes, strict=True)
        ]
        return jax.tree.unflatten(structure, parts)

    def shapes_of_all(self, tree: Any, axes: Axes, *, typed: bool = True) -> Any:
        """Shapes of all parts; if `typed`, with their sharding over Explicit axes."""

        def of_all(leaf, leaf_axes):
            sharding = self._type(self.spec(leaf), leaf_axes) if typed else None
            return _shaped(leaf, (*self.sizes(leaf_axes), *leaf.shape), sharding)

        return each(of_all, tree, axes)

    def _type(self, spec: P, axes: tuple[str, ...] = ()) -> NamedSharding | None:
        """The sharding over Explicit axes in a leaf's type; None without such axes."""
        mesh = self.mesh
        if mesh is None or not mesh.abstract_mesh.explicit_axes:
            return None
        explicit = mesh.abstract_mesh.explicit_axes
        return NamedSharding(mesh, shardings.over(explicit, P(*axes, *spec)))


def _shaped(
    leaf: Any, shape: tuple[int, ...], sharding: NamedSharding | None
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf), sharding=sharding)
