"""The devices on which the workers of a program run: one simulates all, or several."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from experiments.running import meshes, sharing
from experiments.running.meshes import Axes

Step = Callable[[Any, Any], tuple[Any, Any]]
"""(state, given) -> (state, metrics) of one worker."""

Specs = Callable[[Any], tuple[P, ...]]
"""One worker's state -> a spec of each leaf, by which the worker's devices shard it."""


class OnOne:
    """One device that takes the step of one worker, or simulates several workers.

    Attributes:
        init: one worker's state, shapes of a step's data, the shared fields -> the
            state of all workers.
        step: (state, given) -> (state, metrics) of all workers.
        everywhere: the sharding of an array that every device has whole.
        fed: the sharding of the arrays of a chunk.
        devices: those that take part.
        options: the options of the compiler.
    """

    def __init__(self, axes: Axes, step: Step, device: jax.Device):
        self.init, self.step = _simulated(step, axes)
        self.everywhere = self.fed = jax.sharding.SingleDeviceSharding(device)
        self.devices = [device]
        self.options: dict[str, Any] = {}
        self._axes = axes

    def new_shardings(self, make: Callable[[], Any]) -> None:
        """None: a new state stays on the device that makes it."""

    def place(self, given: Any) -> Any:
        """Arrays [chunk, workers, ...] -> [chunk, *axes, ...]; of one worker as is."""
        if not self._axes:
            return given
        sizes = tuple(self._axes.values())
        return jax.tree.map(lambda x: x.reshape(len(x), *sizes, *x.shape[2:]), given)

    def shapes(self, held: Any) -> Any:
        """A state's shapes with their shardings."""
        return jax.tree.map(lambda leaf: _sharded(leaf, self.everywhere), held)


class OnMesh:
    """Several devices, each of which takes the steps of one worker or of several.

    Its attributes are those of `OnOne`.
    """

    def __init__(self, axes: Axes, step: Step, mesh: Mesh, specs: Specs | None):
        """Takes `specs`, a worker's shardings if it has several devices."""
        self._axes, self._mesh, self._specs = axes, mesh, specs
        examples = (None, sharing.AXIS) if specs else ()  # after the seeds
        self.everywhere = NamedSharding(mesh, P())
        self.fed = NamedSharding(mesh, P(None, *axes, *examples))
        self.devices = [*mesh.devices.flat]
        self.options = dj.exchange.overlap_options(self.devices[0])
        workers = math.prod(mesh.shape[axis] for axis in axes)
        self._one_each = workers == math.prod(axes.values())
        self._workers = _simulated(step, axes)
        if self._one_each:
            self._workers = dj.workers.run(step, mesh, axis_name=tuple(axes))

    def new_shardings(self, make: Callable[[], Any]) -> Any:
        """A function that returns the shapes of one worker's state -> its shardings."""
        if not self._specs:
            return None
        state = make()
        places = [NamedSharding(self._mesh, spec) for spec in self._specs(state)]
        return jax.tree.unflatten(jax.tree.structure(state), places)

    def init(self, state: Any, given: Any, shared: Any) -> Any:
        """One worker's state -> the state of all."""
        held = self._workers.init(state, given, shared)
        if self._specs:  # shapes do not contain their shardings
            held = dataclasses.replace(held, specs=self._specs(state))
        if self._one_each:
            return held
        return jax.device_put(held, held.shardings(self._mesh))

    def step(self, held: Any, given: Any) -> tuple[Any, Any]:
        """A step of all workers."""
        if self._one_each:
            return self._workers.step(held, given)
        # lets a sum over the workers know that it crosses devices
        with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
            return self._workers.step(held, given)

    def place(self, given: Any) -> Any:
        """Puts arrays of a chunk, of the workers of this process, on the devices."""
        return jax.tree.map(lambda x: placed(x, self.fed, self._axes), given)

    def shapes(self, held: Any) -> Any:
        """A state's shapes with their shardings."""
        return jax.tree.map(_sharded, held, held.shardings(self._mesh))


Execution = OnOne | OnMesh
"""The way in which all workers take a step."""


def make_execution(
    axes: Axes,
    *,
    on_devices: bool,
    step: Step,
    there: Sequence[jax.Device] | None = None,
    model: int = 1,
    specs: Specs | None = None,
) -> Execution:
    """Places the workers along these axes on devices.

    One worker has no axis and takes the step unchanged. The data of several workers
    have the workers' axes after the axis of the chunk. There may be fewer devices than
    workers: each device then takes the steps of several.

    Args:
        axes: the axes of the workers.
        on_devices: whether the workers are devices; else one device simulates them.
        step: the step of one worker.
        there: devices to choose from, as in `meshes.make_mesh`.
        model: the number of devices of each worker, which also divide its examples.
        specs: the shardings of a worker's state over these devices.

    Raises:
        ValueError: as `meshes.make_mesh`.
    """
    mesh = meshes.make_mesh(axes, there=there, model=model) if on_devices else None
    if mesh is None or not axes:
        return OnOne(axes, step, (there or jax.local_devices())[0])
    return OnMesh(axes, step, mesh, specs if model > 1 else None)


def held(state: Any) -> Any:
    """A state without its `WorkerState`."""
    return state.state if isinstance(state, dj.workers.WorkerState) else state


def workers_here(fed: jax.sharding.Sharding, axes: Axes) -> np.ndarray:
    """The workers that this process feeds, in order; all if they are simulated.

    Args:
        fed: the sharding of the arrays of a chunk.
        axes: the axes of all workers.
    """
    numbers = _numbers(axes)
    if isinstance(fed, NamedSharding):  # regardless of how examples are divided
        fed = NamedSharding(fed.mesh, P(*fed.spec[: 1 + numbers.ndim]))
    parts = fed.addressable_devices_indices_map((1, *numbers.shape)).values()
    return np.unique(np.concatenate([np.ravel(numbers[part[1:]]) for part in parts]))


def _numbers(axes: Axes) -> np.ndarray:
    """The workers' numbers, by their places along the axes."""
    return np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))


def placed(leaf: np.ndarray, fed: NamedSharding, axes: Axes) -> jax.Array:
    """[chunk, workers of a process, ...] -> [chunk, *axes, ...] of all workers."""
    here, numbers = workers_here(fed, axes), _numbers(axes)
    first = 1 + numbers.ndim  # the dimension after those of the workers

    def of_device(part):
        workers = np.searchsorted(here, numbers[part[1:first]])
        return leaf[:, workers][(slice(None),) * first + part[first:]]

    shape = leaf.shape[0], *numbers.shape, *leaf.shape[2:]
    return jax.make_array_from_callback(shape, fed, of_device)


def _simulated(step: Callable[..., Any], axes: Axes) -> dj.workers.Workers:
    if not axes:
        return dj.workers.Workers(lambda state, given, shared: state, step)
    return dj.workers.simulate(step, tuple(axes.values()), axis_name=tuple(axes))


def _sharded(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
