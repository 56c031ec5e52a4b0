"""Training of workers that each have a model and average their models."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.jobs import (
    NONE,
    REFUSED,
    Job,
    Model,
    Request,
    Update,
    axes_of,
    called,
    data_seed,
    holds,
    loss_and_gradients,
    of_seeds,
)
from experiments.training.methods import Method, Now
from experiments.training.traces import Traces, into


@dataclasses.dataclass(frozen=True)
class _Replicas:
    method: Method
    cluster: dj.cluster.Cluster
    make: Callable[..., optax.GradientTransformation]
    seen: Callable[[Any], Any] | None

    def arguments(self):
        return axes_of(self.make, self.method.server)

    def job(self, task: Task, request: Request) -> Job:
        return _job(self, task, request)

    def timetable(self, seed: int, updates: int) -> Any:
        return self.method.timetable(self.cluster, updates, data_seed(seed))

    def trace(self, seed: int, updates: int, seconds: float) -> dj.cluster.Trace:
        return self.timetable(seed, updates).trace


def replicas(
    method: Method,
    cluster: dj.cluster.Cluster,
    make: Callable[..., optax.GradientTransformation],
    *,
    seen: Callable[[Any], Any] | None = None,
) -> Any:
    """Trains a model on each worker of a cluster; a method mixes the models.

    Args:
        method: how models are mixed and how long that takes; `methods` has the methods
            of the papers.
        cluster: the cluster whose workers take the steps.
        make: grid axes -> the local optimizer of each worker.
        seen: the method's state -> what `Experiment.metrics` gets as `model.state`.
    """
    return _Replicas(method, cluster, make, seen)


def _job(training: _Replicas, task: Task, request: Request) -> Job:
    workers, method = training.cluster.workers, training.method
    # the memory has the center, and every update changes the memory: all seeds must
    # end at the same step
    traces = Traces.simulate(training, task, request, together=True)
    tables = [training.timetable(seed, traces.updates) for seed in request.seeds]

    def transformation(hyper, now, key):
        inner = called(training.make, hyper, key)
        server = () if method.server is None else (called(method.server, hyper, key),)
        return method.transformation(inner, now, workers, *server)

    def simulated(hyper, key):
        def step(state, given):
            (params, model_state), tx_state = state
            now, batch, number = given
            tx = transformation(hyper, now, key)
            varied = Model(dj.workers.vary(params), dj.workers.vary(model_state))
            of_step = jax.random.fold_in(key, number)
            loss, grads, after = loss_and_gradients(task, varied, batch, of_step)
            updates, tx_state = tx.update(grads, tx_state, params)
            model = Model(optax.apply_updates(params, updates), after)
            return (model, tx_state), loss

        return dj.workers.simulate(step, workers)

    def numbers(step):
        return step * workers + jnp.arange(workers)

    def init(key, hyper, model):
        now, batch = jax.tree.map(lambda leaf: leaf[0, 0], given(0, 1))
        tx_state = transformation(hyper, Now(), key).init(model.params)
        shared = Model(method.model == "shared", False), False
        held = simulated(hyper, key).init(
            (model, tx_state), (now, batch, numbers(0)), shared=shared
        )
        model, tx_state = held.state
        # the model is kept apart, because the model of a diverged cell is masked
        return model, dj.workers.WorkerState(tx_state, held.axes)

    def update(key, hyper, step, model, memory, given):
        now, batch = given
        # the clocks are the same in all cells, so that work which is due every few
        # steps is done in these steps only
        server = () if method.server is None else (optax.identity(),)
        around = method.transformation(optax.identity(), now, workers, *server)
        tx_state = _with_clocks(memory.state, step, _clocks(around, model.params))
        held = dj.workers.WorkerState((model, tx_state), memory.axes)
        held, losses = simulated(hyper, key).step(held, (now, batch, numbers(step)))
        model, tx_state = held.state
        there = now.place >= 0
        count = jnp.maximum(there.sum(), 1)
        ages = jnp.where(holds(tx_state, "applied"), now.behind, REFUSED)
        return Update(
            model=model,
            memory=dj.workers.WorkerState(tx_state, memory.axes),
            loss=jnp.where(there, losses, 0.0).sum() / count,
            staleness=jnp.where(there, now.behind, 0).sum() / count,
            ages=jnp.where(there, ages, NONE),
        )

    def evaluated(model, memory):
        model = averaged(model, memory)
        if training.seen is None:
            return model
        return Model(model.params, training.seen(memory.state))

    def averaged(model, memory):
        def mean(leaf):
            return leaf.mean(axis=2)

        match method.model:
            case "center":
                # not by its name: an optimizer may have another `center`
                center = memory.state.memory.center
                return Model(center, jax.tree.map(mean, model.state))
            case "outer":
                centers = [part.center for part in memory.state.memory.fragments]
                return Model(_whole(centers), jax.tree.map(mean, model.state))
            case "mean":
                return jax.tree.map(mean, model)
        return Model(model.params, jax.tree.map(mean, model.state))

    def given(start, stop, here=None):
        """Gradient g of a seed, ordered by step and worker, is taken on its batch g."""
        rows, batches = [], []
        for seed, table in zip(request.seeds, tables, strict=True):
            there = table.there[start:stop]
            first = int(table.there[:start].sum())
            last = first + max(int(there.sum()), 1)
            drawn = task.batches(data_seed(seed), first, last)
            batches.append(jax.tree.map(lambda x, there=there: into(x, there), drawn))
            columns = (table.place, table.behind, table.in_time)
            rows.append(Now(*(column[start:stop] for column in columns)))
        return of_seeds(rows), of_seeds(batches)  # [updates, seeds, workers, ...]

    def vmap_axes(memory):
        # a history of the center counts visits, whose number differs between seeds
        counts_visits = method.model == "center"
        return 0 if counts_visits else dj.ring.vmap_axes(memory)

    return Job(
        init=init,
        update=update,
        given=given,
        model=evaluated,
        vmap_axes=vmap_axes,
        **traces.of_rule(),
    )


def _whole(fragments: Sequence[Any]) -> Any:
    """The model of all its fragments: a leaf is masked in all but one."""

    def is_masked(leaf):
        return isinstance(leaf, optax.MaskedNode)

    def there(*leaves):
        (leaf,) = (leaf for leaf in leaves if not is_masked(leaf))
        return leaf

    return jax.tree.map(there, *fragments, is_leaf=is_masked)


def _clocks(tx: optax.GradientTransformation, params: Any) -> set[Any]:
    """The paths of the clocks in a method's state, for an optimizer without state."""
    state = jax.eval_shape(tx.init, params)
    return {
        path
        for path, leaf in jax.tree.leaves_with_path(state)
        if leaf.ndim == 0 and getattr(path[-1], "name", None) == "step"
    }


def _with_clocks(tx_state: Any, step: jax.Array, clocks: set[Any]) -> Any:
    """A state whose shared clocks are `step`."""
    return jax.tree.map_with_path(
        lambda path, leaf: step if path in clocks else leaf, tx_state
    )
