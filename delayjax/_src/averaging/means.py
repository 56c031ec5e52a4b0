"""The sum and the mean of all workers' models, or all the models, for each worker."""

from typing import Any

import jax
import optax

from delayjax._src.averaging.periods import Due, when
from delayjax._src.ground import axes, collectives, dtypes


def total(tree: Any, axis_name: axes.AxisName) -> Any:
    """The sum of each leaf over the workers."""
    return collectives.sums(tree, axis_name, collectives.BUCKET_BYTES)


def mean(tree: Any, axis_name: axes.AxisName | None) -> Any:
    """The mean of each leaf over the workers; without an axis there is one worker."""
    if axis_name is None:
        return tree
    workers = collectives.workers_of(axis_name)
    return jax.tree.map(lambda x: divided(x, workers), total(tree, axis_name))


def divided(leaf: jax.Array, number: int) -> jax.Array:
    """Leaf / number, computed in at least float32.

    A compiler multiplies by 1 / number instead. In float16 this factor is rounded, so
    that each mean of three models would be 2e-4 too small.
    """
    return (dtypes.wide(leaf) / number).astype(leaf.dtype)


def gathered(tree: Any, axis_name: str) -> Any:
    """The trees of all workers, leaves [P, *shape], the same on each worker."""
    # under `vmap` their type is "varying", although they have no batch axis
    manual = axis_name in jax.sharding.get_abstract_mesh().manual_axes
    to = "invarying" if manual else "varying"
    tree = axes.vary(tree, axis_name=axis_name)
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, to=to), tree)


def mean_beside(meanwhile: Any, tree: Any, axis_name: axes.AxisName) -> tuple[Any, Any]:
    """`mean(tree)`, and `meanwhile`, which is computed during the exchange."""
    workers = collectives.workers_of(axis_name)
    summed, meanwhile = collectives.sums_beside(
        meanwhile, tree, axis_name, collectives.BUCKET_BYTES
    )
    return jax.tree.map(lambda x: divided(x, workers), summed), meanwhile


def mean_when(due: Due, tree: Any, axis_name: axes.AxisName) -> Any:
    """`mean(tree)` where it is due, else zeros."""

    def mix(tree):
        return mean(tree, axis_name)

    return when(due, mix, tree, axis_name, optax.tree.zeros_like)
