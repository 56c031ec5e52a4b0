"""Runs an experiment: every program, with checkpoints, records and progress."""

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiments import (
    columns,
    costs,
    digest,
    execution,
    loop,
    programs,
    records,
    throughput,
)
from experiments.experiment import Experiment
from experiments.failures import naming
from experiments.host import checkpoints, processes, progress
from experiments.host.workdir import Workdir
from experiments.loop import Trainer
from experiments.programs import label
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
        workdir: the folder of the run's records and checkpoints; None for a temporary
            one.
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
        loop.DivergenceError: if the experiment is one cell under one seed, and meets a
            loss that is not finite. Of several, each has its rows.
        loop.InterruptionError: after SIGTERM or Ctrl-C, once the state is saved.
    """
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(
            f"`checkpoint_every` must be at least 1 update, got {checkpoint_every}."
        )
    if workdir == "":
        raise ValueError("`workdir` is empty: name a folder, or leave it out.")
    if checkpoints_kept < 1:
        raise ValueError(
            f"`checkpoints_kept` must be at least 1, got {checkpoints_kept}."
        )
    started = time.monotonic()
    trainers = processes.together(lambda: prepared(experiment, shard))
    made = [trainer.program for trainer in trainers]
    longest = max(program.rule.updates for program in made)
    if profile and not 0 <= profile.start < profile.stop <= longest:
        raise ValueError(
            f"`profile` must lie in 0 .. {longest}, the updates of the run, got"
            f" {profile.start},{profile.stop}."
        )
    if workdir is None:
        workdir = tempfile.mkdtemp(prefix="experiment-")
    place = Workdir(workdir)
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
        _say_devices()
        if folder is not None:
            stack.callback(place.upload)
            stack.callback(lambda: folder.spent(time.monotonic() - started))
            writers = [TensorBoard(place.local / "tensorboard"), *writers]
        for writer in writers:
            stack.callback(writer.close)
        bars = progress.Bars(
            [program.rule.updates for program in made], list(map(_price, trainers))
        )
        for trainer in trainers:
            own_rows, own_curves = _train(
                place,
                trainer,
                every=checkpoint_every,
                kept=checkpoints_kept,
                bars=bars,
                writers=writers,
                profile=profile,
                alone=shard[1] == 1 and len(made) == 1,
            )
            rows += own_rows
            curves += own_curves
        found = records.tables(records.settings(made), rows, curves)
        if processes.is_first():
            found = records.with_lost(place.local, found)
            records.write_tables(place.local, *found)
    return found


def prepared(experiment: Experiment, shard: tuple[int, int] = (0, 1)) -> list[Trainer]:
    """The programs of an experiment, checked and traced; nothing is compiled yet.

    Raises:
        ValueError: if the experiment cannot be, a function of it fails, or its state
            does not fit.
    """
    made = programs.programs(experiment)
    own = programs.shard(made, *shard)
    if not own:
        cells = sum(program.size for program in made)
        raise ValueError(
            f"--shard={shard[0]}/{shard[1]} has no cell: the grid has {cells}, so that"
            f" i must be less than {cells}."
        )
    settings = records.settings(made)
    trainers = []
    for program in own:
        shown = {name: label(value) for name, value in program.columns.items()}
        with naming("The training", shown):
            trainer = loop.trainer(program, measure=experiment.measure)
            metrics = jax.eval_shape(trainer.evaluate, trainer.shapes())
            trainer.run_chunk.trace(trainer.shapes(), *trainer.given_shapes())
        columns.check_metrics(metrics, settings)
        trainers.append(trainer)
    for trainer in trainers:
        costs.check_memory(trainer)
    return trainers


def _price(trainer: Trainer) -> float:
    """What all updates and evaluations of a program cost; see `throughput.price`."""
    rule, state = trainer.program.rule, trainer.shapes()
    step = trainer.run_chunk.trace(state, *trainer.given_shapes()).jaxpr
    evaluation = jax.make_jaxpr(trainer.evaluate)(state)
    evaluations = rule.updates / rule.evaluate_every
    return rule.updates * throughput.price(step.jaxpr) + evaluations * throughput.price(
        evaluation.jaxpr
    )


def _say_devices() -> None:
    """A run that fell back to a CPU shows it here."""
    devices, processes_ = jax.devices(), jax.process_count()
    where = f" in {processes_} processes" * (processes_ > 1)
    progress.log.info(
        "devices: %d x %s (%s)%s",
        *(len(devices), devices[0].device_kind, devices[0].platform, where),
    )


def _train(
    place: Workdir,
    trainer: Trainer,
    *,
    every: int | None,
    kept: int,
    bars: progress.Bars,
    writers: Sequence[Writer],
    profile: range,
    alone: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trains one program and returns its rows of results.csv and of curves.csv."""
    program = trainer.program
    updates = program.rule.updates
    saved = checkpoints.Checkpoints(
        place.checkpoints / program.name, kept=kept, held=execution.held
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(saved)
        bar = None
        if processes.is_first():
            bar = stack.enter_context(bars.of(program.name))
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
        if bar is not None:
            metrics = records.Metrics(place.local, program, start, writers)
            if start == 0:
                metrics.write(0, None, begun, 1.0, initial)
            bar.begin(start)

        def report(*chunk):
            *numbers, ended = chunk
            if metrics is not None:
                bar.update(metrics.write(*numbers), ended)

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
            alone=alone,
        )
        final, counters = jax.device_get(
            (trainer.evaluate(state), trainer.counters(state))
        )
        rows = records.results(program, counters, initial, final)
        curves = records.curves(program, metrics.rows()) if metrics else []
    return rows, curves
