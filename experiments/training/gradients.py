"""Training with an Optax transformation: one worker, or several on a batch's parts."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.axis_values import is_number
from experiments.training.rules import (
    NONE,
    REFUSED,
    Model,
    Plan,
    Rule,
    Training,
    Update,
    axes_of,
    called,
    data_seed,
    loss_and_gradients,
    was_applied,
)


@dataclasses.dataclass(frozen=True)
class _Optimizer:
    make: Callable[..., optax.GradientTransformation]
    workers: int | None
    groups: int
    devices: bool
    update_seconds: float | None
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
        """{name: size} of the workers' axes, as in `Rule`."""
        if self.groups > 1:
            return {"groups": self.groups, "members": self.workers // self.groups}
        return {"workers": self.workers} if self.workers > 1 else {}

    def arguments(self):
        at = self.at and functools.partial(self.at, None, None)
        return axes_of(self.make, at)

    def rule(self, task: Task, plan: Plan) -> Rule:
        rule = _rule(self.placed(plan.devices), task, plan)
        if self.seen is None:
            return rule

        def model(model, memory):
            return rule.model(model, memory)._replace(state=self.seen(memory))

        return rule._replace(model=model)

    def placed(self, devices: int | None) -> "_Optimizer":
        """With a worker for each of so many devices, where no number was given."""
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
    update_seconds: float | None = None,
    at: Callable[..., Any] | None = None,
    seen: Callable[[Any], Any] | None = None,
) -> Any:
    """Trains with the transformation that a function of grid axes makes.

    Lateness is in the transformation: `delayed(...)` in it, for one. The function may
    take `key`, a PRNG key of its seed.

    Args:
        make: grid axes -> an Optax transformation. Over several workers it takes the
            mean itself, over the axis "workers": `exchange.mean(...)` in it, for one.
        workers: how many share a batch, simulated on one device.
        groups: of the workers, each of as many neighbors. With several the workers have
            two axes in place of "workers", over both of which `make` takes the mean:
            "groups", and "members" of a group.
        update_seconds: what an update takes, where a run's end is in seconds.
        at: (parameters, optimizer state) and grid axes -> where each worker takes its
            gradient, as `exchange.detached`; by default at the parameters.
        seen: the transformation's state -> what `Experiment.measure` gets as
            `model.state`.
    """
    return _Optimizer(make, workers, groups, False, update_seconds, at, seen=seen)


def on_devices(
    make: Callable[..., optax.GradientTransformation],
    *,
    workers: int | None = None,
    groups: int = 1,
    model: int = 1,
    sharding: Callable[[str, tuple[int, ...]], Any] | None = None,
    update_seconds: float | None = None,
    at: Callable[..., Any] | None = None,
) -> Any:
    """`optimizer` whose workers are devices, of one host or of many.

    Args:
        make: as in `optimizer`.
        workers: how many; a multiple of the devices, or no more than these. By default
            as many as there are devices, or `model` devices.
        groups: as in `optimizer`. Where devices are in several slices, with the slow
            links of a data center between them, `groups` is a multiple of the slices or
            divides them; likewise of processes, where devices know of no slices.
        model: devices of each worker. They share its parameters, and what is shaped
            like these: optimizer states, outboxes, histories. They divide the worker's
            examples, too, and XLA gathers what a step needs (FSDP). There are workers x
            model devices, or fewer.
        sharding: (path of a parameter, its shape) -> a `PartitionSpec` over "model" of
            one of its dimensions, or P() where each device has it whole: tensor
            parallel layouts. By default the largest dimension that `model` divides, of
            parameters with at least 2^14 entries.
        update_seconds: as in `optimizer`.
        at: likewise.
    """
    return _Optimizer(make, workers, groups, True, update_seconds, at, model, sharding)


def as_training(training: Any) -> Training:
    """A kind of training; a transformation, or a function that makes one, is one.

    Raises:
        TypeError: if it is neither.
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


def _rule(training: _Optimizer, task: Task, plan: Plan) -> Rule:
    workers, axes = training.workers, training.axes
    names = tuple(axes)
    parts = workers * training.model
    if training.model > 1 and task.examples is not None and task.examples % parts:
        raise ValueError(
            f"`model={training.model}` must divide the examples of a worker, got a"
            f" batch of {task.examples} for {workers} workers: change the task's batch"
            " size."
        )

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
        is_full = _outboxes_are_full(memory)
        # as its members' mean gradient, a group's loss differs from group to group
        value = jax.lax.pmean(loss, names[1:]) if names[1:] else loss
        updates, memory = tx.update(grads, memory, model.params, value=value)
        told = _staleness(memory)
        moved = Model(optax.apply_updates(model.params, updates), state)
        ages = jnp.where(was_applied(memory), told, REFUSED)
        ages = jnp.where(_has_arrived(memory) & is_full, ages, NONE)
        return Update(moved, memory, loss, told.astype(jnp.float32), ages)

    def given(start, stop, own=None):
        if workers == 1:
            return whole_batches(task, plan, start, stop)
        seeds = [data_seed(seed) for seed in plan.seeds]
        batches = [_of_workers(task, seed, start, stop, workers, own) for seed in seeds]
        # [updates, workers, seeds, examples of a worker, ...]
        return jax.tree.map(lambda *leaves: np.stack(leaves, axis=2), *batches)

    return Rule(
        init=init,
        update=update,
        given=given,
        **equal_updates(training, task, plan),
        worker_axes=axes,
        devices=training.devices,
        devices_of_each=training.model,
        sharding=training.sharding,
    )


def whole_batches(task: Task, plan: Plan, start: int, stop: int) -> Any:
    """The batches of updates start .. stop - 1 of all seeds, [updates, seeds, ...]."""
    batches = [task.batches(data_seed(seed), start, stop) for seed in plan.seeds]
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *batches)


def equal_updates(training: Any, task: Task, plan: Plan) -> dict[str, Any]:
    """Fields of a `Rule` whose updates all take as long and use as many examples.

    Args:
        training: whose `update_seconds` is None where it takes no time.
        task: says how many examples an update uses.
        plan: what ends the run.
    """
    each = training.update_seconds
    if each is not None and not (is_number(each) and 0 < each < math.inf):
        raise ValueError(
            f"`update_seconds` must be positive and finite, or None, got {each!r}."
        )
    updates = _updates(training, task, plan)

    def seconds(step):
        return np.full(len(plan.seeds), step * training.update_seconds)

    return dict(
        updates=updates,
        evaluate_every=plan.cadence(updates),
        depth=_depth,
        seconds=None if training.update_seconds is None else seconds,
        examples=lambda step: np.full(len(plan.seeds), step * (task.examples or 1)),
    )


def _updates(training: Any, task: Task, plan: Plan) -> int:
    """How many updates a run has.

    Args:
        training: whose `update_seconds` is None where it takes no time.
        task: says how many examples an update uses.
        plan: what ends the run.

    Raises:
        ValueError: if the time of an update or the number of its examples is missing.
    """
    if plan.updates is not None:
        return plan.updates
    if plan.seconds is not None:
        if training.update_seconds is None:
            raise ValueError(
                "`seconds` ends a run, but an update takes no time: give `updates`, or"
                " `update_seconds`, as in optimizer(make, update_seconds=...)."
            )
        return int(plan.seconds / training.update_seconds)
    if task.examples is None:
        raise ValueError(
            "`examples` ends a run, but the task does not say how many examples"
            " a batch has: give `updates`."
        )
    return plan.examples // task.examples


def _staleness(memory: Any) -> jax.Array:
    """The staleness that was handed on last, the largest of all leaves; 0 if none."""
    if not optax.tree.get_all_with_path(memory, "staleness"):
        return jnp.zeros((), jnp.int32)
    told = jax.tree.leaves(dj.staleness(memory))
    largest = jnp.stack([jnp.asarray(tau) for tau in told]).max()
    return jnp.ceil(largest).astype(jnp.int32)


def _outboxes_are_full(memory: Any) -> Any:
    """Whether an update uses a gradient; an empty outbox of a late mean has none."""
    full = [value for _, value in optax.tree.get_all_with_path(memory, "full")]
    return jnp.stack(full).all() if full else True


def _has_arrived(memory: Any) -> Any:
    """Whether the last update used a gradient; under delivery there may be none."""
    arrived = [value for _, value in optax.tree.get_all_with_path(memory, "arrived")]
    return jnp.stack(arrived).all() if arrived else True


def _depth(memory: Any) -> int:
    """No gradient is older: the slots of all histories, and each outbox's one."""

    def is_history(node):
        return isinstance(node, (dj.ring.Ring, dj.ring.Calendar))

    nodes = jax.tree.leaves(memory, is_leaf=is_history)
    deepest = [
        max((slots.shape[0] - 1 for slots in jax.tree.leaves(node.slots)), default=0)
        for node in filter(is_history, nodes)
    ]
    return sum(deepest) + 1


def _of_workers(
    task: Task, seed: int, start: int, stop: int, workers: int, own: np.ndarray | None
) -> Any:
    """Batches [updates, own workers, examples of a worker, ...]; None is all workers.

    Worker w has the examples w n .. (w + 1) n - 1 of each batch, whoever draws them.
    """
    if own is None or len(own) == workers:
        return jax.tree.map(
            lambda x: _divided(x, workers), task.batches(seed, start, stop)
        )
    if task.examples is None:  # they cannot be drawn apart
        drawn = task.batches(seed, start, stop)
        return jax.tree.map(lambda x: _divided(x, workers)[:, own], drawn)
    examples = _divided(np.arange(task.examples)[None], workers)[0, own]
    drawn = task.batches(seed, start, stop, examples.ravel())
    return jax.tree.map(lambda x: _divided(x, len(own)), drawn)


def _divided(batches: np.ndarray, workers: int) -> np.ndarray:
    """Batches [updates, examples, ...] as [updates, workers, their examples, ...]."""
    updates, *shape = batches.shape
    if not shape or shape[0] % workers:
        raise ValueError(
            f"`workers` must divide the examples of a batch, got {workers} workers and"
            f" batches of {shape}: change the task's batch size."
        )
    return batches.reshape(updates, workers, shape[0] // workers, *shape[1:])
