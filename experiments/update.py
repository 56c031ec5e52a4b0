"""One update of one cell: under a delay, or along what a cluster did."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import build
from experiments.course import Course
from experiments.grid import Cell, Program
from experiments.tasks.task import Task


class Update(NamedTuple):
    """What an update does to a cell."""

    params: Any
    opt_state: Any
    loss: jax.Array  # mean over its gradients, float32 []
    staleness: jax.Array  # handed to the optimizer, in updates, []
    ages: jax.Array  # staleness of each gradient, int32 [K] or []; -1: there is none
    clipped: jax.Array  # whether the delay asked for exceeded what there was, bool []


class Rule(NamedTuple):
    """How cells are updated."""

    depth: int  # the largest staleness, in updates
    # replicate, cell, params -> the same as they are trained, opt_state
    init: Callable[[jax.Array, Cell, Any], tuple[Any, Any]]
    # replicate, cell, step, params, opt_state, given -> what it does
    update: Callable[[jax.Array, Cell, jax.Array, Any, Any, Any], Update]
    # params, opt_state -> the model to evaluate, leaves [seeds, cells, ...]
    model: Callable[[Any, Any], Any]
    # start, stop -> what updates start .. stop - 1 are given, [steps, seeds, ...];
    # of several workers [steps, workers, seeds, ...], and with a third argument,
    # some workers' numbers, what these alone are given
    given: Callable[..., Any]
    # of the opt_state, over cells and seeds
    vmap_axes: Callable[[Any], Any] = dj.ring.vmap_axes


def delayed(config: ConfigDict, program: Program, task: Task) -> Rule:
    """Each gradient is used `config.delay` updates after it was taken.

    One more where the workers' mean is that of the step before.
    """
    overlapped = config.mesh.workers > 1 and config.exchange == "overlapped_mean"
    later = int(overlapped)

    def init(replicate, cell, params):
        tx = build.transformation(config, program, cell, replicate)
        return params, tx.init(params)

    def update(replicate, cell, step, params, opt_state, batch):
        tx = build.transformation(config, program, cell, replicate)
        loss, grads = jax.value_and_grad(task.loss)(dj.workers.vary(params), batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        tau = opt_state.staleness
        asked = build.delay(config, cell, replicate)(step)
        moved = optax.apply_updates(params, updates)
        ages = jnp.where(step < later, -1, tau + later)
        return Update(moved, opt_state, loss, tau + later, ages, asked > tau)

    def given(start, stop, own=None):
        seeds = [data_seed(config, seed) for seed in config.seeds]
        workers = config.mesh.workers
        if workers == 1:
            batches = [task.batches(seed, start, stop) for seed in seeds]
            return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *batches)
        batches = [_of_workers(task, seed, start, stop, workers, own) for seed in seeds]
        # [steps, workers, seeds, examples of a worker, ...]
        return jax.tree.map(lambda *leaves: np.stack(leaves, axis=2), *batches)

    return Rule(build.max_delay(config) + later, init, update, _parameters, given)


def replayed(config: ConfigDict, program: Program, task: Task, course: Course) -> Rule:
    """Each gradient is taken and used where the arm's trace says."""

    def grad_fn(params, batch, key):
        del key
        return jax.value_and_grad(task.loss)(params, batch)

    def training(cell):
        return build.replay(config, program, cell, course, grad_fn)

    def key(replicate):
        return jax.random.fold_in(jax.random.key(config.cluster_seed), replicate)

    # parameters stand beside it, where a diverged cell's are masked; the key is fixed
    def kept(state):
        return state._replace(params=None, key=None)

    def init(replicate, cell, params):
        return params, kept(training(cell).init(params, key(replicate)))

    def update(replicate, cell, step, params, opt_state, given):
        del step
        state = opt_state._replace(params=params, key=key(replicate))
        state, report = training(cell).step(state, given)
        return Update(
            params=state.params,
            opt_state=kept(state),
            loss=report.metrics,
            staleness=report.staleness,
            ages=given[0].staleness,
            clipped=jnp.zeros((), bool),
        )

    def given(start, stop, own=None):
        """Gradient g of a seed, in the order of the trace, is taken on its batch g."""
        del own  # the arm's workers are simulated in one
        arrivals = course.arrivals(start, stop)
        firsts, lasts = course.gradients(start), course.gradients(stop)
        batches = []
        for s, seed in enumerate(config.seeds):
            there = arrivals.staleness[:, s] >= 0
            first, last = int(firsts[s]), int(lasts[s])
            drawn = task.batches(data_seed(config, seed), first, max(last, first + 1))
            batches.append(jax.tree.map(lambda x, there=there: _into(x, there), drawn))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *batches)
        return arrivals, stacked

    return Rule(course.max_staleness, init, update, _parameters, given)


def averaged(config: ConfigDict, program: Program, task: Task, course: Course) -> Rule:
    """Every worker takes a step of its own model; the method of the arm mixes them."""
    workers, method = course.workers, build.method(config, course.name)

    # who meets whom is the same under all seeds, or every meeting that can be would be
    # computed; what workers learn, and when they are done, is not
    key = jax.random.key(config.cluster_seed)

    def transformation(cell, now):
        inner = build.optimizer(config, program, cell)
        return method.transformation(inner, now, workers, key)

    def simulated(cell):
        def step(state, given):
            params, tx_state = state
            now, batch = given
            tx = transformation(cell, now)
            loss, grads = jax.value_and_grad(task.loss)(dj.workers.vary(params), batch)
            updates, tx_state = tx.update(grads, tx_state, params)
            return (optax.apply_updates(params, updates), tx_state), loss

        return dj.workers.simulate(step, workers)

    def init(replicate, cell, params):
        del replicate
        first = jax.tree.map(lambda leaf: leaf[0, 0], given(0, 1))
        try:
            tx_state = transformation(cell, build.Now()).init(params)
            held = simulated(cell).init(
                (params, tx_state), first, shared=(method.model == "shared", False)
            )
        except (TypeError, ValueError) as error:
            where = f"config.cluster.arms: {course.name!r}"
            raise ValueError(f"{where}: {error}") from error
        params, tx_state = held.state
        # parameters stand beside it, where a diverged cell's are masked
        return params, dj.workers.WorkerState(tx_state, held.axes)

    def update(replicate, cell, step, params, opt_state, given):
        del replicate
        now, _ = given
        # the same in all cells, so that what is done every few steps is done then alone
        tx_state = _with_clock(opt_state.state, step)
        held = dj.workers.WorkerState((params, tx_state), opt_state.axes)
        held, losses = simulated(cell).step(held, given)
        params, tx_state = held.state
        there = now.place >= 0
        ages = jnp.where(there, now.behind, -1)
        count = jnp.maximum(there.sum(), 1)
        return Update(
            params=params,
            opt_state=dj.workers.WorkerState(tx_state, opt_state.axes),
            loss=jnp.where(there, losses, 0.0).sum() / count,
            staleness=jnp.where(there, now.behind, 0).sum() / count,
            ages=ages,
            clipped=jnp.zeros((), bool),
        )

    def model(params, opt_state):
        match method.model:
            case "center":
                return optax.tree.get(opt_state.state, "center")
            case "mean":
                return jax.tree.map(lambda leaf: leaf.mean(axis=2), params)
        return params

    def given(start, stop, own=None):
        """Gradient g of a seed, in the order of steps and workers, has its batch g."""
        del own  # the arm's workers are simulated in one
        rows, batches = [], []
        for seed, table in zip(config.seeds, course.timetables, strict=True):
            there = table.there[start:stop]
            first = int(table.there[:start].sum())
            last = first + max(int(there.sum()), 1)
            drawn = task.batches(data_seed(config, seed), first, last)
            batches.append(jax.tree.map(lambda x, there=there: _into(x, there), drawn))
            own_rows = (table.place, table.behind, table.in_time)
            rows.append(build.Now(*(field[start:stop] for field in own_rows)))
        # [steps, seeds, workers, ...]
        stacked = [
            jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *trees)
            for trees in (rows, batches)
        ]
        return tuple(stacked)

    def vmap_axes(opt_state):
        # a history of the center counts visits, of which seeds have different numbers
        own_clocks = method.model == "center"
        return 0 if own_clocks else dj.ring.vmap_axes(opt_state)

    return Rule(course.max_staleness, init, update, model, given, vmap_axes)


def _with_clock(tx_state: Any, step: jax.Array) -> Any:
    """A state whose shared clocks are `step`."""

    def is_clock(path, leaf):
        del path
        return leaf.ndim == 0

    clocks = optax.tree.get_all_with_path(tx_state, "step", is_clock)
    return optax.tree.set(tx_state, is_clock, step=step) if clocks else tx_state


def _parameters(params: Any, opt_state: Any) -> Any:
    del opt_state
    return params


def _of_workers(
    task: Task, seed: int, start: int, stop: int, workers: int, own: np.ndarray | None
) -> Any:
    """Batches [steps, own workers, examples of a worker, ...]; None is all workers.

    Worker w has the examples w n .. (w + 1) n - 1 of each batch, whoever draws them.
    """
    if own is None or len(own) == workers:
        whole = task.batches(seed, start, stop)
        return jax.tree.map(lambda x: _divided(x, workers), whole)
    if task.examples is None:  # they cannot be drawn apart
        whole = task.batches(seed, start, stop)
        return jax.tree.map(lambda x: _divided(x, workers)[:, own], whole)
    examples = _divided(np.arange(task.examples)[None], workers)[0, own]
    drawn = task.batches(seed, start, stop, examples.ravel())
    return jax.tree.map(lambda x: _divided(x, len(own)), drawn)


def _divided(batches: np.ndarray, workers: int) -> np.ndarray:
    """Batches [steps, examples, ...] as [steps, workers, examples of a worker, ...]."""
    steps, *shape = batches.shape
    if not shape or shape[0] % workers:
        raise ValueError(
            f"config.mesh.workers={workers} must divide the examples of a batch, which"
            f" is {shape}: change config.task.batch_size."
        )
    return batches.reshape(steps, workers, shape[0] // workers, *shape[1:])


def data_seed(config: ConfigDict, seed: int) -> int:
    """The seed of a replicate's order of the examples."""
    mixed = np.random.SeedSequence([config.data_seed, seed]).generate_state(1)
    return int(mixed[0])


def _into(batches: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Batches in the places [n, K] of their gradients; zeros where there is none."""
    placed = np.zeros((*there.shape, *batches.shape[1:]), batches.dtype)
    placed[there] = batches[: there.sum()]
    return placed
