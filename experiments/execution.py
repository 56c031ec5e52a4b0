"""Where the workers of a program run: simulated on one device, or on several."""

import collections
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from experiments.pods import overlap

_SLICE = "slice_index"  # of devices that know of slices

Axes = Mapping[str, int]
"""{name: size} of the workers' axes, the outermost first; {} of one worker.

Of several axes the last counts fastest: worker (g, m) is worker g * members + m.
"""


class Execution(NamedTuple):
    """How a step is taken by all workers."""

    # state, given of one step, what is shared -> state as it is held
    init: Callable[[Any, Any, Any], Any]
    step: Callable[[Any, Any], tuple[Any, Any]]
    place: Callable[[Any], Any]  # what a chunk is given, [chunk, ...] -> on the devices
    shapes: Callable[[Any], Any]  # a state's shapes -> the same with their shardings
    everywhere: jax.sharding.Sharding  # of what every device, and process, has whole
    fed: jax.sharding.Sharding  # of what a chunk is given
    options: dict[str, bool | int]  # of the compiler


def of(
    axes: Axes,
    on_devices: bool,
    step: Callable[[Any, Any], tuple[Any, Any]],
    there: Sequence[jax.Device] | None = None,
) -> Execution:
    """How the workers along these axes take a step.

    One worker has no axis, and takes the step as it is. What several are given has
    their axes, too, behind the chunk's. Of devices there may be fewer than workers:
    each then takes the steps of several.

    Args:
        axes: of the workers.
        on_devices: whether devices are the workers; else they are simulated.
        step: (state, given) -> (state, metrics) of one worker.
        there: see `devices`.
    """
    if on_devices:
        mesh = devices(axes, there)
    if not axes or not on_devices:
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        place = functools.partial(jax.tree.map, functools.partial(_divided, axes))
        return Execution(*_simulated(step, axes), place, _on_one, here, here, {})
    on_mesh = (
        NamedSharding(mesh, P()),
        NamedSharding(mesh, P(None, *axes)),
        overlap.options(mesh.devices.flat[0].platform),
    )

    def place(given):
        return jax.tree.map(lambda leaf: _place(leaf, on_mesh[1], axes), given)

    def shapes(held):
        placed = held.shardings(mesh)
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=sharding
            ),
            held,
            placed,
        )

    if mesh.size == math.prod(axes.values()):
        each = dj.workers.run(step, mesh, axis_name=tuple(axes))
        return Execution(*each, place, shapes, *on_mesh)
    several = _simulated(step, axes)

    def init(state, given, shared):
        held = several.init(state, given, shared)
        return jax.device_put(held, held.shardings(mesh))

    return Execution(init, several.step, place, shapes, *on_mesh)


def devices(axes: Axes, there: Sequence[jax.Device] | None = None) -> Mesh:
    """A device for each worker, or as many devices as divide the workers.

    Devices of several slices, between which data travels over the slow links of a data
    center, lie slice after slice: the first axis goes over slices, and within a slice
    all others. Where devices know of no slices, a group is one of whole processes.

    Args:
        axes: of the workers; the mesh has the same.
        there: devices to choose from; None for all that this program sees.

    Raises:
        ValueError: if the devices do not divide the workers, leave a process without a
            device, or groups of workers do not fit the slices.
    """
    there = sorted(there or jax.devices(), key=_slice)
    workers = math.prod(axes.values())
    there, before = there[:workers], there
    idle = set(range(jax.process_count())) - {d.process_index for d in there}
    if idle:
        raise ValueError(
            f"`workers={workers}` leaves the processes {sorted(idle)} without"
            f" a device, of {len(before)} in all: start fewer, or take more workers."
        )
    if workers % len(there):
        raise ValueError(
            f"`workers={workers}` must be a multiple of the {len(before)}"
            " devices, or no more than these: each device takes the steps of equally"
            " many workers."
        )
    kinds = (AxisType.Auto,) * len(axes)
    along = _shares(axes, len(there))
    far, by_process = _far_apart(axes, there)
    if math.prod(far) == 1:
        return jax.make_mesh(along, tuple(axes), axis_types=kinds, devices=there)
    near = tuple(of_all // of_far for of_all, of_far in zip(along, far, strict=True))
    mesh = mesh_utils.create_hybrid_device_mesh(
        *(near, far, there),
        process_is_granule=by_process,
        allow_split_physical_axes=True,  # where axes do not fit a torus otherwise
    )
    return Mesh(mesh, tuple(axes), axis_types=kinds)


def held(state: Any) -> Any:
    """A state without what says how it is held."""
    return state.state if isinstance(state, dj.workers.WorkerState) else state


def own(fed: jax.sharding.Sharding, axes: Axes) -> np.ndarray:
    """The workers that this process feeds, in order: all where they are simulated.

    Args:
        fed: as of `Execution`.
        axes: of all workers.
    """
    numbers = _numbers(axes)
    parts = fed.addressable_devices_indices_map((1, *numbers.shape)).values()
    return np.unique(np.concatenate([np.ravel(numbers[part[1:]]) for part in parts]))


def _simulated(step: Callable[..., Any], axes: Axes) -> dj.workers.Workers:
    if not axes:
        return dj.workers.Workers(lambda state, given, shared: state, step)
    return dj.workers.simulate(step, tuple(axes.values()), axis_name=tuple(axes))


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


def _numbers(axes: Axes) -> np.ndarray:
    """The workers' numbers, by their places along the axes."""
    return np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))


def _divided(axes: Axes, leaf: np.ndarray) -> np.ndarray:
    """[chunk, workers, ...] with all of the workers' axes; of one worker, as it is."""
    if not axes:
        return leaf
    return leaf.reshape(leaf.shape[0], *axes.values(), *leaf.shape[2:])


def _place(leaf: np.ndarray, fed: NamedSharding, axes: Axes) -> jax.Array:
    """[chunk, own workers, ...] of each process as [chunk, *axes, ...] of all."""
    here, numbers = own(fed, axes), _numbers(axes)

    def of_device(part):
        return leaf[:, np.searchsorted(here, numbers[part[1 : 1 + numbers.ndim]])]

    shape = leaf.shape[0], *numbers.shape, *leaf.shape[2:]
    return jax.make_array_from_callback(shape, fed, of_device)


def _on_one(shapes: Any) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
    )
