"""Trains every cell of a program at once, in compiled loops between evaluations."""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.running import execution, sharing
from experiments.running.host import compiling, processes
from experiments.running.host.termination import Termination
from experiments.running.programs import Program
from experiments.training.rules import REFUSED, Model, begun

_CHECKPOINT_SECONDS = 30.0  # from one to the next, where nothing else is asked
_CHUNK_BYTES = 2**26  # of batches that are on their way to the device at once


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


class Chunk(NamedTuple):
    """What a chunk reports; leaves are [chunk, seeds, cells]."""

    # of the updates' batches, float32; nan once a cell has diverged; of several
    # workers [chunk, *their axes, ...]
    loss: jax.Array
    staleness: jax.Array  # that the optimizer was told, in updates


class Counters(NamedTuple):
    """What a state has counted; leaves are [seeds, cells, ...] on the host."""

    diverged_step: np.ndarray  # as in `State`
    staleness_counts: np.ndarray  # of all workers
    arrived: np.ndarray  # gradients that came to the optimizer and its rules, int32
    dropped: np.ndarray  # gradients that these rules refused, int32
    dropped_in_row: np.ndarray  # since the last one accepted, int32


class Trainer(NamedTuple):
    """One program: compiled functions over [seeds, cells], and what they are fed."""

    # a `State`; under several workers the `WorkerState` of one
    init: Callable[[], Any]
    # state, given, how many updates -> state, what a whole chunk would report
    run_chunk: Callable[[Any, Any, Any], tuple[Any, Chunk]]
    evaluate: Callable[[Any], dict[str, jax.Array]]  # state -> metrics [seeds, cells]
    step: Callable[[Any, Any], tuple[Any, Chunk]]  # one update, for costs
    given: Callable[[int, int], Any]  # start, stop -> what a chunk is given, padded
    # state, chunk -> what is reported, the same in every process
    summary: Callable[[Any, Chunk], tuple[Chunk, Counters]]
    counters: Callable[[Any], Counters]  # of a state, likewise
    shapes: Callable[[], Any]  # of the state, with shardings: what a checkpoint becomes
    given_shapes: Callable[[], Any]  # of what `run_chunk` takes beside it, likewise
    # {name: a traced function}, of one device, whatever the devices: for a fingerprint
    traced: Callable[[], dict[str, Any]]
    batch: Callable[
        [int], Any
    ]  # what one update is given; of several workers the first
    program: Program
    chunk: int  # the most updates of one call of `run_chunk`


def trainer(
    program: Program,
    *,
    measure: Mapping[str, Callable[..., Any]] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Trainer:
    """Builds the functions of one program. Nothing is compiled yet.

    The update is written for one cell and mapped over cells and seeds. Cells of one
    seed see the same batches; a history's clock stays unbatched, so that the write to a
    slot stays in place.

    Args:
        program: what is trained.
        measure: further metrics, {name: (model, task) -> float32 []}.
        devices: to run on, or to compile for; None for all that there are.
    """
    rule, task = program.rule, program.task
    axes, several = rule.worker_axes, bool(rule.worker_axes)
    cells = program.cells or {"": jnp.zeros(1)}  # one cell has no axis
    seeds = jnp.asarray(program.seeds, jnp.int32)

    def of_seed(seed):
        return jax.random.fold_in(jax.random.key(0), seed)

    def hyper(cell):
        return {**program.static, **cell}

    def init_cell(seed, cell):
        key = of_seed(seed)
        model, memory = rule.init(key, hyper(cell), begun(task, key))
        return State(
            step=jnp.zeros((), jnp.int32),
            memory=memory,
            staleness_counts=jnp.zeros(rule.depth(memory) + 1, jnp.int32),
            refused=jnp.zeros((), jnp.int32),
            model=model,
            diverged_step=jnp.full((), -1, jnp.int32),
            loss=jnp.zeros(()) if several else (),
        )

    def step_cell(seed, cell, state, given):
        moved = rule.update(
            of_seed(seed), hyper(cell), state.step, state.model, state.memory, given
        )
        judged, at = moved.loss, state.step
        if several:
            # the mean of the losses before: this update's would have to be waited for,
            # however late gradients may be
            judged, at = jax.lax.pmean(state.loss, tuple(axes)), state.step - 1
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
            loss=moved.loss if several else (),
        ), Chunk(jnp.where(live, moved.loss, jnp.nan), moved.staleness)

    one = jax.eval_shape(init_cell, seeds[0], jax.tree.map(lambda x: x[0], cells))
    over = State(*(0 for _ in one))._replace(
        step=None, memory=rule.vmap_axes(one.memory)
    )

    def over_cells_and_seeds(function, in_axes, out_axes, given_axes=()):
        over_cells = jax.vmap(
            function, (None, 0, *in_axes, *(None for _ in given_axes)), out_axes
        )
        return jax.vmap(over_cells, (0, None, *in_axes, *given_axes), out_axes)

    init = over_cells_and_seeds(init_cell, (), over)
    step = over_cells_and_seeds(step_cell, (over,), (over, 0), (0,))

    def step_all(state, given):
        return step(seeds, cells, state, given)

    def specs(state):
        sharding = rule.sharding or sharing.by_largest(rule.devices_of_each)
        return sharing.specs(state, one.model.params, rule.devices_of_each, sharding)

    executed = execution.of(
        axes,
        on_devices=rule.devices,
        step=step_all,
        there=devices,
        model=rule.devices_of_each,
        specs=specs,
    )

    def given(start, stop):
        own = execution.own(executed.fed, axes)
        rows = rule.given(start, stop, own)
        _check_shapes(rows, given_of_one_step(), (stop - start,), axes)
        if stop - start < chunk:
            more = chunk - (stop - start)
            rows = jax.tree.map(lambda x: np.r_[x, np.repeat(x[-1:], more, 0)], rows)
        return executed.place(rows)

    @functools.cache
    def given_of_one_step():
        """The shapes; of several workers one is drawn for."""

        def of_all(leaf):
            shape = leaf.shape[1:]
            if several:
                shape = *axes.values(), *shape[1:]
            return jax.ShapeDtypeStruct(shape, leaf.dtype)

        return jax.tree.map(of_all, rule.given(0, 1, np.arange(1)))

    @functools.partial(
        jax.jit, donate_argnums=0, compiler_options=executed.options or None
    )
    def run_chunk(state, given, count):
        # a scan, but of a length that is known when it runs: the last chunk of a run
        # is shorter, and would be compiled again
        def row(i):
            return jax.tree.map(lambda x: x[i], given)

        def one(i, carry):
            state, reports = carry
            state, report = executed.step(state, row(i))
            put = jax.tree.map(lambda all_, x: all_.at[i].set(x), reports, report)
            return state, put

        _, report = jax.eval_shape(executed.step, state, row(0))
        reports = jax.tree.map(lambda x: jnp.zeros((chunk, *x.shape), x.dtype), report)
        return jax.lax.fori_loop(0, count, one, (state, reports))

    # it runs once: on a CPU, compiling it well would take longer than all of it
    cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if cpu else None

    def summary(state, chunk):
        if several:
            over_workers = tuple(range(1, 1 + len(axes)))
            chunk = chunk._replace(loss=chunk.loss.mean(over_workers))
        return chunk, counters(state)

    @jax.jit
    def model(state):
        return rule.model(state.model, state.memory)

    evaluate = _evaluator(task, tuple((measure or {}).items()))
    evaluators = {"evaluation": _evaluator(task, ())} | {
        f"metric {own[0]}": _evaluator(task, (own,)) for own in (measure or {}).items()
    }
    begin = jax.jit(
        lambda: init(seeds, cells),
        out_shardings=executed.new_shardings(
            lambda: jax.eval_shape(init, seeds, cells)
        ),
        compiler_options=quickly,
    )

    def hold(state):
        shared = State(*(False for _ in state))._replace(model=True)
        return executed.init(state, given_of_one_step(), shared)

    @functools.cache
    def shapes():
        made = jax.eval_shape(lambda: hold(init(seeds, cells)))
        return executed.shapes(made)

    bytes_of_one = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(given_of_one_step())
    )
    chunk = _chunk(rule.evaluate_every, bytes_of_one)

    def given_shapes():
        def of_chunk(leaf):
            return jax.ShapeDtypeStruct(
                (chunk, *leaf.shape), leaf.dtype, sharding=executed.fed
            )

        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=executed.everywhere)
        return jax.tree.map(of_chunk, given_of_one_step()), count

    def traced():
        alone = execution.of(axes, on_devices=False, step=step_all)
        shared = State(*(False for _ in State._fields))._replace(model=True)
        row = given_of_one_step()
        held = jax.eval_shape(lambda: alone.init(init(seeds, cells), row, shared))
        return {
            "update": jax.make_jaxpr(alone.step)(held, row),
            "start": jax.make_jaxpr(lambda: init(seeds, cells))(),
        } | {
            name: jax.make_jaxpr(lambda state, of=of: of(model(execution.held(state))))(
                held
            )
            for name, of in evaluators.items()
        }

    def batch(step):
        return rule.given(step, step + 1, np.arange(1) if several else None)

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
        traced=traced,
        batch=batch,
        program=program,
        chunk=chunk,
    )


def _check_shapes(rows: Any, one: Any, updates: tuple[int], axes: Any) -> None:
    """Checks what a chunk is given: another shape would be compiled, and trained on.

    Args:
        rows: of the chunk, [updates, ...], of several workers [updates, own, ...].
        one: the shapes of one update of all workers, [*axes, ...].
        updates: of the chunk.
        axes: of the workers.
    """
    first = 2 if axes else 1
    for leaf, like in zip(jax.tree.leaves(rows), jax.tree.leaves(one), strict=True):
        found, expected = leaf.shape, like.shape[len(axes) :]
        if found[:1] != updates or found[first:] != expected:
            raise ValueError(
                "The task's `batches` must return arrays of one shape at all updates,"
                f" got {found[first:]} for {found[0]} updates, and {expected} at first"
                f" (asked for {updates[0]} updates)."
            )


def _chunk(evaluate_every: int, bytes_of_one: int) -> int:
    """The longest scan whose batches fit; it divides `evaluate_every`."""
    most = max(1, min(evaluate_every, _CHUNK_BYTES // max(1, bytes_of_one)))
    return next(n for n in range(most, 0, -1) if evaluate_every % n == 0)


@functools.lru_cache(maxsize=8)  # programs of one task share one compiled function
def _evaluator(task: Any, measure: tuple) -> Callable[[Model], dict[str, jax.Array]]:
    """The metrics of models [seeds, cells, ...]."""

    def of_one(model):
        metrics = task.evaluate(*(model if task.has_state else model[:1]))
        for name, value in measure:
            if name in metrics:
                raise ValueError(
                    f"`measure` has the metric {name!r}, which the task's `evaluate`"
                    " returns already: choose another name."
                )
            metrics = metrics | {name: value(model, task)}
        for name, value in metrics.items():
            if jnp.shape(value) != ():
                raise ValueError(
                    f"`evaluate` and `measure` must return scalars, got {name!r} of"
                    f" shape {jnp.shape(value)}."
                )
        return metrics

    @jax.jit
    def of_all(model):
        shape = jax.tree.leaves(model)[0].shape[:2]
        # a few cells at a time: a grid's activations on a whole data set are large
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), model)
        metrics = jax.lax.map(of_one, flat, batch_size=8)
        return jax.tree.map(lambda x: x.reshape(shape), metrics)

    return of_all


def gradient_norm(model: Model, task: Any) -> jax.Array:
    """A metric: the norm of the gradient of all training data's loss."""

    def loss(params):
        return task.evaluate(params, *(model[1:] * task.has_state))["train_loss"]

    return optax.tree.norm(jax.grad(loss)(model.params))


def counters(state: Any) -> Counters:
    """The counters of a state, wherever they are in it."""
    several = isinstance(state, dj.workers.WorkerState)
    state = execution.held(state)
    seeds_and_cells = state.diverged_step.shape

    def found(name, besides=""):
        """The counts of this name, [seeds, cells, workers or replicas of each]."""
        for path, count in optax.tree.get_all_with_path(state.memory, name):
            if getattr(path[-1], "tuple_name", None) == besides:
                continue
            if several:  # workers have their axis in front, what they share has none
                yield jnp.moveaxis(count.reshape(-1, *seeds_and_cells), 0, -1)
            else:
                yield count.reshape(*seeds_and_cells, -1)

    nothing = jnp.zeros(seeds_and_cells, jnp.int32)
    ages = state.staleness_counts
    used = ages.reshape(-1, *seeds_and_cells, ages.shape[-1]).sum(0)
    # `refusing` counts the means that it refused, the loop the gradients in them
    refused = state.refused.reshape(-1, *seeds_and_cells).sum(0)
    others = [count.sum(-1) for count in found("dropped", besides="RefusingState")]
    return Counters(
        diverged_step=state.diverged_step,
        staleness_counts=used,
        arrived=used.sum(-1) + refused,
        dropped=sum(others, start=refused),
        dropped_in_row=functools.reduce(
            jnp.maximum, (count.max(-1) for count in found("dropped_in_row")), nothing
        ),
    )


def _profiled(wanted: range, folder: str, start: int, stop: int) -> Any:
    if start < wanted.stop and stop > wanted.start:
        return jax.profiler.trace(folder)
    return contextlib.nullcontext()


class InterruptionError(Exception):
    """SIGTERM or Ctrl-C arrived; the state of the last chunk has been saved.

    Attributes:
        by_hand: whether it was Ctrl-C, in one of the processes.
    """

    def __init__(self, message: str, *, by_hand: bool):
        super().__init__(message)
        self.by_hand = by_hand


class DivergenceError(Exception):
    """A single run met a loss that is not finite."""


def run(
    trainer: Trainer,
    state: Any,
    *,
    save: Callable[[Any], None],
    report: Callable[..., None],
    wait: Callable[[], None] = lambda: None,
    checkpoint_every: int | None = None,
    profile: tuple[range, str] = (range(0), ""),
    alone: bool = True,
) -> Any:
    """Trains one program from `state` to its last update.

    A chunk's numbers are reported while the next one runs; those up to a checkpoint
    before it is saved.

    Args:
        trainer: the program's functions.
        state: where to begin; donated.
        save: called with the state when a checkpoint is due, at the end and when asked
            to stop. May go on writing after it returns: what it needs of the state's
            buffers must have been copied.
        report: called once a chunk with the step, the chunk's numbers and the counters
            so far, both on the host, the seconds it took without compiling, the metrics
            of an evaluation, or None, and when all that ended, on `compiling.working`.
        wait: called after the last `save`, until that is written.
        checkpoint_every: updates; None for every 30 s. Checkpoints stand between two
            chunks.
        profile: updates whose chunks are profiled, and the folder for JAX's traces.
        alone: whether the run has no other program.

    Returns:
        The final state.

    Raises:
        InterruptionError: after SIGTERM or SIGINT, once the state is saved.
        DivergenceError: if the only cell there is meets a loss that is not finite.
    """
    rule = trainer.program.rule
    updates, length = rule.updates, trainer.chunk
    start = int(execution.held(state).step)
    single = alone and execution.held(state).diverged_step.size == 1
    if start >= updates:
        return state

    def given(start):
        return trainer.given(start, min(start + length, updates))

    unreported: list[tuple] = []  # the chunk before, while the next one runs

    def report_all():
        while unreported:
            report(*unreported.pop())

    following, saved = given(start), time.monotonic()
    with Termination() as termination:
        while start < updates:
            stop = min(start + length, updates)
            with _profiled(*profile, start, stop):
                started = compiling.working()
                count = np.int32(stop - start)
                state, chunk = trainer.run_chunk(state, following, count)
                termination.trains = True  # it is compiled, and has begun
                # the host works meanwhile: on the numbers before, on the next batches
                report_all()
                if stop < updates:
                    following = given(stop)
                chunk, counted = jax.device_get(trainer.summary(state, chunk))
                chunk = jax.tree.map(lambda x, n=count: x[:n], chunk)
                seconds = compiling.working() - started
            evaluates = stop % rule.evaluate_every == 0 or stop == updates
            metrics = jax.device_get(trainer.evaluate(state)) if evaluates else None
            ended = compiling.working()
            unreported.append((stop, chunk, counted, seconds, metrics, ended))
            if single and counted.diverged_step.item() >= 0:
                report_all()
                raise DivergenceError(
                    f"the loss was not finite at update {counted.diverged_step.item()}"
                    f" (in updates {start} to {stop}); what came before is recorded."
                    " Lower the learning rate or the delay."
                )
            waited = time.monotonic() - saved
            late, stopped = processes.any_of(
                waited > _CHECKPOINT_SECONDS, bool(termination.requested)
            )
            due = late
            if checkpoint_every is not None:
                due = stop // checkpoint_every > start // checkpoint_every
            start = stop
            ends = stopped or stop == updates
            if due or ends:
                report_all()
                save(state)
                saved = time.monotonic()
            if ends:
                wait()
                asked = termination.requested
                stopped, by_hand = processes.any_of(bool(asked), asked == "SIGINT")
                if stopped:
                    name = asked or "a signal to another process"
                    raise InterruptionError(
                        f"stopped by {name}, saved at update {stop}", by_hand=by_hand
                    )
    return state
