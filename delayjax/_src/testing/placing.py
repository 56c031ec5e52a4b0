"""How the leaves of a tree lie on the devices of a mesh."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from delayjax._src.testing.report import BrokenError, UncheckedError


def mesh_of(
    params: Any, devices: Sequence[Any], axis_type: AxisType
) -> tuple[Mesh, Any]:
    """The largest mesh that divides a leaf, and how the leaves lie on it."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    sizes = {size for shape in shapes for size in shape}
    for count in range(len(devices), 1, -1):
        if any(size and size % count == 0 for size in sizes):
            break
    else:
        if len(devices) < 2:
            raise UncheckedError("needs several devices, here is 1")
        raise UncheckedError("no dimension of a leaf is a multiple of the devices")
    mesh = Mesh(np.asarray(devices[:count]), ("data",), axis_types=(axis_type,))

    def spec(leaf):
        shape = jnp.shape(leaf)
        at = [i for i, size in enumerate(shape) if size and size % count == 0][:1]
        return P(*("data" if i in at else None for i in range(len(shape))))

    return mesh, jax.tree.map(spec, params)


def shard(leaf: Any) -> list[int]:
    """The shape of the part of an array that a device holds."""
    return list(leaf.sharding.shard_shape(leaf.shape))


def check_parts(name: str, tree: Any, params: Any) -> None:
    """Checks that leaves that belong to a parameter are sharded as the parameter.

    Such a leaf, or an entry of a stack, has the parameter's shape. Its path ends as the
    parameter's path, or the shape has two dimensions or more.
    """
    for place, param in jax.tree.leaves_with_path(params):
        suffix, shape = jax.tree_util.keystr(place), param.shape
        if shard(param) == list(shape):
            continue
        for path, leaf in jax.tree.leaves_with_path(tree):
            front = leaf.ndim - len(shape)
            named = jax.tree_util.keystr(path)
            belongs = named.endswith(suffix) or len(shape) > 1
            belongs &= jnp.issubdtype(leaf.dtype, jnp.inexact)  # no ages of gradients
            if front < 0 or leaf.shape[front:] != shape or not belongs:
                continue
            if shard(leaf)[front:] != shard(param):
                raise BrokenError(
                    f"`{name}{named}` has {shard(leaf)} of its {list(leaf.shape)} on a"
                    f" device, but the parameter {suffix} of shape {list(shape)} has"
                    f" {shard(param)}."
                )
