"""The state of all workers; leaves that are the same on all workers are held once."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, checks, donation, shardings

Step = Callable[[Any, Any], tuple[Any, Any]]
"""One worker's step, (state, batch) -> (state, metrics)."""

Axes = tuple[tuple[str, ...], ...]
"""For each leaf of a tree, in order, the workers' axes over which it differs."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WorkerState:
    """The state of all workers. A leaf that is the same on all is held once."""

    state: Any  # leaves [*shape], or [workers, *shape] where workers differ
    axes: Axes = dataclasses.field(metadata={"static": True})  # () where shared
    # the sharding of the leaves that `init` got, P() if not sharded; () if not known
    specs: shardings.Specs = dataclasses.field(default=(), metadata={"static": True})

    def one(self, *, worker: int | Mapping[str, int] = 0) -> Any:
        """One worker's state, as a copy, so that the state may be donated later.

        Args:
            worker: the index of the worker, 0 .. P - 1; with several axes an index for
                each name.

        Example:
            >>> held = WorkerState((jnp.ones(()), jnp.arange(3)), ((), ("workers",)))
            >>> held.one(worker=2)
            (Array(1., dtype=float32), Array(2, dtype=int32))
        """

        def part(name, count):
            i = checks.known(worker[name] if isinstance(worker, Mapping) else worker)
            if not 0 <= i < count:  # JAX would return another worker
                raise ValueError(
                    f"`worker` must lie in 0 .. {count - 1} along {name!r}, got {i}."
                )
            return i

        def pick(leaf, axes):
            return donation.copied(leaf[tuple(map(part, axes, leaf.shape))])

        return each(pick, self.state, self.axes)

    def shardings(self, mesh: Mesh) -> "WorkerState":
        """The place of each leaf on a mesh, a `NamedSharding`.

        After `jax.device_put(held, held.shardings(mesh))` the `jit` of the step of
        `simulate` runs on all devices of the mesh. Take it under `jax.set_mesh(mesh)`:
        Explicit axes need it, and late sums are hidden behind computation only there.

        Args:
            mesh: devices, with the axes of the workers. Their sizes must divide the
                numbers of workers.

        Example:
            >>> from jax.sharding import AxisType
            >>> mesh = jax.make_mesh((1,), ("workers",), axis_types=(AxisType.Auto,))
            >>> held = WorkerState(jnp.ones((4, 3)), (("workers",),))
            >>> held.shardings(mesh).state.spec
            P('workers',)
        """
        axes.check_mesh(
            mesh, tuple({name for leaf_axes in self.axes for name in leaf_axes})
        )

        def place(leaf, axes, spec):
            spec = P(*axes, *shardings.over(mesh.shape, spec))
            if mesh.abstract_mesh.explicit_axes:  # the spec names all dimensions
                spec = P(*spec, *(None,) * (jnp.ndim(leaf) - len(spec)))
            kind = "pinned_host" if is_on_host(leaf) else None
            return NamedSharding(mesh, spec, memory_kind=kind)

        def spec(leaf, axes):
            return shardings.spec_of(leaf, axes, mesh.abstract_mesh)

        specs = self.specs or [*map(spec, jax.tree.leaves(self.state), self.axes)]
        places = each(place, self.state, self.axes, specs)
        return dataclasses.replace(self, state=places)


class Workers(NamedTuple):
    """P workers that take the same step, as two functions."""

    init: Callable[..., WorkerState]
    step: Callable[[WorkerState, Any], tuple[WorkerState, Any]]


def each(function: Callable[..., Any], tree: Any, *of_leaves: Sequence[Any]) -> Any:
    """`function` of each leaf and of its entries in other sequences."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, map(function, leaves, *of_leaves))


def is_on_host(leaf: Any) -> bool:
    """Whether an array lies in the host's memory."""
    sharding = getattr(leaf, "sharding", None)
    return getattr(sharding, "memory_kind", None) == "pinned_host"
