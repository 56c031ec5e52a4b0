"""Where the workers of a program run: simulated on one device, or on several."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from experiments.running import meshes, placing, sharing
from experiments.running.meshes import Axes

Step = Callable[[Any, Any], tuple[Any, Any]]
"""(state, given) -> (state, metrics) of one worker."""

Specs = Callable[[Any], tuple[P, ...]]
"""One worker's state -> how the worker's devices share each leaf, a spec for each."""


class OnOne:
    """One device: it takes the step of one worker as it is, or simulates several.

    Attributes:
        init: one worker's state, shapes of what a step is given, what is shared -> the
            state of all.
        step: (state, given) -> (state, metrics) of all workers.
        everywhere: the sharding of an array that every device has whole.
        fed: the sharding of the arrays of a chunk.
        options: of the compiler.
    """

    def __init__(self, axes: Axes, step: Step, device: jax.Device):
        self.init, self.step = _simulated(step, axes)
        self.everywhere = self.fed = jax.sharding.SingleDeviceSharding(device)
        self.options: dict[str, Any] = {}
        self._axes = axes

    def new_shardings(self, make: Callable[[], Any]) -> None:
        """None: a new state is where it is made."""
        del make

    def place(self, given: Any) -> Any:
        """Arrays of a chunk, [chunk, ...], with all of the workers' axes."""
        return jax.tree.map(functools.partial(placing.divided, self._axes), given)

    def shapes(self, held: Any) -> Any:
        """A state's shapes with their shardings."""
        return jax.tree.map(lambda leaf: _sharded(leaf, self.everywhere), held)


class OnMesh:
    """Several devices, each of which takes the steps of one worker or of several.

    Attributes as of `OnOne`.
    """

    def __init__(self, axes: Axes, step: Step, mesh: Mesh, specs: Specs | None):
        """`specs` says how the devices of a worker share its state, if it has some."""
        self._axes, self._mesh, self._specs = axes, mesh, specs
        examples = (None, sharing.AXIS) if specs else ()  # behind the seeds
        self.everywhere = NamedSharding(mesh, P())
        self.fed = NamedSharding(mesh, P(None, *axes, *examples))
        self.options = dj.exchange.overlap_options(mesh.devices.flat[0])
        workers = math.prod(mesh.shape[axis] for axis in axes)
        self._each_on_its_own = workers == math.prod(axes.values())
        self._workers = _simulated(step, axes)
        if self._each_on_its_own:
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
        if self._specs:  # shapes do not tell how they are sharded
            held = dataclasses.replace(held, specs=self._specs(state))
        if self._each_on_its_own:
            return held
        return jax.device_put(held, held.shardings(self._mesh))

    def step(self, held: Any, given: Any) -> tuple[Any, Any]:
        """A step of all workers."""
        if self._each_on_its_own:
            return self._workers.step(held, given)
        # it tells a sum over the workers that it is sent from device to device
        with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
            return self._workers.step(held, given)

    def place(self, given: Any) -> Any:
        """Arrays of a chunk, of this process's own workers -> on the devices."""
        return jax.tree.map(lambda x: placing.placed(x, self.fed, self._axes), given)

    def shapes(self, held: Any) -> Any:
        """A state's shapes with their shardings."""
        return jax.tree.map(_sharded, held, held.shardings(self._mesh))


Execution = OnOne | OnMesh
"""How a step is taken by all workers."""


def of(
    axes: Axes,
    *,
    on_devices: bool,
    step: Step,
    there: Sequence[jax.Device] | None = None,
    model: int = 1,
    specs: Specs | None = None,
) -> Execution:
    """How the workers along these axes take a step.

    One worker has no axis, and takes the step as it is. What several are given has
    their axes, too, behind the chunk's. Of devices there may be fewer than workers:
    each then takes the steps of several.

    Args:
        axes: of the workers.
        on_devices: whether the workers are devices; else one device simulates them.
        step: of one worker.
        there: devices to choose from, as in `meshes.of`.
        model: the number of devices of each worker, which divide its examples too.
        specs: how these devices share a worker's state.

    Raises:
        ValueError: as `meshes.of`.
    """
    mesh = meshes.of(axes, there=there, model=model) if on_devices else None
    if mesh is None or not axes:
        return OnOne(axes, step, (there or jax.local_devices())[0])
    return OnMesh(axes, step, mesh, specs if model > 1 else None)


def held(state: Any) -> Any:
    """A state without what says how it is held."""
    return state.state if isinstance(state, dj.workers.WorkerState) else state


def _simulated(step: Callable[..., Any], axes: Axes) -> dj.workers.Workers:
    if not axes:
        return dj.workers.Workers(lambda state, given, shared: state, step)
    return dj.workers.simulate(step, tuple(axes.values()), axis_name=tuple(axes))


def _sharded(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
