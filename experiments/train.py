"""Trains every cell of a program at once: one compiled scan a chunk."""

import functools
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from experiments import execution, grid, processes, update
from experiments.course import Course
from experiments.tasks.task import Task


class TrainState(NamedTuple):
    """All that a checkpoint must hold. Leaves are [seeds, cells, ...]."""

    # in every step, in every cell
    step: jax.Array  # updates done, int32 []; one clock for all cells
    opt_state: Any
    staleness_counts: jax.Array  # gradients of each staleness, int32 [max_delay + 1]
    clipped: jax.Array  # updates whose delay exceeded what there was, int32
    # while the cell is finite
    params: Any
    diverged_step: jax.Array  # the step whose loss was not finite, int32; -1 if none
    # of several workers, each its own: the loss of the step before, float32; else ()
    loss: Any = ()


class Chunk(NamedTuple):
    """What a chunk reports; leaves are [chunk, seeds, cells]."""

    # of the step's batches, float32; NaN once a cell has diverged; of several workers
    # [chunk, workers, ...]
    loss: jax.Array
    staleness: jax.Array  # handed to the optimizer, in updates
    # metrics of all the data after the chunk, [seeds, cells]; under an arm alone
    evaluation: dict[str, jax.Array] | None = None


class Counters(NamedTuple):
    """What a state has counted; leaves are [seeds, cells, ...] on the host."""

    diverged_step: np.ndarray  # as in `TrainState`
    staleness_counts: np.ndarray
    clipped: np.ndarray
    dropped: np.ndarray  # gradients refused for their age, int32
    # those of several workers are added up


class Trainer(NamedTuple):
    """One program: compiled functions over [seeds, cells], and what they are fed."""

    # a `TrainState`; under several workers the `WorkerState` of one
    init: Callable[[], Any]
    run_chunk: Callable[[Any, Any], tuple[Any, Chunk]]
    evaluate: Callable[[Any], dict[str, jax.Array]]  # state -> metrics
    step: Callable[[Any, Any], tuple[Any, Chunk]]  # one update, for costs
    given: Callable[[int, int], Any]  # start, stop -> what `run_chunk` scans over
    # state, chunk -> what is reported, the same in every process
    summary: Callable[[Any, Chunk], tuple[Chunk, Counters]]
    counters: Callable[[Any], Counters]  # of a state, likewise
    shapes: Callable[[], Any]  # of the state, with shardings: what a checkpoint becomes
    given_shapes: Callable[[], Any]  # of what `run_chunk` scans over, likewise
    config: ConfigDict  # the program's own: an arm has other steps and chunks
    max_delay: int  # the largest staleness there can be, in updates
    course: Course | None  # of the arm; None under a delay


def trainer(
    config: ConfigDict,
    program: grid.Program,
    task: Task,
    course: Course | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Trainer:
    """Builds the functions of one program. Nothing is compiled yet.

    The step is written for one cell and mapped over cells and seeds. Cells of one seed
    see the same batches; the history's clock stays unbatched, so that the write to a
    slot stays in place.

    Args:
        config: the experiment's, or the arm's own.
        program: what is trained.
        task: what is minimised.
        course: what the cluster of the program's arm does; None where it has none.
        devices: to run on, or to compile for; None for those that there are.
    """
    cells, several = grid.cells(config, program), config.mesh.workers > 1
    replicates = jnp.asarray(config.seeds, jnp.int32)
    if course is None:
        rule = update.delayed(config, program, task)
    elif course.timetables:
        rule = update.averaged(config, program, task, course)
    else:
        rule = update.replayed(config, program, task, course)

    def init_cell(replicate, cell):
        key = jax.random.fold_in(jax.random.key(config.params_seed), replicate)
        params, opt_state = rule.init(replicate, cell, task.init(key))
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            opt_state=opt_state,
            staleness_counts=jnp.zeros(rule.depth + 1, jnp.int32),
            clipped=jnp.zeros((), jnp.int32),
            params=params,
            diverged_step=jnp.full((), -1, jnp.int32),
            loss=jnp.zeros(()) if several else (),
        )

    def step_cell(replicate, cell, state, given):
        moved = rule.update(
            replicate, cell, state.step, state.params, state.opt_state, given
        )
        there = moved.ages >= 0
        judged, at = moved.loss, state.step
        if several:
            # the mean of the losses before: that of this step's would have to be waited
            # for, however late gradients may be
            judged, at = jax.lax.pmean(state.loss, execution.AXIS), state.step - 1
        # A diverged cell is frozen by masking its parameters alone: a selection over
        # the history would copy it.
        live = (state.diverged_step < 0) & jnp.isfinite(judged)
        first_bad = (state.diverged_step < 0) & ~live
        return TrainState(
            step=state.step + 1,
            opt_state=moved.opt_state,
            staleness_counts=state.staleness_counts.at[moved.ages].add(
                there.astype(jnp.int32)
            ),
            clipped=state.clipped + moved.clipped,
            params=optax.tree.where(live, moved.params, state.params),
            diverged_step=jnp.where(first_bad, at, state.diverged_step),
            loss=moved.loss if several else (),
        ), Chunk(jnp.where(live, moved.loss, jnp.nan), moved.staleness)

    one = jax.eval_shape(init_cell, replicates[0], jax.tree.map(lambda x: x[0], cells))
    axes = TrainState(*(0 for _ in one))._replace(
        step=None, opt_state=rule.vmap_axes(one.opt_state)
    )

    def over_cells_and_seeds(function, in_axes, out_axes, given_axes=()):
        over_cells = jax.vmap(
            function, (None, 0, *in_axes, *(None for _ in given_axes)), out_axes
        )
        return jax.vmap(over_cells, (0, None, *in_axes, *given_axes), out_axes)

    init = over_cells_and_seeds(init_cell, (), axes)
    step = over_cells_and_seeds(step_cell, (axes,), (axes, 0), (0,))

    def step_all(state, given):
        return step(replicates, cells, state, given)

    executed = execution.of(config, step_all, devices)

    def given(start, stop):
        own = execution.own(executed.fed, config.mesh.workers)
        return executed.place(rule.given(start, stop, own))

    @functools.cache
    def given_of_one_step():
        """The shapes; of several workers one is drawn for."""

        def of_all(leaf):
            shape = leaf.shape[1:]
            if several:
                shape = config.mesh.workers, *shape[1:]
            return jax.ShapeDtypeStruct(shape, leaf.dtype)

        return jax.tree.map(of_all, rule.given(0, 1, np.arange(1)))

    @functools.partial(
        jax.jit, donate_argnums=0, compiler_options=executed.options or None
    )
    def run_chunk(state, given):
        return jax.lax.scan(executed.step, state, given)

    # it runs once: on a CPU, compiling it well would take longer than all of it
    cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if cpu else None

    def summary(state, chunk):
        if several:
            chunk = chunk._replace(loss=chunk.loss.mean(1))
        return chunk, counters(state)

    @jax.jit
    def model(state):
        return rule.model(state.params, state.opt_state)

    evaluate = _evaluator(task.evaluate, with_gradient=course is not None)
    begin = jax.jit(lambda: init(replicates, cells), compiler_options=quickly)

    def hold(state):
        shared = TrainState(*(False for _ in state))._replace(params=True)
        return executed.init(state, given_of_one_step(), shared)

    @functools.cache
    def shapes():
        made = jax.eval_shape(lambda: hold(init(replicates, cells)))
        return executed.shapes(made)

    def given_shapes():
        def of_chunk(leaf):
            shape = config.chunk, *leaf.shape
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=executed.fed)

        return jax.tree.map(of_chunk, given_of_one_step())

    return Trainer(
        init=lambda: hold(begin()),
        run_chunk=run_chunk,
        evaluate=lambda state: evaluate(model(execution.held(state))),
        step=jax.jit(executed.step, donate_argnums=0),
        given=given,
        summary=jax.jit(summary, out_shardings=executed.everywhere),
        counters=jax.jit(counters, out_shardings=executed.everywhere),
        shapes=shapes,
        given_shapes=given_shapes,
        config=config,
        max_delay=rule.depth,
        course=course,
    )


@functools.lru_cache(maxsize=8)  # arms share one compiled function
def _evaluator(
    evaluate: Callable[[Any], dict[str, jax.Array]], *, with_gradient: bool
) -> Callable[[Any], dict[str, jax.Array]]:
    """A task's metrics of parameters [seeds, cells, ...], and the gradient's norm."""

    def loss(params):
        metrics = evaluate(params)
        return metrics["train_loss"], metrics

    def of_one(params):
        if not with_gradient:
            return evaluate(params)
        gradient, metrics = jax.grad(loss, has_aux=True)(params)
        return metrics | {"gradient_norm": optax.tree.norm(gradient)}

    @jax.jit
    def of_all(params):
        shape = jax.tree.leaves(params)[0].shape[:2]
        # a few cells at a time: a grid's activations on a whole data set are large
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), params)
        metrics = jax.lax.map(of_one, flat, batch_size=8)
        return jax.tree.map(lambda x: x.reshape(shape), metrics)

    return of_all


def counters(state: Any) -> Counters:
    """The counters of a state, wherever they are in it."""
    state = execution.held(state)
    seeds_and_cells = state.diverged_step.shape

    def added_up(counts, shape):
        return counts.reshape(-1, *seeds_and_cells, *shape).sum(0)

    found = optax.tree.get_all_with_path(state.opt_state, "dropped")
    nothing = jnp.zeros(seeds_and_cells, jnp.int32)
    return Counters(
        diverged_step=state.diverged_step,
        staleness_counts=added_up(
            state.staleness_counts, state.staleness_counts.shape[-1:]
        ),
        clipped=added_up(state.clipped, ()),
        dropped=sum((added_up(count, ()) for _, count in found), start=nothing),
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
    trainer: Trainer,
    state: Any,
    *,
    save: Callable[[Any], None],
    report: Callable[[int, Chunk, Counters, float], None],
    profile_dir: str,
) -> Any:
    """Trains one program from `state` to its last update.

    Args:
        trainer: the program's functions.
        state: where to begin; donated.
        save: called with the state after the chunk in which a multiple of
            `config.checkpoint_every` updates is reached, at the end and after SIGTERM.
        report: called once a chunk with the step, the chunk's numbers and the counters
            so far, both on the host, and the seconds it took.
        profile_dir: where a trace of `config.profile` is written.

    Returns:
        The final state.

    Raises:
        InterruptionError: after SIGTERM, once the state is saved.
        DivergenceError: if the only cell there is meets a loss that is not finite.
    """
    config = trainer.config
    start = int(execution.held(state).step)
    single = execution.held(state).diverged_step.size == 1
    if start == config.steps:
        return state
    following = trainer.given(start, start + config.chunk)
    run_chunk = trainer.run_chunk.lower(state, following).compile()
    with _Termination() as termination:
        while start < config.steps:
            stop = start + config.chunk
            profiled = start < config.profile[1] and stop > config.profile[0]
            if profiled:
                jax.profiler.start_trace(profile_dir)
            started = time.perf_counter()
            state, chunk = run_chunk(state, following)
            if trainer.course is not None:
                chunk = chunk._replace(evaluation=trainer.evaluate(state))
            if stop < config.steps:  # the host draws the next chunk meanwhile
                following = trainer.given(stop, stop + config.chunk)
            chunk, counted = jax.device_get(trainer.summary(state, chunk))
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
            every = config.checkpoint_every
            due = stop // every > start // every or stop == config.steps
            start = stop
            stopped = processes.any_of(termination.requested)
            if due or stopped:
                save(state)
            if stopped:
                raise InterruptionError(f"stopped by SIGTERM, saved at step {stop}")
    return state
