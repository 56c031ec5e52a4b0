"""Training with an Optax transformation, by one worker or by several per batch."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.jobs import (
    NONE,
    REFUSED,
    Job,
    Model,
    Request,
    Training,
    Update,
    axes_of,
    called,
    data_seed,
    holds,
    loss_and_gradients,
    of_seeds,
)


@dataclasses.dataclass(frozen=True)
class _Optimizer:
    make: Callable[..., optax.GradientTransformation]
    workers: int | None
    groups: int
    devices: bool
    at: Callable[..., Any] | None = None
    model: int = 1
    sharding: Callable[[str, tuple[int, ...]], Any] | None = None
    seen: Callable[[Any], Any] | None = None

    def __post_init__(self):
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"`workers` must be at least 1, got {self.workers}.")
        if self.groups < 1 or (self.workers or self.groups) % self.groups:
            raise ValueError(
                f"`groups` must divide `workers={self.workers}`, got {self.groups}:"
                " a group has workers / groups members."
            )
        if self.model < 1 or (self.model > 1 and self.workers == 1):
            raise ValueError(
                f"`model` must be at least 1, and 1 where there is one worker, got"
                f" {self.model} with `workers={self.workers}`."
            )
        if self.sharding is not None and self.model == 1:
            raise ValueError(
                "`sharding` says how the devices of one worker share its parameters,"
                " but `model=1` gives it one device: set `model`."
            )

    @property
    def axes(self):
        """{name: size} of the workers' axes, as in `Job`."""
        if self.groups > 1:
            return {"groups": self.groups, "members": self.workers // self.groups}
        return {"workers": self.workers} if self.workers > 1 else {}

    def arguments(self):
        at = self.at and functools.partial(self.at, None, None)
        return axes_of(self.make, at)

    def job(self, task: Task, request: Request) -> Job:
        return _job(self.placed(request.devices), task, request)

    def placed(self, devices: int | None) -> "_Optimizer":
        """Takes one worker per `model` devices if no number was given."""
        if self.workers is not None:
            return self
        devices = devices or jax.device_count()
        workers = devices // self.model
        if workers < 2:
            raise ValueError(
                f"`workers` must be given with {devices} devices and"
                f" `model={self.model}`: by default there are as many workers as"
                " devices, and exchanges need two. A device takes the steps of several."
            )
        return dataclasses.replace(self, workers=workers)


def optimizer(
    make: Callable[..., optax.GradientTransformation],
    *,
    workers: int = 1,
    groups: int = 1,
    at: Callable[..., Any] | None = None,
    seen: Callable[[Any], Any] | None = None,
) -> Any:
    """Trains with the transformation that a function of grid axes makes.

    The transformation contains the delay, for example `delayed(...)`. The function may
    take `key`, a PRNG key of its seed.

    Args:
        make: grid axes -> an Optax transformation. With several workers it must take
            the mean over the axis "workers", for example by `exchange.mean(...)`.
        workers: the number of workers that share a batch, simulated on one device.
        groups: the number of equal groups of neighboring workers. With several groups
            the workers have two axes, "groups" and "members" of a group, in place of
            "workers", and `make` must take the mean over both.
        at: (parameters, optimizer state) and grid axes -> the point at which each
            worker takes its gradient, as `exchange.detached`; by default the
            parameters.
        seen: the transformation's state -> what `Experiment.metrics` gets as
            `model.state`.
    """
    return _Optimizer(make, workers, groups, False, at, seen=seen)


def on_devices(
    make: Callable[..., optax.GradientTransformation],
    *,
    workers: int | None = None,
    groups: int = 1,
    model: int = 1,
    sharding: Callable[[str, tuple[int, ...]], Any] | None = None,
) -> Any:
    """`optimizer` with devices as workers, of one host or of several.

    Args:
        make: as in `optimizer`.
        workers: the number of workers; at most the number of devices, or a multiple of
            it. By default one worker per device, or per `model` devices.
        groups: as in `optimizer`. If the devices are in several slices, joined by the
            slow links of a data center, `groups` must divide the number of slices or be
            a multiple of it; the same holds for processes if devices have no slices.
        model: the number of devices per worker. They shard its parameters and all that
            has their shapes: optimizer states, outboxes, histories. They also divide
            the worker's examples, and XLA gathers what a step needs (FSDP). A run has
            workers x model devices, or fewer.
        sharding: (path of a parameter, its shape) -> a `PartitionSpec` that shards one
            of its dimensions over "model", or P() if each device has the whole
            parameter: tensor parallel layouts. By default the largest dimension that
            `model` divides, for parameters with at least 2^14 entries.
    """
    return _Optimizer(make, workers, groups, True, model=model, sharding=sharding)


def as_training(training: Any) -> Training:
    """Converts a transformation, or a function that makes one, to a kind of training.

    Raises:
        TypeError: if it is neither, nor a kind of training.
    """
    if isinstance(training, Training):
        return training
    if isinstance(training, optax.GradientTransformation):
        return optimizer(lambda: training)
    if callable(training):
        return optimizer(training)
    raise TypeError(
        "`training` must be an Optax transformation, a function that makes one, or"
        f" `along(...)`, `replicas(...)`, `pipelined(...)`, `on_devices(...)`, got"
        f" {training!r}."
    )


def _job(training: _Optimizer, task: Task, request: Request) -> Job:
    workers, axes = training.workers, training.axes
    names = tuple(axes)

    def init(key, hyper, model):
        tx = called(training.make, hyper, key)
        return model, tx.init(model.params)

    def update(key, hyper, step, model, memory, batch):
        tx = optax.with_extra_args_support(called(training.make, hyper, key))
        params = model.params
        if names:
            params = dj.workers.vary(params, axis_name=names)
        if training.at is not None:
            point = functools.partial(training.at, model.params, memory)
            params = called(point, hyper, key)
        of_step = jax.random.fold_in(jax.random.fold_in(key, 1), step)
        if names:
            worker = jax.lax.axis_index(names)
            of_step = jax.random.fold_in(of_step, worker)
        loss, grads, state = loss_and_gradients(
            task, Model(params, model.state), batch, of_step
        )
        if names and task.has_state:
            state = jax.lax.pmean(state, names)
        has_sent = holds(memory, "full")  # else the optimizer gets no gradient
        # the loss is the mean of a group's members, as their gradient is
        value = jax.lax.pmean(loss, names[1:]) if names[1:] else loss
        updates, memory = tx.update(grads, memory, model.params, value=value)
        staleness = _staleness(memory)
        moved = Model(optax.apply_updates(model.params, updates), state)
        ages = jnp.where(holds(memory, "applied"), staleness, REFUSED)
        ages = jnp.where(holds(memory, "arrived") & has_sent, ages, NONE)
        return Update(moved, memory, loss, staleness.astype(jnp.float32), ages)

    def evaluated(model, memory):
        return model._replace(state=training.seen(memory)) if training.seen else model

    def given(start, stop, here=None):
        if workers == 1:
            return whole_batches(task, request, start, stop)
        seeds = [data_seed(seed) for seed in request.seeds]
        batches = [
            _of_workers(task, seed, start, stop, workers, here) for seed in seeds
        ]
        return of_seeds(batches, 2)  # after the axis of workers

    return Job(
        init=init,
        update=update,
        given=given,
        model=evaluated,
        **equal_updates(task, request),
        worker_axes=axes,
        devices=training.devices,
        devices_of_each=training.model,
        sharding=training.sharding,
    )


def whole_batches(task: Task, request: Request, start: int, stop: int) -> Any:
    """The batches of updates start .. stop - 1 of all seeds, [updates, seeds, ...]."""
    seeds = map(data_seed, request.seeds)
    return of_seeds(task.batches(seed, start, stop) for seed in seeds)


def equal_updates(task: Task, request: Request) -> dict[str, Any]:
    """Fields of a `Job` whose updates have equally many examples, and take no time."""
    examples_each = request.examples_each(task)
    updates = _updates(examples_each, request)
    return dict(
        updates=updates,
        evaluate_every=request.cadence(updates),
        depth=_depth,
        examples=lambda step: np.full(len(request.seeds), step * examples_each),
    )


def _updates(examples_each: int, request: Request) -> int:
    """The number of updates until the run's end."""
    if request.updates is not None:
        return request.updates
    if request.seconds is not None:
        raise ValueError(
            "`seconds` ends a run, but an update takes no time here: give `updates`, or"
            " train in the time of a cluster, by `along` or `replicas`."
        )
    request.check_examples(examples_each)
    return request.examples // examples_each


def _staleness(memory: Any) -> jax.Array:
    """The largest staleness of all leaves in the last update; 0 if there is none."""
    if not optax.tree.get_all_with_path(memory, "staleness"):
        return jnp.zeros((), jnp.int32)
    staleness = jax.tree.leaves(dj.staleness(memory))
    largest = jnp.stack([jnp.asarray(tau) for tau in staleness]).max()
    return jnp.ceil(largest).astype(jnp.int32)


def _depth(memory: Any) -> int:
    """A bound on the staleness: the slots of all histories, and one for an outbox."""
    deepest = [
        max((slots.shape[0] - 1 for slots in jax.tree.leaves(node.slots)), default=0)
        for node in histories(memory)
    ]
    return sum(deepest) + 1


def histories(tree: Any) -> list[dj.ring.Ring | dj.ring.Calendar]:
    """The histories in a state."""

    def is_history(node):
        return isinstance(node, (dj.ring.Ring, dj.ring.Calendar))

    nodes = jax.tree.leaves(tree, is_leaf=is_history)
    return [node for node in nodes if is_history(node)]


def _of_workers(
    task: Task, seed: int, start: int, stop: int, workers: int, here: np.ndarray | None
) -> Any:
    """Batches [updates, workers `here`, examples of a worker, ...]; None: all workers.

    Worker w has the examples w n .. (w + 1) n - 1 of each batch in every process.
    """
    if here is None or len(here) == workers:
        return jax.tree.map(
            lambda x: _divided(x, workers), task.batches(seed, start, stop)
        )
    if task.examples is None:  # a part of them cannot be drawn alone
        drawn = task.batches(seed, start, stop)
        return jax.tree.map(lambda x: _divided(x, workers)[:, here], drawn)
    examples = _divided(np.arange(task.examples)[None], workers)[0, here]
    drawn = task.batches(seed, start, stop, examples.ravel())
    return jax.tree.map(lambda x: _divided(x, len(here)), drawn)


def _divided(batches: np.ndarray, workers: int) -> np.ndarray:
    """Batches [updates, examples, ...] as [updates, workers, their examples, ...]."""
    updates, *shape = batches.shape
    if not shape or shape[0] % workers:
        raise ValueError(
            f"`workers` must divide the examples of a batch, got {workers} workers and"
            f" batches of {shape}: change the task's batch size."
        )
    return batches.reshape(updates, workers, shape[0] // workers, *shape[1:])
