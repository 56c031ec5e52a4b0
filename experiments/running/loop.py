"""Trains one program chunk by chunk; reports, saves and stops in between."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.host import processes, progress
from experiments.host.termination import Termination
from experiments.running import execution
from experiments.running.trainer import Trainer

_CHECKPOINT_SECONDS = 30.0  # from one to the next, by default


class InterruptionError(Exception):
    """SIGTERM or Ctrl-C arrived; the state of the last chunk has been saved.

    Attributes:
        by_hand: whether it was Ctrl-C, in one of the processes.
    """

    def __init__(self, message: str, *, by_hand: bool):
        super().__init__(message)
        self.by_hand = by_hand


class DivergenceError(Exception):
    """The loss of a single run is not finite."""


def run(
    trainer: Trainer,
    state: Any,
    *,
    save: Callable[[int, Any], None],
    report: Callable[..., None],
    wait: Callable[[], None] = lambda: None,
    checkpoint_every: int | None = None,
    profile: tuple[range, str] = (range(0), ""),
    alone: bool = True,
) -> Any:
    """Trains one program from `state` to its last update.

    A chunk's numbers are reported while the next chunk runs, but always before a
    checkpoint of this chunk is saved.

    Args:
        trainer: the program's functions.
        state: the first state; donated.
        save: called with the step and the state when a checkpoint is due, at the end,
            and when the run is stopped. It may write after it returns, but must have
            copied the buffers of the state that it needs.
        report: called once per chunk with the step, the chunk's numbers and the
            counters so far, both on the host, the seconds of the chunk without
            compiling, the metrics of an evaluation or None, and the time of
            `progress.working` at the end.
        wait: called after the last `save`; returns when the state is written.
        checkpoint_every: updates between checkpoints, which are saved after a chunk;
            None for every 30 s.
        profile: the updates whose chunks to profile, and the folder for JAX's traces.
        alone: whether the run has no other program.

    Returns:
        The final state.

    Raises:
        InterruptionError: after SIGTERM or SIGINT, once the state is saved.
        DivergenceError: if there is only one cell and its loss is not finite.
        OSError: from `report`; in other processes a ValueError.
    """
    job = trainer.program.job
    updates, length = job.updates, trainer.feed.chunk
    start = int(execution.held(state).step)
    single = alone and execution.held(state).diverged_step.size == 1
    if start >= updates:
        return state

    def end_of(start):
        """The last update of a chunk; a run from update 0 has the same chunks."""
        begun = start - start % job.evaluate_every  # an evaluation ends a chunk
        whole = start - (start - begun) % length + length
        return min(whole, begun + job.evaluate_every, updates)

    def given(start):
        return trainer.feed.given(start, end_of(start))

    unreported: list[tuple] = []  # the chunk before, while the next one runs
    failed: list[OSError] = []

    def report_all():
        while unreported:
            try:
                report(*unreported.pop())
            except OSError as error:  # in process 0, which alone writes; see `reported`
                failed.append(error)

    def reported():
        report_all()
        if failed:
            raise failed[0]

    following, saved = given(start), time.monotonic()
    with Termination() as termination:
        while start < updates:
            stop = end_of(start)
            with _profiled(*profile, start, stop):
                started = progress.working()
                count = np.int32(stop - start)
                state, chunk = trainer.run_chunk(state, following, count)
                termination.begin()  # from now on a signal waits until work is saved
                # meanwhile the host reports the chunk before and draws the next batches
                report_all()
                if stop < updates:
                    following = given(stop)
                chunk, counted = jax.device_get(trainer.chunk_report(state, chunk))
                chunk = jax.tree.map(lambda x, n=count: x[:n], chunk)
                seconds = progress.working() - started
            metrics = None
            if job.evaluates(stop):
                metrics = jax.device_get(trainer.evaluate(state))
            ended = progress.working()
            unreported.append((stop, chunk, counted, seconds, metrics, ended))
            if single and counted.diverged_step.item() >= 0:
                processes.together(reported)
                raise DivergenceError(
                    f"the loss was not finite at update {counted.diverged_step.item()}"
                    f" (in updates {start} to {stop}); earlier updates are recorded."
                    " Lower the learning rate or the delay."
                )
            waited = time.monotonic() - saved
            due, stopped, write_failed = processes.any_of(
                waited > _CHECKPOINT_SECONDS, bool(termination.requested), bool(failed)
            )
            if checkpoint_every is not None:
                due = stop // checkpoint_every > start // checkpoint_every
            start, ends = stop, stopped or stop == updates
            if due or ends or write_failed:
                processes.together(reported)
                save(stop, state)
                saved = time.monotonic()
            if ends:
                wait()
                _end_if_asked(termination.requested, stop)
    return state


def _end_if_asked(signal: str, stop: int) -> None:
    """Ends the run if a process got a signal; the state of update `stop` is saved."""
    asked, by_hand = processes.any_of(bool(signal), signal == "SIGINT")
    if asked:
        name = signal or "a signal to another process"
        raise InterruptionError(
            f"stopped by {name}, saved at update {stop}", by_hand=by_hand
        )


def _profiled(wanted: range, folder: str, start: int, stop: int) -> Any:
    if start < wanted.stop and stop > wanted.start:
        return jax.profiler.trace(folder)
    return contextlib.nullcontext()
