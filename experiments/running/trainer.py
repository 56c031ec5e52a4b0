"""The functions of one program, compiled when they are first called."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.running import cells, execution, sharing, tracing
from experiments.running.cells import SHARED, Cells, Chunk, Counters
from experiments.running.evaluation import evaluator
from experiments.running.feeding import Feed
from experiments.running.program import Program
from experiments.training.jobs import Job


class Trainer:
    """Trains and evaluates all cells of a program under all seeds.

    A state is a `State`; with several workers, a `WorkerState` that contains a `State`.

    Attributes:
        program: the program to train.
        devices: those on which the program runs.
        feed: draws the data of updates; `feed.chunk` is the most updates of one call of
            `run_chunk`.
        run_chunk: (state, given, number of updates) -> (state, the report of a whole
            chunk); compiled, and the state is donated.
        shapes: () -> the shapes of the state with their shardings, to restore it.
        metrics: further metrics.
        values: the seeds and the cells, as `Cells.begun` takes them.
        chunk_report: state, chunk -> (the chunk's report, the state's `Counters`), the
            same in every process.
        counters: state -> its `Counters`, the same in every process.
    """

    def __init__(
        self,
        program: Program,
        *,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        """Builds the functions. Nothing is compiled yet.

        Args:
            program: the program to train.
            metrics: further metrics, {name: (model, task) -> float32 []}.
            devices: the devices to run on or to compile for; None for all devices.
        """
        self.program, self.metrics = program, metrics or {}
        self._axes = program.job.worker_axes
        self._cells = Cells(program)
        self._executed = execution.make_execution(
            self._axes,
            on_devices=program.job.devices,
            step=self._cells.updated,
            there=devices,
            model=program.job.devices_of_each,
            specs=self._specs,
        )
        self.devices = self._executed.devices
        self.feed = Feed(program.job, self._executed)
        self.values = self._cells.values
        self.shapes = functools.cache(self._shapes)
        self.run_chunk = _in_chunks(self._executed, self.feed.chunk)
        everywhere = self._executed.everywhere
        self.chunk_report = jax.jit(self._chunk_report, out_shardings=everywhere)
        self.counters = jax.jit(cells.counters, out_shardings=everywhere)
        self._evaluate = evaluator(program.task, tuple(self.metrics.items()))
        self._model = _evaluated_model(program.job)
        self._begin = jax.jit(
            self._cells.begun,
            out_shardings=self._executed.new_shardings(
                lambda: jax.eval_shape(self._cells.begun, *self._cells.values)
            ),
            compiler_options=_quickly(),
        )

    def init(self) -> Any:
        """The state before the first update."""
        return self._hold(self._begin(*self.values))

    def for_program(self, program: Program) -> "Trainer":
        """The functions of a program with the same executable.

        With as many cells and seeds they are the same compiled functions.
        """
        if program.size != self.program.size:
            return Trainer(program, metrics=self.metrics)
        other = copy.copy(self)
        other.program, other.values = program, cells.values_of(program)
        if program.job is not self.program.job:
            other.feed = self.feed.for_job(program.job)
        return other

    def evaluate(self, state: Any) -> dict[str, jax.Array]:
        """The metrics of a state, [seeds, cells]."""
        return self._evaluate(self._model(execution.held(state)))

    def traced(self) -> dict[str, jax.stages.Traced]:
        """{name: a traced function} on one device, for any devices of the run."""
        values = self._cells.values
        alone = execution.make_execution(
            self._axes, on_devices=False, step=self._cells.updated
        )
        held = jax.eval_shape(
            lambda: alone.init(self._cells.begun(*values), self.feed.one, SHARED)
        )

        def of_state(evaluate):
            return lambda state: evaluate(self._model(execution.held(state)))

        measured = {"evaluation": ()} | {
            f"metric {name}": ((name, value),) for name, value in self.metrics.items()
        }
        program, (_, cells) = self.program, values
        first = {axis: values[0] for axis, values in cells.items() if axis}
        hyper = {**program.static, **program.rows[0]}
        cell = program.traced or tracing.of_cell(
            program.task, program.job, hyper, first
        )
        return {"update": cell} | {
            name: jax.jit(of_state(evaluator(self.program.task, metric))).trace(held)
            for name, metric in measured.items()
        }

    def _shapes(self) -> Any:
        values = self._cells.values
        made = jax.eval_shape(lambda: self._hold(self._cells.begun(*values)))
        return self._executed.shapes(made)

    def _hold(self, state: Any) -> Any:
        return self._executed.init(state, self.feed.one, SHARED)

    def _specs(self, state: Any) -> Any:
        """The shardings of a state over the devices of one worker."""
        job = self.program.job
        job_sharding = job.sharding or sharing.by_largest(job.devices_of_each)
        params = self._cells.one.model.params
        return sharing.specs(state, params, job.devices_of_each, job_sharding)

    def _chunk_report(self, state: Any, chunk: Chunk) -> tuple[Chunk, Counters]:
        over_workers = tuple(range(1, 1 + len(self._axes)))
        if over_workers:
            chunk = chunk._replace(loss=chunk.loss.mean(over_workers))
        return chunk, cells.counters(state)


def _in_chunks(executed: execution.Execution, chunk: int) -> Any:
    """The compiled loop of up to `chunk` updates.

    It is a scan whose length is known only when it runs: otherwise the last chunk of a
    run, which is shorter, would be compiled again.
    """
    step = jax.jit(executed.step, inline=True)  # traced once for both of its uses

    @functools.partial(
        jax.jit, donate_argnums=0, compiler_options=executed.options or None
    )
    def run_chunk(state, given, count):
        def row(i):
            return jax.tree.map(lambda x: x[i], given)

        def one(i, carry):
            state, reports = carry
            state, report = step(state, row(i))
            put = jax.tree.map(lambda all_, x: all_.at[i].set(x), reports, report)
            return state, put

        _, report = jax.eval_shape(step, state, row(0))
        reports = jax.tree.map(lambda x: jnp.zeros((chunk, *x.shape), x.dtype), report)
        return jax.lax.fori_loop(0, count, one, (state, reports))

    return run_chunk


def _evaluated_model(job: Job) -> Any:
    """A compiled function: state -> the models to evaluate."""

    @jax.jit
    def model(state):
        return job.model(state.model, state.memory)

    return model


def _quickly() -> dict[str, Any] | None:
    """Options for a function that runs once: a CPU compiles longer than it runs."""
    cpu = jax.default_backend() == "cpu"
    return {"xla_backend_optimization_level": 0} if cpu else None
