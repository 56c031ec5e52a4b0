"""Which devices take the steps of which workers, and how they lie to each other."""

import collections
import math
from collections.abc import Mapping, Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from experiments.running import sharing

_SLICE = "slice_index"  # of devices that know of slices

Axes = Mapping[str, int]
"""{name: size} of the workers' axes, the outermost first; {} of one worker.

Of several axes the last counts fastest: worker (g, m) is worker g * members + m.
"""


def of(
    axes: Axes, *, there: Sequence[jax.Device] | None = None, model: int = 1
) -> Mesh:
    """`model` devices for each worker, or for as many workers as divide all of them.

    Devices of several slices, between which data travels over the slow links of a data
    center, lie slice after slice: the first axis goes over slices, and within a slice
    all others. Where devices know of no slices, a group is one of whole processes.

    Args:
        axes: of the workers; the mesh has the same, and `sharing.AXIS` behind them
            if a worker has several devices.
        there: devices to choose from; None for all that this program sees.
        model: devices of one worker, neighbors.

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
    if len(there) % model:
        raise ValueError(
            f"`model={model}` must divide the {len(before)} devices: each worker is"
            " `model` devices. Start with other devices, or change `model`."
        )
    count = len(there) // model
    if workers % count and model > 1:
        raise ValueError(
            f"`workers={workers}` must be a multiple of {count}, the {len(before)}"
            f" devices over `model={model}`, or no more: each `model` devices take the"
            " steps of equally many workers."
        )
    if workers % count:
        raise ValueError(
            f"`workers={workers}` must be a multiple of the {len(before)}"
            " devices, or no more than these: each device takes the steps of equally"
            " many workers."
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
        allow_split_physical_axes=True,  # where axes do not fit a torus otherwise
    )
    return Mesh(mesh, names, axis_types=kinds)


def _far_apart(axes: Axes, there: Sequence[jax.Device]) -> tuple[tuple[int, ...], bool]:
    """Along each axis, how many slices there are; whether processes are the slices."""
    one = there[0]  # TPUs that know of no slices are one
    by_process = len(axes) > 1 and not (one.platform == "tpu" or hasattr(one, _SLICE))
    slices = collections.Counter(
        device.process_index if by_process else _slice(device) for device in there
    )
    what = "processes" if by_process else "slices"
    if len(set(slices.values())) > 1:
        raise ValueError(
            f"A mesh whose {what} differ in size cannot be made:"
            f" `workers={math.prod(axes.values())}` would take {dict(slices)} devices"
            f" of them. Start {what} of one size, or take workers for all devices."
        )
    groups = next(iter(axes.values()), 1)
    if groups % len(slices) and len(slices) % groups:
        raise ValueError(
            f"`groups={groups}` must be a multiple of the {len(slices)} {what}, or"
            f" divide them: a group is whole {what}, or a part of one."
        )
    return _shares(axes, len(slices)), by_process


def _shares(axes: Axes, count: int) -> tuple[int, ...]:
    """How many of `count` devices lie along each axis: of the first, most."""
    found = []
    for size in axes.values():
        found.append(math.gcd(size, count))
        count //= found[-1]
    return tuple(found)


def _slice(device: jax.Device) -> int:
    return getattr(device, _SLICE, 0)
