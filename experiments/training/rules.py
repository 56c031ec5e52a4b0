"""What a kind of training is: a small protocol, and how its functions are called."""

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task

Hyper = Mapping[str, Any]
"""{axis: value} of one cell; traced where it can be."""


class Model(NamedTuple):
    """What is trained and evaluated."""

    params: Any
    state: Any = ()  # BatchNorm's statistics and the like; () where there are none


NONE, REFUSED = -1, -2
"""The ages of a gradient that is not there, and of a gradient that a rule refused."""


class Update(NamedTuple):
    """What one update does to a cell."""

    model: Model
    memory: Any
    loss: jax.Array  # mean over the update's gradients, float32 []
    staleness: jax.Array  # that the optimizer was told, in updates, []
    # staleness of each gradient, int32 [K] or []; NONE or REFUSED where none is used
    ages: jax.Array


class Needs(NamedTuple):
    """What is compiled of traces: how much of each their training needs."""

    staleness: int = 0  # the largest, updates
    versions: int = 0  # of the parameters, kept at once
    gradients: int = 0  # of an update
    uneven: bool = False  # whether updates have different numbers of gradients,
    divided: bool = False  # are sums over another divisor,
    apart: bool = False  # or have gradients of different versions


class Room(NamedTuple):
    """What there is room for in a compiled program: these traces, and others like them.

    Attributes:
        needs: of all traces, the largest of each.
        traces: those that need it.
    """

    needs: Needs = Needs()
    traces: tuple[dj.cluster.Trace, ...] = ()

    def holds(self, needs: Needs) -> bool:
        """Whether there is room for traces that need this.

        Fewer gradients than the most of an update leave places empty.
        """
        fits = needs.gradients == self.needs.gradients or self.needs.uneven
        pairs = zip(needs, self.needs, strict=True)
        return fits and all(need <= here for need, here in pairs)

    def with_room_for(self, other: "Room") -> "Room":
        """Room for both."""
        if self.holds(other.needs):
            return self
        if not self.traces:
            return other
        needs = Needs(*map(max, self.needs, other.needs))
        if self.needs.gradients != other.needs.gradients:
            needs = needs._replace(uneven=True, divided=True)
        return Room(needs, self.traces + other.traces)

    def roomy(self) -> "Room":
        """Room for traces that are up to twice as stale: what is longer is rare."""
        needs = self.needs
        more = dict(
            staleness=_power_of_two(needs.staleness),
            versions=_power_of_two(needs.versions),
        )
        return self._replace(needs=needs._replace(**more))


def _power_of_two(number: int) -> int:
    """The least power of two that is no smaller; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0


NO_ROOM = Room()


class Plan(NamedTuple):
    """How long a training lasts, and under which seeds."""

    seeds: tuple[int, ...]
    updates: int | None
    seconds: float | None
    examples: int | None
    evaluate_every: int | None
    evaluations: int = 20
    devices: int | None = None  # that there are; None: those that JAX sees
    room: Room = NO_ROOM  # that there is at least
    fed: Mapping[str, Any] = types.MappingProxyType({})  # {fed axis: its value}

    def cadence(self, updates: int) -> int:
        """Updates from one evaluation to the next, of a run of so many."""
        return min(updates, self.evaluate_every or max(1, updates // self.evaluations))


class Rule(NamedTuple):
    """A kind of training, bound to a task: functions of one cell of a grid."""

    updates: int  # how many there are
    evaluate_every: int  # updates; there is an evaluation at the end as well
    # key of the seed, hyper, model -> (model as it is trained, memory)
    init: Callable[[jax.Array, Hyper, Model], tuple[Model, Any]]
    # key, hyper, step, model, memory, given -> what the update does
    update: Callable[[jax.Array, Hyper, jax.Array, Model, Any, Any], Update]
    # start, stop -> what updates start .. stop - 1 are given, NumPy [n, seeds, ...];
    # of several workers [n, workers, seeds, ...], of the given workers alone
    given: Callable[..., Any]
    depth: Callable[[Any], int]  # memory -> the largest staleness there can be
    # update number -> int64 [seeds]: examples in the gradients applied until then
    examples: Callable[[int], np.ndarray]
    # the updates of each seed, of which the largest is `updates`; (): all have as many
    ends: Sequence[int] = ()
    # model, memory -> the model to evaluate, leaves [seeds, cells, ...]
    model: Callable[[Model, Any], Model] = lambda model, memory: model
    # update number -> float64 [seeds]: simulated seconds until it was done; None: the
    # training has no time of its own
    seconds: Callable[[int], np.ndarray] | None = None
    # update number -> float64 [seeds]: gradients that the cluster's server refused, a
    # share of all that arrived; what rules of the optimizer refuse is added
    dropped: Callable[[int], np.ndarray] | None = None
    vmap_axes: Callable[[Any], Any] = dj.ring.vmap_axes
    # of the workers that take the step together, each on its own part of the batch:
    # {name: size}, as `running.meshes.Axes`; {} of one
    worker_axes: Mapping[str, int] = types.MappingProxyType({})
    devices: bool = False  # whether they are devices; else they are simulated
    devices_of_each: int = 1  # worker, which share its parameters
    # path and shape of a parameter -> how, as `sharing.Sharding`; None: as FSDP does
    sharding: Callable[[str, tuple[int, ...]], Any] | None = None
    traces: Sequence[dj.cluster.Trace] = ()  # a cluster's, one a seed
    room: Room = NO_ROOM  # of what is compiled of it

    def evaluates(self, update: int) -> bool:
        """Whether a run has an evaluation after this update; whatever it resumed at."""
        return update % self.evaluate_every == 0 or update == self.updates

    @property
    def workers(self) -> int:
        """How many there are."""
        return math.prod(self.worker_axes.values())


@runtime_checkable
class Training(Protocol):
    """A kind of training, as `optimizer`, `along`, `replicas`, `pipelined` make.

    A kind of your own is a class with these two methods. It may have `fed`, axes whose
    values change what an update is given and nothing that is compiled. Rules of one
    plan but for its seeds and fed values compute the same, where their rooms are equal.
    """

    def arguments(self) -> dict[str, bool]:
        """{grid axis that it takes: whether it needs it}."""
        ...

    def rule(self, task: Task, plan: Plan) -> Rule:
        """The training of a task, for so long."""
        ...


def arguments(function: Callable[..., Any]) -> dict[str, bool]:
    """{argument: whether it must be given} of a function of grid axes."""
    kinds = inspect.Parameter
    named = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    return {
        name: parameter.default is kinds.empty
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named
    }


def axes_of(*functions: Any) -> dict[str, bool]:
    """The grid axes that functions take: their arguments but for `key`."""
    found: dict[str, bool] = {}
    for function in filter(callable, functions):
        for name, needed in arguments(function).items():
            found[name] = found.get(name, False) or needed
    found.pop("key", None)
    return found


def called(function: Any, hyper: Hyper, key: jax.Array) -> Any:
    """What a function of grid axes makes of a cell; what is no function, as it is."""
    if not callable(function) or isinstance(function, optax.GradientTransformation):
        return function
    names = inspect.signature(function).parameters
    given = {name: value for name, value in hyper.items() if name in names}
    if "key" in names and "key" not in given:
        given["key"] = key
    return function(**given)


def begun(task: Task, key: jax.Array) -> Model:
    """A task's model before the first update."""
    made = task.init(key)
    return Model(*made) if task.has_state else Model(made)


def loss_and_gradients(
    task: Task, model: Model, batch: Any, key: jax.Array
) -> tuple[jax.Array, Any, Any]:
    """A task's loss, its gradient, and the model's state after it."""
    options: dict[str, Any] = {}
    if task.uses_key:
        options["key"] = key
    if not task.has_state:
        loss, grads = jax.value_and_grad(task.loss)(model.params, batch, **options)
        return loss, grads, ()
    options["state"] = model.state
    (loss, state), grads = jax.value_and_grad(task.loss, has_aux=True)(
        model.params, batch, **options
    )
    return loss, grads, state


def was_applied(memory: Any) -> Any:
    """Whether no rule refused the last gradient, bool [], or of each worker."""
    applied = [value for _, value in optax.tree.get_all_with_path(memory, "applied")]
    return functools.reduce(jnp.logical_and, applied, True)


def data_seed(seed: int) -> int:
    """The seed of the order of the examples."""
    return int(np.random.SeedSequence([0, seed]).generate_state(1)[0])
