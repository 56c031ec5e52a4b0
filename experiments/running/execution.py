"""Where the workers of a program run: simulated on one device, or on several."""

import collections
import dataclasses
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
from experiments.running import overlap, sharing

_SLICE = "slice_index"  # of devices that know of slices

Axes = Mapping[str, int]
"""{name: size} of the workers' axes, the outermost first; {} of one worker.

Of several axes the last counts fastest: worker (g, m) is worker g * members + m.
"""


class Execution(NamedTuple):
    """How a step is taken by all workers."""

    # function that returns the shapes of one worker's new state -> its shardings; None:
    # on one device
    new_shardings: Callable[[Callable[[], Any]], Any]
    # one worker's state, shapes of what a step is given, what is shared -> state of all
    init: Callable[[Any, Any, Any], Any]
    step: Callable[[Any, Any], tuple[Any, Any]]
    place: Callable[[Any], Any]  # arrays of a chunk, [chunk, ...] -> on the devices
    shapes: Callable[[Any], Any]  # a state's shapes -> the same with their shardings
    everywhere: jax.sharding.Sharding  # of an array that every device has whole
    fed: jax.sharding.Sharding  # of the arrays of a chunk
    options: dict[str, bool | int | float]  # of the compiler


def of(
    axes: Axes,
    *,
    on_devices: bool,
    step: Callable[[Any, Any], tuple[Any, Any]],
    there: Sequence[jax.Device] | None = None,
    model: int = 1,
    specs: Callable[[Any], tuple[P, ...]] | None = None,
) -> Execution:
    """How the workers along these axes take a step.

    One worker has no axis, and takes the step as it is. What several are given has
    their axes, too, behind the chunk's. Of devices there may be fewer than workers:
    each then takes the steps of several.

    Args:
        axes: of the workers.
        on_devices: whether the workers are devices; else one device simulates them.
        step: (state, given) -> (state, metrics) of one worker.
        there: devices to choose from, as in `devices`.
        model: the number of devices of each worker, which divide its examples too.
        specs: one worker's state -> how these devices share each leaf, a spec for each.

    Raises:
        ValueError: as `devices`.
    """
    if on_devices:
        mesh = devices(axes, there=there, model=model)
    if not axes or not on_devices:
        here = jax.sharding.SingleDeviceSharding((there or jax.local_devices())[0])
        place = functools.partial(jax.tree.map, functools.partial(_divided, axes))
        simulated = _simulated(step, axes)
        shapes = functools.partial(_on_one, here)
        return Execution(_on_this, *simulated, place, shapes, here, here, {})
    shared = specs if model > 1 else None
    examples = (None, sharing.AXIS) if shared else ()  # behind the seeds
    on_mesh = (
        NamedSharding(mesh, P()),
        NamedSharding(mesh, P(None, *axes, *examples)),
        overlap.options(mesh.devices.flat[0]),
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

    def new_shardings(make):
        if not shared:
            return None
        state = make()
        places = [NamedSharding(mesh, spec) for spec in shared(state)]
        return jax.tree.unflatten(jax.tree.structure(state), places)

    each_on_its_own = mesh.size == math.prod(axes.values()) * model
    if each_on_its_own:
        workers = dj.workers.run(step, mesh, axis_name=tuple(axes))
    else:
        workers = _simulated(step, axes)

    def init(state, given, same):
        held = workers.init(state, given, same)
        if shared:  # shapes do not tell how they are sharded
            held = dataclasses.replace(held, specs=shared(state))
        return held if each_on_its_own else jax.device_put(held, held.shardings(mesh))

    def step_all(held, given):
        if each_on_its_own:
            return workers.step(held, given)
        # it tells a sum over the workers that it is sent from device to device
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return workers.step(held, given)

    return Execution(new_shardings, init, step_all, place, shapes, *on_mesh)


def devices(
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
    if isinstance(fed, NamedSharding):  # however their examples are divided
        fed = NamedSharding(fed.mesh, P(*fed.spec[: 1 + numbers.ndim]))
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

    first = 1 + numbers.ndim  # dimension behind the workers'

    def of_device(part):
        workers = np.searchsorted(here, numbers[part[1:first]])
        return leaf[:, workers][(slice(None),) * first + part[first:]]

    shape = leaf.shape[0], *numbers.shape, *leaf.shape[2:]
    return jax.make_array_from_callback(shape, fed, of_device)


def _on_this(make: Callable[[], Any]) -> None:
    del make


def _on_one(sharding: jax.sharding.Sharding, shapes: Any) -> Any:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
    )
