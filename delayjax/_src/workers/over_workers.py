"""A step of one worker as a step of all workers."""

import functools
from typing import Any

import jax

from delayjax._src.ground import shardings
from delayjax._src.workers.state import Axes, Step, each


def of_part(step: Step, axes: Axes, names: tuple[str, ...]) -> Step:
    """`step` for a state and a batch with a leading 1 for each axis of the workers."""

    def of_one(state, batch):
        state = each(
            lambda leaf, leaf_axes: leaf.squeeze(first(leaf_axes)), state, axes
        )
        batch = jax.tree.map(lambda leaf: leaf.squeeze(first(names)), batch)
        return step(state, batch)

    return of_one


def first(axes: Any) -> tuple[int, ...]:
    """The dimensions in front, one for each axis."""
    return tuple(range(len(axes)))


def by_vmap(
    step: Step,
    counts: dict[str, int],
    differing: Axes,
    metrics: Any,
    specs: shardings.Specs,
    state: Any,
    batch: Any,
) -> tuple[Any, Any]:
    """The state and the metrics of all workers after a step, by `vmap`.

    Args:
        step: the step of one worker.
        counts: the number of workers along each axis.
        differing: the axes over which each leaf of the state differs.
        metrics: the axes over which each metric differs, a tree of `PartitionSpec`s.
        specs: how a worker's leaves are sharded over other axes.
        state: the state of all workers.
        batch: the batch of all workers.
    """
    leaves, structure = jax.tree.flatten(state)

    def of_one(leaves, batch):
        state = jax.tree.unflatten(structure, leaves)
        after, values = shardings.keeping(step, specs)(state, batch)
        return jax.tree.leaves(after), values

    def over(name, leaf_axes):
        return 0 if name in leaf_axes else None

    for name in reversed(counts):
        over_name = functools.partial(over, name)
        mapped_axes = [over_name(leaf_axes) for leaf_axes in differing]
        of_one = jax.vmap(
            of_one,
            in_axes=(mapped_axes, 0),
            out_axes=(mapped_axes, jax.tree.map(over_name, metrics)),
            axis_name=name,
            axis_size=counts[name],
        )
    after, values = of_one(leaves, batch)
    return jax.tree.unflatten(structure, after), values
