"""The cells of a program under its seeds: what each holds, and one update of all."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.running.program import Program
from experiments.training.rules import REFUSED, Model, Update, begun


class State(NamedTuple):
    """All that a checkpoint must hold. Leaves are [seeds, cells, ...]."""

    # in every update, in every cell
    step: jax.Array  # updates done, int32 []; one clock for all cells
    memory: Any  # of the optimizer
    staleness_counts: jax.Array  # gradients of each staleness, int32 [depth + 1]
    refused: jax.Array  # gradients that `dj.refusing` refused, int32 []
    # while the cell is finite
    model: Model
    diverged_step: jax.Array  # the update whose loss was not finite, int32; -1 if none
    # of several workers, each its own: the loss of the update before; else ()
    loss: Any = ()


SHARED = State(*(False for _ in State._fields))._replace(model=True)
"""What of a state all workers have alike."""


class Chunk(NamedTuple):
    """What a chunk reports; leaves are [chunk, seeds, cells]."""

    # of the updates' batches, float32; nan once a cell has diverged; of several
    # workers [chunk, *their axes, ...]
    loss: jax.Array
    staleness: jax.Array  # that the optimizer was told, in updates


class Cells:
    """Every cell of a program under every seed.

    The update is written for one cell and mapped over cells and seeds. Cells of one
    seed see the same batches; a history's clock stays unbatched, so that the write to a
    slot stays in place.

    Attributes:
        one: the shapes of one cell's state.
    """

    def __init__(self, program: Program):
        self._program, self._rule = program, program.rule
        self._cells = program.cells or {"": jnp.zeros(1)}  # one cell has no axis
        self._seeds = jnp.asarray(program.seeds, jnp.int32)
        first = jax.tree.map(lambda x: x[0], self._cells)
        self.one = jax.eval_shape(self._begun, self._seeds[0], first)
        memory = self._rule.vmap_axes(self.one.memory)
        axes = State(*(0 for _ in self.one))
        self._axes = axes._replace(step=None, memory=memory)

    def begun(self) -> State:
        """The states before the first update."""
        return self._mapped(self._begun, (), (), self._axes)()

    def updated(self, state: State, given: Any) -> tuple[State, Chunk]:
        """The states after an update, and what it reports."""
        mapped = self._mapped(self._updated, (self._axes,), (0,), (self._axes, 0))
        return mapped(state, given)

    def _mapped(self, function: Any, of_cells: Any, of_seeds: Any, out: Any) -> Any:
        """A function of a seed and a cell, over all of them.

        Args:
            function: seed, cell, what each cell has, what each seed has -> anything.
            of_cells: the axes of what each cell has.
            of_seeds: the axes of what each seed has, and all of its cells alike.
            out: the axes of what it returns.
        """
        alike = (None for _ in of_seeds)
        over_cells = jax.vmap(function, (None, 0, *of_cells, *alike), out)
        over_seeds = jax.vmap(over_cells, (0, None, *of_cells, *of_seeds), out)
        return lambda *arguments: over_seeds(self._seeds, self._cells, *arguments)

    def _key(self, seed: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.key(0), seed)

    def _hyper(self, cell: dict[str, Any]) -> dict[str, Any]:
        return {**self._program.static, **cell}

    def _begun(self, seed: jax.Array, cell: dict[str, Any]) -> State:
        key, rule = self._key(seed), self._rule
        first = begun(self._program.task, key)
        model, memory = rule.init(key, self._hyper(cell), first)
        return State(
            step=jnp.zeros((), jnp.int32),
            memory=memory,
            staleness_counts=jnp.zeros(rule.depth(memory) + 1, jnp.int32),
            refused=jnp.zeros((), jnp.int32),
            model=model,
            diverged_step=jnp.full((), -1, jnp.int32),
            loss=jnp.zeros(()) if rule.worker_axes else (),
        )

    def _updated(
        self, seed: jax.Array, cell: dict[str, Any], state: State, given: Any
    ) -> tuple[State, Chunk]:
        moved = self._rule.update(
            self._key(seed),
            self._hyper(cell),
            state.step,
            state.model,
            state.memory,
            given,
        )
        judged, at = self._judged(state, moved)
        # A diverged cell is frozen by masking its model alone: a selection over the
        # history would copy it.
        live = (state.diverged_step < 0) & jnp.isfinite(judged)
        first_bad = (state.diverged_step < 0) & ~live
        return State(
            step=state.step + 1,
            memory=moved.memory,
            staleness_counts=state.staleness_counts.at[moved.ages].add(
                (moved.ages >= 0).astype(jnp.int32)
            ),
            refused=state.refused + (moved.ages == REFUSED).sum(dtype=jnp.int32),
            model=optax.tree.where(live, moved.model, state.model),
            diverged_step=jnp.where(first_bad, at, state.diverged_step),
            loss=moved.loss if self._rule.worker_axes else (),
        ), Chunk(jnp.where(live, moved.loss, jnp.nan), moved.staleness)

    def _judged(self, state: State, moved: Update) -> tuple[jax.Array, jax.Array]:
        """The loss that says whether a cell diverges, and whose update it is.

        Of several workers it is the mean of the losses before: this update's would have
        to be waited for, however late gradients may be.
        """
        if not self._rule.worker_axes:
            return moved.loss, state.step
        return jax.lax.pmean(state.loss, tuple(self._rule.worker_axes)), state.step - 1
