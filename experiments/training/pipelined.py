"""Training with the stages of a pipeline, simulated on one device."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.gradients import equal_updates, whole_batches
from experiments.training.jobs import (
    REFUSED,
    Job,
    Model,
    Request,
    Update,
    axes_of,
    called,
    data_seed,
    holds,
)


@dataclasses.dataclass(frozen=True)
class _Pipelined:
    make: Callable[..., dj.pipelines.Pipeline]

    def arguments(self):
        return axes_of(functools.partial(self.make, None))

    def job(self, task: Task, request: Request) -> Job:
        if task.parts is None:
            raise ValueError(
                "`task` must have `parts` to be trained by `pipelined`: cut its model,"
                " as in tasks.char_lm(in_parts=True)."
            )
        return _job(self, task.parts, task, request)


def pipelined(make: Callable[..., dj.pipelines.Pipeline]) -> Any:
    """Trains the stages of a pipeline, on one device. The task must have `parts`.

    Tables report the staleness of the stage whose gradients are oldest.

    Args:
        make: (parts of the task's model, grid axes) -> a pipeline of one device, as
            `dj.pipelines.mixed`, `late` or `vertical_sync` makes it. Learning rates are
            traced; the number of stages cannot be. It may take `key`, a PRNG key of its
            seed.
    """
    return _Pipelined(make)


def _job(
    training: _Pipelined, parts: dj.pipelines.Parts, task: Task, request: Request
) -> Job:
    first = task.batches(data_seed(request.seeds[0]), 0, 1)
    batch_shape = jax.eval_shape(
        lambda: jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), first)
    )

    def pipeline(hyper, key):
        return called(functools.partial(training.make, parts), hyper, key)

    def init(key, hyper, model):
        return model, pipeline(hyper, key).init(model.params, batch_shape, key)

    def update(key, hyper, step, model, memory, batch):
        pipe = pipeline(hyper, key)
        of_step = jax.random.fold_in(jax.random.fold_in(key, 1), step)
        memory, loss = pipe.step(memory, batch, of_step)
        staleness = _staleness(memory, step)
        ages = jnp.where(holds(memory, "applied"), staleness, REFUSED)
        moved = Model(pipe.params(memory))
        return Update(moved, memory, loss, staleness.astype(jnp.float32), ages)

    def given(start, stop, here=None):
        return whole_batches(task, request, start, stop)

    return Job(
        init=init,
        update=update,
        given=given,
        **equal_updates(task, request),
        vmap_axes=_vmap_axes,
    )


def _staleness(memory: Any, step: jax.Array) -> jax.Array:
    """The largest staleness of all stages, of versions read or of waiting gradients."""
    past = jax.tree.leaves(memory.past, is_leaf=lambda x: isinstance(x, dj.ring.Ring))
    kept = [jax.tree.leaves(ring.slots)[0].shape[0] for ring in past]
    waited = [tau for _, tau in optax.tree.get_all_with_path(memory, "staleness")]
    read = jnp.minimum(max(kept, default=1) - 1, step)
    return jnp.stack([read, *map(jnp.max, jax.tree.leaves(waited))]).max()


def _vmap_axes(memory: Any) -> Any:
    """The axes of the memory; cells read the same versions, so they share the clock."""
    return dj.ring.vmap_axes(memory)._replace(step=None)
