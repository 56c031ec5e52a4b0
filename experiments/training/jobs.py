"""The protocol of a kind of training, and the calls of its functions."""

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.returned import checked

Hyper = Mapping[str, Any]
"""{axis: value} of one cell; numbers are traced."""


class Model(NamedTuple):
    """The parameters to train and evaluate, and the model's state."""

    params: Any
    state: Any = ()  # BatchNorm's statistics and the like; () where there are none


NONE, REFUSED = -1, -2
"""The age of a missing gradient, and of a gradient that a rule refused."""


class Update(NamedTuple):
    """The result of one update of a cell."""

    model: Model
    memory: Any
    loss: jax.Array  # mean over the update's gradients, float32 []
    staleness: jax.Array  # that the optimizer receives, in updates, []
    # staleness of each gradient, int32 [K] or []; NONE or REFUSED where none is used
    ages: jax.Array


class Needs(NamedTuple):
    """The sizes that training along traces needs; they are compiled."""

    staleness: int = 0  # the largest, updates
    versions: int = 0  # of the parameters, kept at once
    gradients: int = 0  # of an update
    uneven: bool = False  # whether updates have different numbers of gradients
    divided: bool = False  # whether a sum has another divisor than their number
    apart: bool = False  # whether an update has gradients of different versions
    empty: bool = False  # whether an update has no gradient


class Room(NamedTuple):
    """The traces that a compiled program can train along: these and similar ones.

    Attributes:
        needs: the largest of each need over all traces.
        traces: the traces from which these needs come.
    """

    needs: Needs = Needs()
    traces: tuple[dj.cluster.Trace, ...] = ()

    def has_room_for(self, needs: Needs) -> bool:
        """Whether there is room for traces with these needs.

        If an update has fewer gradients than K, its other places stay empty. Without
        traces the needs are `Needs()`, for which there is always room.
        """
        fits = needs.gradients in (0, self.needs.gradients) or self.needs.uneven
        pairs = zip(needs, self.needs, strict=True)
        return fits and all(need <= here for need, here in pairs)

    def with_room_for(self, other: "Room") -> "Room":
        """Room for the traces of both."""
        if self.has_room_for(other.needs):
            return self
        if not self.traces:
            return other
        needs = Needs(*map(max, self.needs, other.needs))
        if self.needs.gradients != other.needs.gradients:
            needs = needs._replace(uneven=True, divided=True)
        return Room(needs, self.traces + other.traces)

    def roomy(self) -> "Room":
        """Room for traces that are up to twice as stale; longer ones are rare."""
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


class Request(NamedTuple):
    """What a run asks of a training: how long it lasts, and under which seeds."""

    seeds: tuple[int, ...]
    updates: int | None
    seconds: float | None
    examples: int | None
    evaluate_every: int | None
    evaluations: int = 20
    devices: int | None = None  # the number of devices; None: all that JAX sees
    room: Room = NO_ROOM  # the traces that a compiled program must have room for, too
    fed: Mapping[str, Any] = types.MappingProxyType({})  # {fed axis: its value}

    def cadence(self, updates: int) -> int:
        """Updates from one evaluation to the next in a run of so many updates."""
        return min(updates, self.evaluate_every or max(1, updates // self.evaluations))

    def examples_each(self, task: Task) -> int:
        """The number of examples of a gradient; 1 if the task does not say it.

        Raises:
            ValueError: if `examples` ends a run, and the task does not say it.
        """
        if self.examples is not None and task.examples is None:
            raise ValueError(
                "`examples` ends a run, but the task does not say how many examples a"
                " batch has: give `updates`."
            )
        return task.examples or 1

    def check_examples(self, needed: int) -> None:
        """Checks that `examples`, if they end the run, are enough for an update.

        Raises:
            ValueError: if an update needs more.
        """
        if self.examples is not None and self.examples < needed:
            raise ValueError(
                f"`examples` must be at least {needed}, the examples of an update, got"
                f" {self.examples}: raise it, or lower the task's batch size; 0 is the"
                " full batch."
            )


class Job(NamedTuple):
    """A kind of training, bound to a task: functions of one cell of a grid."""

    updates: int  # the number of updates
    evaluate_every: int  # updates; there is an evaluation at the end as well
    # key of the seed, hyper, model -> (model as it is trained, memory)
    init: Callable[[jax.Array, Hyper, Model], tuple[Model, Any]]
    # key, hyper, step, model, memory, given -> the result of the update
    update: Callable[[jax.Array, Hyper, jax.Array, Model, Any, Any], Update]
    # start, stop -> the data of updates start .. stop - 1, NumPy [n, seeds, ...]; with
    # several workers (start, stop, workers) -> [n, workers, seeds, ...], for these only
    given: Callable[..., Any]
    depth: Callable[[Any], int]  # memory -> the largest staleness there can be
    # update number -> int64 [seeds]: examples in the gradients applied until then
    examples: Callable[[int], np.ndarray]
    # the updates of each seed; the largest is `updates`; (): all seeds have `updates`
    ends: Sequence[int] = ()
    # model, memory -> the model to evaluate, leaves [seeds, cells, ...]
    model: Callable[[Model, Any], Model] = lambda model, memory: model
    # update number -> float64 [seeds]: simulated seconds until it was done; None: the
    # training takes no simulated time
    seconds: Callable[[int], np.ndarray] | None = None
    # update number -> float64 [seeds]: gradients that the cluster's server refused, as
    # a share of all that arrived; the runner adds what rules of the optimizer refuse
    dropped: Callable[[int], np.ndarray] | None = None
    vmap_axes: Callable[[Any], Any] = dj.ring.vmap_axes
    # the axes of the workers that take a step together, each on its part of the batch:
    # {name: size}, as `running.meshes.Axes`; {} for one worker
    worker_axes: Mapping[str, int] = types.MappingProxyType({})
    devices: bool = False  # whether they are devices; else they are simulated
    devices_of_each: int = 1  # the devices of each worker, which share its parameters
    # path and shape of a parameter -> its sharding, as `sharing.Sharding`; None: FSDP
    sharding: Callable[[str, tuple[int, ...]], Any] | None = None
    traces: Sequence[dj.cluster.Trace] = ()  # of the cluster, one per seed
    room: Room = NO_ROOM  # the traces that the compiled program has room for

    def evaluates(self, update: int) -> bool:
        """Whether a run has an evaluation after this update, also if it was resumed."""
        return update % self.evaluate_every == 0 or update == self.updates

    def clocks(self, update: int) -> dict[str, list[float]]:
        """The examples, and the seconds if there are any, until an update [seeds]."""
        clocks = {} if self.seconds is None else {"seconds": self.seconds(update)}
        clocks["examples"] = self.examples(update)
        return {name: values.tolist() for name, values in clocks.items()}

    @property
    def workers(self) -> int:
        """The number of workers."""
        return math.prod(self.worker_axes.values())


@runtime_checkable
class Training(Protocol):
    """A kind of training, as `optimizer`, `along`, `replicas`, `pipelined` make.

    Any class with these two methods is a kind of training. It may have `fed`: the axes
    whose values 0, 1, ... change only the data of an update and nothing that is
    compiled, as {axis: the names of its values}; the grid must use these names. Jobs
    whose requests differ only in seeds and fed values must compile to the same program
    if their rooms are equal.
    """

    def arguments(self) -> dict[str, bool]:
        """{grid axis that the training takes: whether it is required}."""
        ...

    def job(self, task: Task, request: Request) -> Job:
        """The training of a task as the request says."""
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
    needs: dict[str, bool] = {}
    for function in filter(callable, functions):
        for name, needed in arguments(function).items():
            needs[name] = needs.get(name, False) or needed
    needs.pop("key", None)
    return needs


def called(function: Any, hyper: Hyper, key: jax.Array) -> Any:
    """Calls a function of grid axes for a cell; returns any other value unchanged.

    A transformation is returned with the checks of `returned`.
    """
    if isinstance(function, optax.GradientTransformation):
        return checked(function)
    if not callable(function):
        return function
    names = inspect.signature(function).parameters
    given = {name: value for name, value in hyper.items() if name in names}
    if "key" in names and "key" not in given:
        given["key"] = key
    made = function(**given)
    is_rule = isinstance(made, optax.GradientTransformation)
    return checked(made) if is_rule else made


def begun(task: Task, key: jax.Array) -> Model:
    """A task's model before the first update."""
    made = task.init(key)
    return Model(*made) if task.has_state else Model(made)


def loss_and_gradients(
    task: Task, model: Model, batch: Any, key: jax.Array
) -> tuple[jax.Array, Any, Any]:
    """A task's loss, its gradient, and the next state of the model."""
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


def holds(memory: Any, name: str) -> Any:
    """Whether all facts of this name in a state are true; True if there are none.

    `applied`: no rule refused the last gradient. `arrived`: the last update used a
    gradient. `full`: the outbox of a late mean has one.

    Returns:
        bool [], or one of each worker.
    """
    facts = [value for _, value in optax.tree.get_all_with_path(memory, name)]
    return functools.reduce(jnp.logical_and, facts, True)


def data_seed(seed: int) -> int:
    """The seed of what the host draws: orders of examples, and times of a cluster."""
    return int(np.random.SeedSequence([0, seed]).generate_state(1)[0])


def of_seeds(trees: Iterable[Any], axis: int = 1) -> Any:
    """The NumPy trees of all seeds as one, with an axis of seeds: [n, seeds, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis), *trees)
