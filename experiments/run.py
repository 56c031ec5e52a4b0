"""Runs an experiment: every program, with checkpoints, records and progress."""

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiments import costs, digest, execution, loop, programs, records
from experiments.experiment import Experiment
from experiments.host import checkpoints, processes, progress
from experiments.host.workdir import Workdir
from experiments.loop import Trainer
from experiments.writers import TensorBoard, Writer


def run(
    experiment: Experiment,
    workdir: str | None = None,
    *,
    shard: tuple[int, int] = (0, 1),
    config: Mapping[str, Any] | None = None,
    changed: Mapping[str, Any] | None = None,
    source: str = "",
    checkpoint_every: int | None = None,
    checkpoints_kept: int = 2,
    anew: bool = False,
    writers: Sequence[Writer] = (),
    profile: range = range(0),
) -> records.Found:
    """Trains all cells of an experiment. The same call goes on where it stopped.

    Args:
        experiment: what to train.
        workdir: the folder of the run's records and checkpoints; by default a
            temporary one.
        shard: (i, n): train every n-th cell, from number i on.
        config: the values that the experiment was made of, for the records.
        changed: those that are not the config file's own, {key: [own, value]}.
        source: the config file.
        checkpoint_every: updates; by default every 30 s. A program's end is saved too.
        checkpoints_kept: how many of the newest are kept.
        anew: whether to remove the records of the run in the folder first.
        writers: of the numbers on the way, beside `TensorBoard` in the folder.
        profile: updates whose chunks JAX profiles, into the folder profile/.

    Returns:
        The tables of results and curves.

    Raises:
        ValueError: if the experiment cannot be, or the folder holds another run.
        OSError: if the disk is full; the same call goes on, once there is room.
        loop.DivergenceError: if the only cell there is meets a loss that is not finite.
        loop.InterruptionError: after SIGTERM or Ctrl-C, once the state is saved.
    """
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(
            f"`checkpoint_every` must be at least 1 update, got {checkpoint_every}."
        )
    if checkpoints_kept < 1:
        raise ValueError(
            f"`checkpoints_kept` must be at least 1, got {checkpoints_kept}."
        )
    started = time.monotonic()
    trainers = processes.together(lambda: prepared(experiment, shard))
    made = [trainer.program for trainer in trainers]
    place = Workdir(workdir or tempfile.mkdtemp(prefix="experiment-"))
    place.check_shared()
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:

        def opened():
            if not processes.is_first():
                return None
            place.download()
            folder = records.Folder(place.local)
            stack.callback(folder.close)
            if anew:
                place.clear()
            digests = {t.program.name: digest.of(t) for t in trainers}
            given = config or {}, changed or {}
            folder.begin(experiment, made, *given, source, digests)
            return folder

        folder = processes.together(opened)  # where it is refused, none waits for 0
        if folder is not None:
            stack.callback(place.upload)
            stack.callback(lambda: folder.spent(time.monotonic() - started))
            writers = [TensorBoard(place.local / "tensorboard"), *writers]
        for writer in writers:
            stack.callback(writer.close)
        bars = progress.Bars([trainer.program.rule.updates for trainer in trainers])
        for trainer in trainers:
            own_rows, own_curves = _train(
                place,
                trainer,
                every=checkpoint_every,
                kept=checkpoints_kept,
                bars=bars,
                writers=writers,
                profile=profile,
            )
            rows += own_rows
            curves += own_curves
        found = records.tables(records.settings(made), rows, curves)
        if processes.is_first():
            records.write_tables(place.local, *found)
    return found


def prepared(experiment: Experiment, shard: tuple[int, int] = (0, 1)) -> list[Trainer]:
    """The programs of an experiment, checked; nothing is compiled yet.

    Raises:
        ValueError: if the experiment cannot be, or its state does not fit.
    """
    made = programs.shard(programs.programs(experiment), *shard)
    trainers = [loop.trainer(program, measure=experiment.measure) for program in made]
    for trainer in trainers:
        costs.check_memory(trainer)
    return trainers


def _train(
    place: Workdir,
    trainer: Trainer,
    *,
    every: int | None,
    kept: int,
    bars: progress.Bars,
    writers: Sequence[Writer],
    profile: range,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trains one program and returns its rows of results.csv and of curves.csv."""
    program = trainer.program
    updates = program.rule.updates
    saved = checkpoints.Checkpoints(
        place.checkpoints / program.name, kept=kept, held=execution.held
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(saved)
        # first, so that two states are never alive at once
        fresh = trainer.init()
        initial = jax.device_get(trainer.evaluate(fresh))
        begun = jax.device_get(trainer.counters(fresh))
        del fresh
        state = saved.restore(trainer.shapes())
        start = 0 if state is None else int(execution.held(state).step)
        if state is None:
            state = trainer.init()
        elif processes.is_first():
            done = "is done" if start >= updates else "resumes"
            progress.log.info("%s %s at update %d", program.name, done, start)
        metrics = None
        if processes.is_first():
            metrics = records.Metrics(place.local, program, start, writers)
            if start == 0:
                metrics.write(0, None, begun, 1.0, initial)
            bar = stack.enter_context(bars.of(program.name, start))

        def report(*chunk):
            if metrics is not None:
                bar.update(metrics.write(*chunk))

        def save(state):
            place.upload()  # the rows first: none may lack up to a checkpoint
            saved.save(state)

        state = loop.run(
            trainer,
            state,
            save=save,
            wait=saved.wait,
            report=report,
            checkpoint_every=every,
            profile=(profile, str(place.local / "profile")),
        )
        final, counters = jax.device_get(
            (trainer.evaluate(state), trainer.counters(state))
        )
        rows = records.results(program, counters, initial, final)
        curves = records.curves(program, metrics.rows()) if metrics else []
    return rows, curves
