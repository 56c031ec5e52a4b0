"""The cells of a program under its seeds: their state, and one update of all."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.running import execution
from experiments.running.program import Program
from experiments.training.jobs import REFUSED, Model, Update, begun


class State(NamedTuple):
    """The state that a checkpoint holds. Leaves are [seeds, cells, ...]."""

    # the grid: the compiled program depends on the shapes of these, not on their values
    seed: jax.Array  # of each replicate, int32 [seeds]
    cell: dict[str, jax.Array]  # {traced axis: its value in each cell [cells]}
    # these change in every update, in every cell
    step: jax.Array  # updates done, int32 []; one clock for all cells
    memory: Any  # of the optimizer
    staleness_counts: jax.Array  # gradients of each staleness, int32 [depth + 1]
    refused: jax.Array  # gradients that `dj.refusing` refused, int32 []
    # these change while the cell is finite
    model: Model
    diverged_step: jax.Array  # the update whose loss was not finite, int32; -1 if none
    # with several workers, the loss of each worker in the update before; else ()
    loss: Any = ()


SHARED = State(*(False for _ in State._fields))._replace(model=True)
"""The fields of a state that all workers share."""


class Chunk(NamedTuple):
    """The report of a chunk; leaves are [chunk, seeds, cells]."""

    # the loss on each update's batch, float32; nan after a cell has diverged; with
    # several workers [chunk, *their axes, ...]
    loss: jax.Array
    staleness: jax.Array  # that the optimizer received, in updates


class Counters(NamedTuple):
    """The counters of a state; leaves are [seeds, cells, ...] on the host."""

    diverged_step: np.ndarray  # as in `State`
    staleness_counts: np.ndarray  # of all workers
    arrived: np.ndarray  # gradients that reached the optimizer and its rules, int32
    dropped: np.ndarray  # gradients that these rules refused, int32
    dropped_in_row: np.ndarray  # since the last one accepted, int32


def values_of(program: Program) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The seeds of a program, int32 [seeds], and its cells."""
    cells = program.cells or {"": jnp.zeros(1)}  # one cell has no axis
    return jnp.asarray(program.seeds, jnp.int32), cells


class Cells:
    """Every cell of a program under every seed.

    The update is written for one cell and mapped over cells and seeds. Cells of one
    seed see the same batches. All cells share the clock of a history, so that a slot is
    written in place. Seeds and the values of cells are arguments: programs that differ
    only in these are compiled once.

    Attributes:
        one: the shapes of one cell's state.
        values: the seeds and the cells, which `begun` takes.
        begun: seeds, cells -> the states before the first update.
    """

    def __init__(self, program: Program):
        self._program, self._job = program, program.job
        self.values = values_of(program)
        first = jax.tree.map(lambda x: x[0], self.values)
        self.begun = jax.jit(self._all_begun, inline=True)  # traced once for all uses
        self.one = jax.eval_shape(self._begun, *first)
        axes = State(*(0 for _ in self.one))._replace(
            step=None, memory=self._job.vmap_axes(self.one.memory)
        )
        self._of_seeds, self._of_cells = (
            axes._replace(cell=None),
            axes._replace(seed=None),
        )

    def _all_begun(self, seeds: jax.Array, cells: dict[str, jax.Array]) -> State:
        over_cells = jax.vmap(self._begun, (None, 0), self._of_cells)
        return jax.vmap(over_cells, (0, None), self._of_seeds)(seeds, cells)

    def updated(self, state: State, given: Any) -> tuple[State, Chunk]:
        """The states after an update, and the report of the update."""
        of_cells, of_seeds = self._of_cells, self._of_seeds
        over_cells = jax.vmap(self._updated, (of_cells, None), (of_cells, 0))
        return jax.vmap(over_cells, (of_seeds, 0), (of_seeds, 0))(state, given)

    def _key(self, seed: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.key(0), seed)

    def _hyper(self, cell: dict[str, Any]) -> dict[str, Any]:
        return {**self._program.static, **cell}

    def _begun(self, seed: jax.Array, cell: dict[str, Any]) -> State:
        key, job = self._key(seed), self._job
        first = begun(self._program.task, key)
        model, memory = job.init(key, self._hyper(cell), first)
        return State(
            seed=seed,
            cell=cell,
            step=jnp.zeros((), jnp.int32),
            memory=memory,
            staleness_counts=jnp.zeros(job.depth(memory) + 1, jnp.int32),
            refused=jnp.zeros((), jnp.int32),
            model=model,
            diverged_step=jnp.full((), -1, jnp.int32),
            loss=jnp.zeros(()) if job.worker_axes else (),
        )

    def _updated(self, state: State, given: Any) -> tuple[State, Chunk]:
        moved = self._job.update(
            self._key(state.seed),
            self._hyper(state.cell),
            state.step,
            state.model,
            state.memory,
            given,
        )
        judged, at = self._judged(state, moved)
        # A diverged cell keeps its model, which stops it. Its history goes on, because
        # a selection would copy it.
        live = (state.diverged_step < 0) & jnp.isfinite(judged)
        first_bad = (state.diverged_step < 0) & ~live
        return state._replace(
            step=state.step + 1,
            memory=moved.memory,
            staleness_counts=state.staleness_counts.at[moved.ages].add(
                (moved.ages >= 0).astype(jnp.int32)
            ),
            refused=state.refused + (moved.ages == REFUSED).sum(dtype=jnp.int32),
            model=optax.tree.where(live, moved.model, state.model),
            diverged_step=jnp.where(first_bad, at, state.diverged_step),
            loss=moved.loss if self._job.worker_axes else (),
        ), Chunk(jnp.where(live, moved.loss, jnp.nan), moved.staleness)

    def _judged(self, state: State, moved: Update) -> tuple[jax.Array, jax.Array]:
        """The loss that shows whether a cell diverges, and the update of this loss.

        With several workers it is the mean loss of the update before: the workers would
        have to wait for the loss of this update, even if gradients may be late.
        """
        if not self._job.worker_axes:
            return moved.loss, state.step
        return jax.lax.pmean(state.loss, tuple(self._job.worker_axes)), state.step - 1


def counters(state: Any) -> Counters:
    """Reads the counters of a state at any depth."""
    several = isinstance(state, dj.workers.WorkerState)
    state = execution.held(state)
    seeds_and_cells = state.diverged_step.shape

    def counts_of(name, besides=""):
        """The counts of this name, [seeds, cells, workers or replicas of each]."""
        for path, count in optax.tree.get_all_with_path(state.memory, name):
            if getattr(path[-1], "tuple_name", None) == besides:
                continue
            if several:  # the axis of the workers comes first, except in shared leaves
                yield jnp.moveaxis(count.reshape(-1, *seeds_and_cells), 0, -1)
            else:
                yield count.reshape(*seeds_and_cells, -1)

    nothing = jnp.zeros(seeds_and_cells, jnp.int32)
    ages = state.staleness_counts
    used = ages.reshape(-1, *seeds_and_cells, ages.shape[-1]).sum(0)
    # `refusing` counts refused means, the loop counts the gradients in them
    refused = state.refused.reshape(-1, *seeds_and_cells).sum(0)
    others = [count.sum(-1) for count in counts_of("dropped", besides="RefusingState")]
    return Counters(
        diverged_step=state.diverged_step,
        staleness_counts=used,
        arrived=used.sum(-1) + refused,
        dropped=sum(others, start=refused),
        dropped_in_row=functools.reduce(
            jnp.maximum,
            (count.max(-1) for count in counts_of("dropped_in_row")),
            nothing,
        ),
    )
