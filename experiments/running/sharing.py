"""The shardings of a worker's parameters, and of leaves of their shapes."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

AXIS = "model"
"""The axis of a mesh over the devices of one worker."""

WHOLE_BELOW = 2**14
"""Each device has a leaf with fewer entries whole: sharding would save little.

It is at least the size below which an exchange joins leaves: a joined leaf is not
sharded.
"""

Sharding = Callable[[str, tuple[int, ...]], P]
"""(path of a parameter, as ['inner']['kernel'], its shape) -> its sharding."""


def by_largest(devices: int) -> Sharding:
    """Shards each parameter along its largest dimension that `devices` divides."""

    def sharding(path, shape):
        along = [i for i, size in enumerate(shape) if size % devices == 0]
        if not along or math.prod(shape) < WHOLE_BELOW:
            return P()
        largest = max(along, key=lambda i: shape[i])
        return P(*(None,) * largest, AXIS)

    return sharding


def specs(state: Any, params: Any, devices: int, sharding: Sharding) -> tuple[P, ...]:
    """The sharding of each leaf of a worker's state, in order.

    A leaf is sharded as a parameter if its path ends with the path of the parameter,
    and its last dimensions are the shape of the parameter, or of an equal share of it.
    All other leaves are whole on each device.

    Args:
        state: arrays or shapes.
        params: the parameters, [*shape] each.
        devices: the number of devices of one worker.
        sharding: gives the sharding of each parameter.

    Raises:
        ValueError: if `sharding` names another axis, or `devices` does not divide the
            dimension that it shards.
    """
    known = []
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        spec = sharding(name, leaf.shape)
        cut = [i for i, part in enumerate(spec) if part is not None]
        divided = all(i < leaf.ndim and leaf.shape[i] % devices == 0 for i in cut)
        if not divided or any(spec[i] != AXIS for i in cut) or len(cut) > 1:
            raise ValueError(
                f"`sharding` must shard one dimension over {AXIS!r}, of a size that"
                f" `model={devices}` divides, or none, got {spec} for {name or 'all'}"
                f" of shape {leaf.shape}."
            )
        known.append((path, leaf.shape, spec))

    def fits(part_shape, shape, spec):
        """Whether a part has this shape or a share of it, and can be sharded so."""
        parts = (*spec, *(None,) * (len(shape) - len(spec)))
        return len(part_shape) == len(shape) and all(
            here and whole % here == 0 and (part is None or here % devices == 0)
            for here, whole, part in zip(part_shape, shape, parts, strict=True)
        )

    def of_leaf(path, leaf):
        candidates = [
            (len(end), shape, spec)
            for end, shape, spec in known
            if path[max(0, len(path) - len(end)) :] == end
            and leaf.ndim >= len(shape)
            and fits(leaf.shape[leaf.ndim - len(shape) :], shape, spec)
        ]
        if not candidates:
            return P()
        _, shape, spec = max(candidates, key=lambda one: one[0])
        return P(*(None,) * (leaf.ndim - len(shape)), *spec) if any(spec) else P()

    return tuple(of_leaf(*one) for one in jax.tree.leaves_with_path(state))
