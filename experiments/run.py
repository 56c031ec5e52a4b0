"""Runs an experiment: every program, with checkpoints, records and progress."""

import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import pandas as pd

from experiments.host import checkpoints, processes, progress
from experiments.host.failures import naming, of_changed
from experiments.host.folder import RunFolder
from experiments.host.identity import is_longer
from experiments.rehearsal import check_names
from experiments.results import claims, effects, tables
from experiments.results.claims import Published, Record
from experiments.results.runs import Run
from experiments.results.selection import Selection
from experiments.results.writers import TensorBoard, Writer, scalars
from experiments.running import costs, digest, execution, loop
from experiments.running.families import sharded
from experiments.running.program import (
    Program,
    first_traces,
    label,
    setting_names,
)
from experiments.running.programs import programs
from experiments.running.rows import Rows
from experiments.running.trainer import Trainer
from experiments.search import at_optima, check_most
from experiments.training import column_names
from experiments.training.experiment import Experiment


@progress.shown()
def run(
    experiment: Experiment,
    workdir: str | os.PathLike[str] | None = None,
    *,
    shard: tuple[int, int] = (0, 1),
    config: Mapping[str, Any] | None = None,
    changed: Mapping[str, Any] | None = None,
    source: str = "",
    stated: Sequence[Published | Record] | None = None,
    checkpoint_every: int | None = None,
    keep_checkpoints: bool = False,
    writers: Sequence[Writer] = (),
    profile: range = range(0),
) -> Run:
    """Trains all cells of an experiment. The same call continues a stopped run.

    The progress is written to the log "experiments";
    `logging.getLogger("experiments").setLevel("WARNING")` turns this off.

    Args:
        experiment: the experiment to run.
        workdir: the folder of the run's records and checkpoints; None for a temporary
            one.
        shard: (i, n): train every n-th cell, from number i on. All parts together are
            the whole grid, up to rounding, which grows in cells close to instability.
        config: {key: value} of the config that made the experiment, for run.json.
        changed: {key: [value of the config file, value of this run]} where they differ.
        source: the config file.
        stated: the statements and records about the run, for a digest in run.json;
            None if they are not known yet.
        checkpoint_every: updates between checkpoints; None for a checkpoint every 30 s.
            The end of a program is saved too.
        keep_checkpoints: whether the checkpoints of a finished run stay, so that a run
            with more updates or other metrics continues from them. Without them, and
            with more seeds, it trains from update 0, with the same results. What the
            searches have trained stays in any case.
        writers: they receive the numbers during training, beside `TensorBoard`.
        profile: the updates whose chunks JAX profiles, into the folder profile/.

    Returns:
        The run, as `Run.read` reads it from the folder, with its answers.

    Raises:
        ValueError: if the experiment is invalid, or the folder holds another run.
        OSError: if the disk is full; with free space the same call continues.
        loop.DivergenceError: if the experiment has one cell and one seed, and its loss
            is not finite. With several, the results have a row for each.
        loop.InterruptionError: after SIGTERM or Ctrl-C, when the state is saved.
    """
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(
            f"`checkpoint_every` must be at least 1 update, got {checkpoint_every}."
        )
    started = time.monotonic()
    if workdir is None:
        workdir = tempfile.mkdtemp(prefix="experiment-")
    place = RunFolder(workdir)
    place.check_shared()

    def check_place():
        if processes.is_first():
            place.download()
            place.check_place()

    processes.together(check_place)
    with of_changed(changed or {}):
        trainers = processes.together(
            lambda: prepared(experiment, shard, None if changed else stated or ())
        )
    made = [trainer.program for trainer in trainers]
    longest = max(program.job.updates for program in made)
    if profile and not 0 <= profile.start < profile.stop <= longest:
        raise ValueError(
            f"`profile` must lie in 0 .. {longest}, the updates of the run, got"
            f" {profile.start},{profile.stop}."
        )
    most = experiment.effort.most
    asked = {trainer.program.name: _asked(trainer, most) for trainer in trainers}
    about = {
        "source": source,
        "config": dict(config or {}),
        "changed": dict(changed or {}),
        "published": "" if stated is None else _digest_of(stated),
    }
    with contextlib.ExitStack() as stack:

        def opened():
            if not processes.is_first():
                return False
            stack.enter_context(place.locked())
            record = _accepted(place, experiment, trainers, shard, about)
            done = (
                place.is_finished(asked) and place.info.get("seeds") == record["seeds"]
            )
            place.begin(record, first_traces(made), finished=done)
            stack.callback(place.upload)
            place.upload()  # run.json, before a search has checkpoints in the bucket
            return done

        # if process 0 refuses the folder, all processes stop and none waits
        (done,) = processes.any_of(processes.together(opened))
        _say_devices()
        if done:
            progress.log.info("the run is finished: its records are read")
        else:
            if processes.is_first():
                stack.callback(lambda: place.spent(time.monotonic() - started))
                writers = [TensorBoard(place.tensorboard), *writers]
            for writer in writers:
                stack.callback(writer.close)
            options = dict(
                checkpoint_every=checkpoint_every,
                profile=(profile, str(place.profile)),
                alone=shard[1] == 1 and len(made) == 1,
            )
            measured = _measured(experiment, trainers, place, writers, options)

            def write():
                if processes.is_first():
                    tables.write(place, *measured)
                    place.finish(asked)
                    place.upload()

            processes.together(write)
        if not keep_checkpoints:
            processes.wait("the run is finished")
            if processes.is_first():
                place.remove_checkpoints()
        if not processes.is_first():
            place.download()
    outcome = Run.read(place.path)  # with the time of the run, now that it is over
    answers = effects.answers(outcome, experiment.effects)
    if processes.is_first():
        for why in answers:
            if isinstance(why, str):
                progress.log.warning("`answer` fails: %s", why)
    return dataclasses.replace(outcome, question=experiment.question, answers=answers)


def _accepted(
    place: RunFolder,
    experiment: Experiment,
    trainers: Sequence[Trainer],
    shard: tuple[int, int],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a run that may begin or continue in a folder.

    Raises:
        ValueError: if the folder holds another run.
    """
    record, digests = _described(experiment, trainers)
    before = place.info.get("seeds", record["seeds"])
    same = record, digests
    if is_longer(record["seeds"], before):
        earlier = dataclasses.replace(experiment, seeds=tuple(before))
        same = _described(earlier, prepared(earlier, shard, None))
    place.check_same(same[0] | about, same[1])
    check_most([trainer.program for trainer in trainers], experiment.effort.most, place)
    return record | about


def _digest_of(stated: Sequence[Published | Record]) -> str:
    return claims.digest([one for one in stated if isinstance(one, Published)])


def _searched(experiment: Experiment) -> dict[str, Any]:
    """The settings of a search; in the folder of a run only `most` may change."""
    if not experiment.searched:
        return {}
    return dataclasses.asdict(experiment.effort) | {
        "by": str(experiment.tuned_by),
        "also_at": list(map(dict, experiment.also_at)),
        "contains": [arm.contains for arm in experiment.all_arms],
        "end": [experiment.updates, experiment.seconds, experiment.examples],
    }


def _described(
    experiment: Experiment, trainers: Sequence[Trainer]
) -> tuple[dict[str, Any], dict[str, digest.Digest]]:
    """The part of run.json about an experiment, and {program: its digest}."""
    by, made = experiment.tuned_by, [trainer.program for trainer in trainers]
    digests = {one.program.name: digest.of_trainer(one) for one in trainers}
    record = {
        "question": experiment.question,
        "settings": setting_names(made),
        "seeds": list(experiment.seed_numbers),
        "tuning_seeds": list(experiment.tuning_seed_numbers),
        "tuned": list(experiment.tuned_axes),
        "search": _searched(experiment),
        "tuned_by": by if isinstance(by, str) else by._asdict(),
        "programs": [
            program.record() | {"digest": digests[program.name](program.job.updates)}
            for program in made
        ],
    }
    return record, digests


def _asked(trainer: Trainer, most: int) -> dict[str, Any]:
    """The evaluations and metrics that the rows of a finished program must have.

    If the program is searched, also `most`: with more trainings the optimum may differ.
    """
    job = trainer.program.job
    metrics = jax.eval_shape(trainer.evaluate, trainer.shapes())
    asked = {
        "updates": job.updates,
        "evaluate_every": job.evaluate_every,
        "metrics": sorted(metrics),
    }
    return asked | ({"most": most} if trainer.program.searched else {})


def prepared(
    experiment: Experiment,
    shard: tuple[int, int] = (0, 1),
    stated: Sequence[Published | Record] | None = (),
) -> list[Trainer]:
    """A trainer for each program of an experiment, checked and traced, not compiled.

    Args:
        experiment: the experiment.
        shard: as in `run`.
        stated: as in `run`; None if the answer, the figures and the statements may name
            settings that a changed flag has removed.

    Raises:
        ValueError: if the experiment is invalid, one of its functions fails, it or
            `stated` names a column or value that the run will not have, or its state
            does not fit into the memory.
    """
    checked = progress.Lines("checking program %s of %s")
    made = programs(experiment)
    of_shard = sharded(made, *shard, experiment.also_at)
    if not of_shard:
        cells = sum(program.size for program in made)
        raise ValueError(
            f"--shard={shard[0]}/{shard[1]} has no cell: the grid has {cells}, so that"
            f" i must be less than {cells}."
        )
    settings = setting_names(made)
    trainers, of_executable, measured = [], {}, {}
    for number, program in enumerate(of_shard, 1):
        checked.say(number, len(of_shard))
        executable = program.executable, program.size
        if executable not in of_executable:
            shown = {name: label(value) for name, value in program.columns.items()}
            with naming("The training", shown):
                trainer = Trainer(program, metrics=experiment.metrics)
                metrics = jax.eval_shape(trainer.evaluate, trainer.shapes())
                trainer.run_chunk.trace(trainer.shapes(), *trainer.feed.shapes())
            _check_metrics([*metrics], settings)
            measured[program.executable] = [*metrics]
            of_executable[executable] = trainer
        trainers.append(of_executable[executable].for_program(program))
    check_names(experiment, made, measured, stated)
    for trainer in of_executable.values():
        costs.check_memory(trainer)
    return trainers


def _check_metrics(metrics: Sequence[str], settings: Sequence[str]) -> None:
    """Checks that the metrics have `train_loss`, and no name that is taken."""
    if "train_loss" not in metrics:
        raise ValueError(
            "The task's `evaluate` must return 'train_loss', by which a cell counts as"
            f" diverged, got {', '.join(metrics) or 'nothing'}: add it."
        )
    taken = (*column_names.OURS, *settings)
    column_names.check("`evaluate` or `metrics` has the metric", metrics, taken)


def _say_devices() -> None:
    """Logs the devices, which shows whether a run fell back to a CPU."""
    devices, processes_ = jax.devices(), jax.process_count()
    where = f" in {processes_} processes" * (processes_ > 1)
    kind, platform = devices[0].device_kind, devices[0].platform
    progress.log.info(f"devices: {len(devices)} x {kind} ({platform}){where}")


_Rows = list[dict[str, Any]]


def _measured(
    experiment: Experiment,
    trainers: Sequence[Trainer],
    place: RunFolder,
    writers: Sequence[Writer],
    options: Mapping[str, Any],
) -> tuple[pd.DataFrame, pd.DataFrame, Selection]:
    """Searches, trains all programs, and returns what `tables.write` writes."""
    trainers, optima = at_optima(experiment, trainers, place)
    made = [trainer.program for trainer in trainers]
    meter = progress.Meter([program.job.updates for program in made])
    each = [_train(one, place, meter, writers, options) for one in trainers]
    return _tables(experiment, made, each, optima)


def _train(
    trainer: Trainer,
    place: RunFolder,
    meter: progress.Meter,
    writers: Sequence[Writer],
    options: Mapping[str, Any],
) -> tuple[_Rows, _Rows]:
    """Trains one program and returns its rows of results.csv and of curves.csv.

    Args:
        trainer: the functions of the program.
        place: the folder of the run.
        meter: shows the progress.
        writers: they receive the numbers during training.
        options: options of `loop.run`.
    """
    program = trainer.program
    rows = Rows(program)
    cells, updates = program.settings(), program.job.updates
    saved = checkpoints.Checkpoints(place.checkpoints / program.name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(saved)
        if processes.is_first():
            stack.enter_context(meter.program(program.name))
        # evaluated before a state is restored: memory never holds two states
        fresh = trainer.init()
        initial = jax.device_get(trainer.evaluate(fresh))
        del fresh
        state = saved.restore(trainer.shapes())
        start = 0 if state is None else int(execution.held(state).step)
        if state is None:
            state = trainer.init()
        elif processes.is_first():
            done = "is done" if start >= updates else "resumes"
            progress.log.info("%s %s at update %d", program.name, done, start)

        def write(row):
            place.add_row(row)
            shown = scalars(cells, row)
            for writer in writers:
                writer.write(program.name, row["step"], shown)

        def begin():
            if processes.is_first():
                place.cut_rows_after(program.name, start)
                if start == 0:
                    write(rows.first(initial))
                meter.begin(start)

        def report(*chunk):
            *numbers, ended = chunk
            if processes.is_first():
                row = rows.of_chunk(*numbers)
                write(row)
                meter.update(row, ended)

        def save(step, state):
            # the rows first: a checkpoint must not be ahead of the rows
            processes.together(place.upload)
            saved.save(step, state)

        processes.together(begin)
        state = loop.run(
            trainer,
            state,
            save=save,
            wait=saved.wait,
            report=report,
            **options,
        )
        final, counters = jax.device_get(
            (trainer.evaluate(state), trainer.counters(state))
        )
        curves = []
        if processes.is_first():
            curves = tables.curve_rows(
                place.rows(program.name), program.seeds, cells, program.job.evaluates
            )
    return rows.results(counters, initial, final), curves


def _tables(
    experiment: Experiment,
    made: Sequence[Program],
    each: Sequence[tuple[_Rows, _Rows]],
    optima: pd.DataFrame | None,
) -> tuple[pd.DataFrame, pd.DataFrame, Selection]:
    """The tables of results and curves, and the selection, from all rows."""
    results, curves = (list(itertools.chain(*part)) for part in zip(*each, strict=True))
    results, curves, selection = tables.split(
        setting_names(made),
        results,
        curves,
        selection=Selection(experiment.tuned_axes, experiment.tuned_by, optima=optima),
        tuning_seeds=experiment.tuning_seed_numbers,
    )
    return results, curves, selection.with_reported(results, curves)
