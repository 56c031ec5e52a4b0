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
    init: Callable[[jax.Array, Cell, Any], Any]  # replicate, cell, params -> opt_state
    # replicate, cell, step, params, opt_state, given -> what it does
    update: Callable[[jax.Array, Cell, jax.Array, Any, Any, Any], Update]
    # start, stop -> what updates start .. stop - 1 are given, [steps, seeds, ...];
    # of several workers [steps, workers, seeds, ...], and with a third argument,
    # some workers' numbers, what these alone are given
    given: Callable[..., Any]


def delayed(config: ConfigDict, program: Program, task: Task) -> Rule:
    """Each gradient is used `config.delay` updates after it was taken.

    One more where the workers' mean is that of the step before.
    """
    overlapped = config.mesh.workers > 1 and config.exchange == "overlapped_mean"
    later = int(overlapped)

    def init(replicate, cell, params):
        return build.transformation(config, program, cell, replicate).init(params)

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

    return Rule(build.max_delay(config) + later, init, update, given)


def replayed(config: ConfigDict, program: Program, task: Task, course: Course) -> Rule:
    """Each gradient is taken and used where the arm's trace says."""

    def grad_fn(params, batch, key):
        del key
        loss, grads = jax.value_and_grad(task.loss)(params, batch)
        return grads, loss

    def training(cell):
        return build.replay(config, program, cell, course, grad_fn)

    def key(replicate):
        return jax.random.fold_in(jax.random.key(config.cluster_seed), replicate)

    # parameters stand beside it, where a diverged cell's are masked; the key is fixed
    def kept(state):
        return state._replace(params=None, key=None)

    def init(replicate, cell, params):
        return kept(training(cell).init(params, key(replicate)))

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

    return Rule(course.max_staleness, init, update, given)


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
