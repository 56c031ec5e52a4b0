"""The mesh of devices that take the steps of workers."""

import collections
import math
from collections.abc import Mapping, Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from experiments.running import sharing

_SLICE = "slice_index"  # the attribute of a device that belongs to a slice

Axes = Mapping[str, int]
"""{name: size} of the workers' axes, the outermost first; {} for one worker.

With several axes the last counts fastest: worker (g, m) is worker g * members + m.
"""


def make_mesh(
    axes: Axes, *, there: Sequence[jax.Device] | None = None, model: int = 1
) -> Mesh:
    """A mesh with `model` devices for each worker, or for equally many workers.

    Devices of several slices are joined by the slow links of a data center. The mesh
    has them slice after slice: the first axis runs over slices, all other axes within a
    slice. If devices have no slices, a group consists of whole processes.

    Args:
        axes: the axes of the workers; the mesh has the same axes, followed by
            `sharing.AXIS` if a worker has several devices.
        there: devices to choose from; None for all that this program sees.
        model: the number of devices of one worker, which are neighbors.

    Raises:
        ValueError: if the devices do not divide the workers, leave a process without a
            device, or groups of workers do not fit the slices.
    """
    there = sorted(there or jax.devices(), key=_slice)
    workers = math.prod(axes.values())
    there, before = there[: workers * model], there
    idle = set(range(jax.process_count())) - {d.process_index for d in there}
    if idle:
        raise ValueError(
            f"`workers={workers}` leaves the processes {sorted(idle)} without"
            f" a device, of {len(before)} in all: start fewer, or take more workers."
        )
    count = len(there) // model
    if len(there) % model or workers % count:
        raise ValueError(
            f"`workers={workers}` must be a multiple of the {len(before)} devices over"
            f" `model={model}`, or no more: each `model` devices take the steps of"
            " equally many workers."
        )
    along, names = _shares(axes, count), tuple(axes)
    far, by_process = _far_apart(axes, there)
    if model > 1:
        along, far, names = (*along, model), (*far, 1), (*names, sharing.AXIS)
    kinds = (AxisType.Auto,) * len(names)
    if math.prod(far) == 1:
        return jax.make_mesh(along, names, axis_types=kinds, devices=there)
    near = tuple(of_all // of_far for of_all, of_far in zip(along, far, strict=True))
    mesh = mesh_utils.create_hybrid_device_mesh(
        near,
        far,
        there,
        process_is_granule=by_process,
        allow_split_physical_axes=True,  # needed if axes do not fit a torus
    )
    return Mesh(mesh, names, axis_types=kinds)


def _far_apart(axes: Axes, there: Sequence[jax.Device]) -> tuple[tuple[int, ...], bool]:
    """The number of slices along each axis; whether processes are the slices."""
    one = there[0]  # TPUs without slices are one slice
    by_process = len(axes) > 1 and not (one.platform == "tpu" or hasattr(one, _SLICE))
    slices = collections.Counter(
        device.process_index if by_process else _slice(device) for device in there
    )
    what = "processes" if by_process else "slices"
    groups = next(iter(axes.values()), 1)
    if groups % len(slices) and len(slices) % groups:
        raise ValueError(
            f"`groups={groups}` must be a multiple of the {len(slices)} {what}, or"
            f" divide them: a group is whole {what}, or a part of one."
        )
    return _shares(axes, len(slices)), by_process


def _shares(axes: Axes, count: int) -> tuple[int, ...]:
    """Divides `count` devices among the axes: as many as fit along the first axis."""
    sizes = []
    for size in axes.values():
        sizes.append(math.gcd(size, count))
        count //= sizes[-1]
    return tuple(sizes)


def _slice(device: jax.Device) -> int:
    return getattr(device, _SLICE, 0)
