"""Where the workers of a program run: simulated on one device, or on several."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from experiments.pods import overlap

AXIS = "workers"


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
    workers: int,
    on_devices: bool,
    step: Callable[[Any, Any], tuple[Any, Any]],
    there: Sequence[jax.Device] | None = None,
) -> Execution:
    """How so many workers take a step.

    One worker has no axis, and takes the step as it is. Several have one, `AXIS`; what
    they are given has it too, behind the chunk's. Of devices there may be fewer than
    workers: each then takes the steps of several.

    Args:
        workers: how many.
        on_devices: whether devices are the workers; else they are simulated.
        step: (state, given) -> (state, metrics) of one worker.
        there: see `devices`.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    if not on_devices:
        if workers == 1:
            simulated = dj.workers.Workers(lambda state, given, shared: state, step)
        else:
            simulated = dj.workers.simulate(step, workers)
        return Execution(*simulated, _as_it_is, _on_one, here, here, {})
    mesh = devices(workers, there)
    on_mesh = (
        NamedSharding(mesh, P()),
        NamedSharding(mesh, P(None, AXIS)),
        overlap.options(mesh.devices.flat[0].platform),
    )

    def place(given):
        return jax.tree.map(lambda leaf: _place(leaf, on_mesh[1], workers), given)

    def shapes(held):
        placed = held.shardings(mesh)
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=sharding
            ),
            held,
            placed,
        )

    if mesh.size == workers:
        each = dj.workers.run(step, mesh)
        return Execution(*each, place, shapes, *on_mesh)
    several = dj.workers.simulate(step, workers)

    def init(state, given, shared):
        held = several.init(state, given, shared)
        return jax.device_put(held, held.shardings(mesh))

    return Execution(init, several.step, place, shapes, *on_mesh)


def devices(workers: int, there: Sequence[jax.Device] | None = None) -> Mesh:
    """A device for each worker, or as many devices as divide the workers.

    Args:
        workers: how many there are.
        there: devices to choose from; None for all that this program sees.

    Raises:
        ValueError: if the devices do not divide the workers, or these leave a process
            without a device.
    """
    there = there or jax.devices()
    count = min(workers, len(there))
    idle = set(range(jax.process_count())) - {d.process_index for d in there[:count]}
    if idle:
        raise ValueError(
            f"`workers={workers}` leaves the processes {sorted(idle)} without"
            f" a device, of {len(there)} in all: start fewer, or take more workers."
        )
    if workers % count:
        raise ValueError(
            f"`workers={workers}` must be a multiple of the {len(there)}"
            " devices, or no more than these: each device takes the steps of equally"
            " many workers."
        )
    return jax.make_mesh(
        (count,), (AXIS,), axis_types=(AxisType.Auto,), devices=there[:count]
    )


def held(state: Any) -> Any:
    """A state without what says how it is held."""
    return state.state if isinstance(state, dj.workers.WorkerState) else state


def own(fed: jax.sharding.Sharding, workers: int) -> np.ndarray:
    """The workers that this process feeds, in order: all where they are simulated.

    Args:
        fed: as of `Execution`.
        workers: of all processes.
    """
    parts = fed.addressable_devices_indices_map((1, workers)).values()
    return np.unique(np.concatenate([np.arange(workers)[part[1]] for part in parts]))


def _place(leaf: np.ndarray, fed: NamedSharding, workers: int) -> jax.Array:
    """[chunk, own workers, ...] of each process as [chunk, workers, ...] of all."""
    here = own(fed, workers)

    def of_device(part):
        first, last, _ = part[1].indices(workers)
        at = int(np.searchsorted(here, first))  # a device's workers are neighbors
        return leaf[:, at : at + last - first]

    shape = leaf.shape[0], workers, *leaf.shape[2:]
    return jax.make_array_from_callback(shape, fed, of_device)


def _as_it_is(given: Any) -> Any:
    return given


def _on_one(shapes: Any) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
    )
