"""Trains every cell of a program at once: one compiled scan a chunk."""

import functools
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import build, grid
from experiments.tasks.task import Task


class TrainState(NamedTuple):
    """All that a checkpoint must hold. Leaves are [seeds, cells, ...]."""

    # in every step, in every cell
    step: jax.Array  # updates done, int32 []; one clock for all cells
    opt_state: Any
    staleness_counts: jax.Array  # updates at each staleness, int32 [max_delay + 1]
    clipped: jax.Array  # updates whose delay exceeded what there was, int32
    # while the cell is finite
    params: Any
    diverged_step: jax.Array  # the step whose loss was not finite, int32; -1 if none


class Chunk(NamedTuple):
    """What a chunk reports; leaves are [chunk, seeds, cells]."""

    loss: jax.Array  # of the step's batch, float32; NaN once a cell has diverged
    staleness: jax.Array  # handed to the optimizer, in updates, int32


class Counters(NamedTuple):
    """What a state has counted; leaves are [seeds, cells, ...] on the host."""

    diverged_step: np.ndarray  # as in `TrainState`
    staleness_counts: np.ndarray
    clipped: np.ndarray
    dropped: np.ndarray  # gradients refused for their age, int32


class Trainer(NamedTuple):
    """One program: compiled functions over [seeds, cells]."""

    init: Callable[[], TrainState]
    run_chunk: Callable[[TrainState, Any], tuple[TrainState, Chunk]]
    evaluate: Callable[[Any], dict[str, jax.Array]]  # params -> metrics
    step: Callable[[TrainState, Any], tuple[TrainState, Chunk]]  # one update, for costs


def trainer(config: ConfigDict, program: grid.Program, task: Task) -> Trainer:
    """Builds the functions of one program. Nothing is compiled yet.

    The step is written for one cell and mapped over cells and seeds. Cells of one seed
    see the same batches; the history's clock stays unbatched, so that the write to a
    slot stays in place.
    """
    cells = grid.cells(config, program)
    replicates = jnp.asarray(config.seeds, jnp.int32)
    depth = build.max_delay(config)

    def init_cell(replicate, cell):
        key = jax.random.fold_in(jax.random.key(config.params_seed), replicate)
        params = task.init(key)
        tx = build.transformation(config, program, cell, replicate)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            opt_state=tx.init(params),
            staleness_counts=jnp.zeros(depth + 1, jnp.int32),
            clipped=jnp.zeros((), jnp.int32),
            params=params,
            diverged_step=jnp.full((), -1, jnp.int32),
        )

    def step_cell(replicate, cell, state, batch):
        tx = build.transformation(config, program, cell, replicate)
        loss, grads = jax.value_and_grad(task.loss)(state.params, batch)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        tau = dj.staleness(opt_state)
        asked = build.delay(config, cell, replicate)(state.step)
        # A diverged cell is frozen by masking its parameters alone: a selection over
        # the history would copy it.
        live = (state.diverged_step < 0) & jnp.isfinite(loss)
        first_bad = (state.diverged_step < 0) & ~live
        moved = optax.apply_updates(state.params, updates)
        return TrainState(
            step=state.step + 1,
            opt_state=opt_state,
            staleness_counts=state.staleness_counts.at[tau].add(1),
            clipped=state.clipped + (asked > tau),
            params=optax.tree.where(live, moved, state.params),
            diverged_step=jnp.where(first_bad, state.step, state.diverged_step),
        ), Chunk(jnp.where(live, loss, jnp.nan), tau)

    one = jax.eval_shape(init_cell, replicates[0], jax.tree.map(lambda x: x[0], cells))
    axes = dj.ring.vmap_axes(one)._replace(step=None)

    def over_cells_and_seeds(function, in_axes, out_axes, batch_axes=()):
        over_cells = jax.vmap(
            function, (None, 0, *in_axes, *(None for _ in batch_axes)), out_axes
        )
        return jax.vmap(over_cells, (0, None, *in_axes, *batch_axes), out_axes)

    init = over_cells_and_seeds(init_cell, (), axes)
    step = over_cells_and_seeds(step_cell, (axes,), (axes, 0), (0,))

    def step_all(state, batch):
        return step(replicates, cells, state, batch)

    @functools.partial(jax.jit, donate_argnums=0)
    def run_chunk(state, batches):
        return jax.lax.scan(step_all, state, batches)

    @jax.jit
    def evaluate(params):
        # a few cells at a time: a grid's activations on a whole data set are large
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), params)
        metrics = jax.lax.map(task.evaluate, flat, batch_size=8)
        shape = len(config.seeds), len(cells.delay)
        return jax.tree.map(lambda x: x.reshape(shape), metrics)

    # it runs once: on a CPU, compiling it well would take longer than all of it
    cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if cpu else None
    return Trainer(
        init=jax.jit(lambda: init(replicates, cells), compiler_options=quickly),
        run_chunk=run_chunk,
        evaluate=evaluate,
        step=jax.jit(step_all, donate_argnums=0),
    )


def batches(config: ConfigDict, task: Task, start: int, stop: int) -> Any:
    """The batches of updates start .. stop - 1, leaves [stop - start, seeds, ...]."""

    def of_seed(seed):
        mixed = np.random.SeedSequence([config.data_seed, seed]).generate_state(1)
        return task.batches(int(mixed[0]), start, stop)

    return jax.tree.map(
        lambda *leaves: np.stack(leaves, axis=1), *map(of_seed, config.seeds)
    )


def counters(state: TrainState) -> Counters:
    """The counters of a state, wherever they are in it."""
    found = optax.tree.get_all_with_path(state.opt_state, "dropped")
    return Counters(
        diverged_step=state.diverged_step,
        staleness_counts=state.staleness_counts,
        clipped=state.clipped,
        dropped=sum((count for _, count in found), start=0 * state.clipped),
    )


class Costs(NamedTuple):
    """What a program costs, known before it runs."""

    cells: int
    parameters: int  # of one cell
    history_bytes: int  # of all cells
    state_bytes: int  # of all cells; what a checkpoint holds
    flops: float  # of one update of all cells
    peak_bytes: int  # of one chunk, estimated by the compiler
    compile_seconds: float


def state_bytes(trainer: Trainer) -> tuple[int, int]:
    """Bytes of a program's state, and of the histories in it."""
    state = jax.eval_shape(trainer.init)
    rings = [
        node
        for node in jax.tree.leaves(
            state.opt_state, is_leaf=lambda x: isinstance(x, dj.ring.Ring)
        )
        if isinstance(node, dj.ring.Ring)
    ]
    return _bytes(state), _bytes(rings)


def check_memory(program: grid.Program, trainer: Trainer) -> None:
    """Refuses a program whose state cannot fit, before anything is allocated.

    Raises:
        ValueError: with the sizes and the remedies.
    """
    total, history = state_bytes(trainer)
    stats = jax.devices()[0].memory_stats() or {}
    memory = stats.get("bytes_limit") or (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    if total > memory:
        raise ValueError(
            f"The state of program {program.name} needs {total / 2**30:.1f} GiB, of"
            f" which {history / 2**30:.1f} GiB are the gradients' history; the device"
            f" has {memory / 2**30:.1f} GiB. Lower config.delay.max_delay, halve the"
            " history with --config.delay.history_dtype=bfloat16, or train fewer cells"
            " at once."
        )


def costs(config: ConfigDict, trainer: Trainer, task: Task) -> Costs:
    """Compiles a program and reads its costs off, without running it."""
    state = jax.eval_shape(trainer.init)
    chunk = jax.eval_shape(lambda: batches(config, task, 0, config.chunk))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), chunk)
    started = time.perf_counter()
    compiled = trainer.run_chunk.lower(state, chunk).compile()
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    flops = trainer.step.lower(state, one).compile().cost_analysis()["flops"]
    seeds, cells = state.diverged_step.shape
    total, history = state_bytes(trainer)
    return Costs(
        cells=seeds * cells,
        parameters=sum(math.prod(x.shape[2:]) for x in jax.tree.leaves(state.params)),
        history_bytes=history,
        state_bytes=total,
        flops=flops,
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        compile_seconds=seconds,
    )


class InterruptionError(Exception):
    """SIGTERM arrived; the state of the last chunk has been saved."""


class DivergenceError(Exception):
    """A single run met a loss that is not finite."""


class _Termination:
    """Notes SIGTERM, so that a run stops between two chunks."""

    def __enter__(self):
        self.requested = False
        self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def _note(self, signum, frame):
        del signum, frame
        self.requested = True

    def __exit__(self, *exception):
        signal.signal(signal.SIGTERM, self._previous)


def run(
    config: ConfigDict,
    task: Task,
    trainer: Trainer,
    state: TrainState,
    *,
    save: Callable[[TrainState], None],
    report: Callable[[int, Chunk, Counters, float], None],
    profile_dir: str,
) -> TrainState:
    """Trains one program from `state` to `config.steps` updates.

    Args:
        config: the experiment's config.
        task: supplies batches.
        trainer: the program's functions.
        state: where to begin; donated.
        save: called with the state every `config.checkpoint_every` updates, at the end
            and after SIGTERM.
        report: called once a chunk with the step, the chunk's numbers and the counters
            so far, both on the host, and the seconds it took.
        profile_dir: where a trace of `config.profile` is written.

    Returns:
        The final state.

    Raises:
        InterruptionError: after SIGTERM, once the state is saved.
        DivergenceError: if the only cell there is meets a loss that is not finite.
    """
    start = int(state.step)
    single = state.diverged_step.size == 1
    if start == config.steps:
        return state
    following = batches(config, task, start, start + config.chunk)
    run_chunk = trainer.run_chunk.lower(state, following).compile()
    with _Termination() as termination:
        while start < config.steps:
            stop = start + config.chunk
            profiled = start < config.profile[1] and stop > config.profile[0]
            if profiled:
                jax.profiler.start_trace(profile_dir)
            started = time.perf_counter()
            state, chunk = run_chunk(state, following)
            if stop < config.steps:  # the host draws the next chunk meanwhile
                following = batches(config, task, stop, stop + config.chunk)
            chunk, counted = jax.device_get((chunk, counters(state)))
            seconds = time.perf_counter() - started
            if profiled:
                jax.profiler.stop_trace()
            report(stop, chunk, counted, seconds)
            if single and counted.diverged_step.item() >= 0:
                raise DivergenceError(
                    f"the loss was not finite at step {counted.diverged_step.item()}"
                    f" (in updates {start} to {stop}); what came before is recorded."
                    " Lower the learning rate or the delay."
                )
            start = stop
            due = stop % config.checkpoint_every == 0 or stop == config.steps
            if due or termination.requested:
                save(state)
            if termination.requested:
                raise InterruptionError(f"stopped by SIGTERM, saved at step {stop}")
    return state


def _bytes(tree: Any) -> int:
    return sum(
        math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree)
    )
