"""Runs an experiment.

    python -m experiments.main --config=configs/default.py --workdir=runs/default

The same command again goes on where the last one stopped.
"""

import ast
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import jax
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from experiments import (
    advice,
    build,
    checkpoints,
    costs,
    curves,
    execution,
    grid,
    processes,
    progress,
    records,
    throughput,
    train,
)
from experiments.course import Course
from experiments.tasks.task import Task
from experiments.workdir import Workdir

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder to write to; gs:// too.")
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Several processes: the same command on every host."
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, where it is not found out by itself."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Likewise, how many.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Likewise, which this is.")
_TIMEOUT = flags.DEFINE_integer(
    "timeout_seconds", 100, "How long a process may be silent, or late at the start."
)
_COMPILE_CACHE = flags.DEFINE_string(
    "compile_cache",
    None,
    "A folder that keeps compiled programs, as does JAX's own"
    " JAX_COMPILATION_CACHE_DIR; gs:// too.",
)


def main(argv: list[str]) -> None:
    """Checks everything that can be checked, then trains, then draws."""
    if len(argv) > 1:
        sys.exit(f"error: unknown argument {argv[1]!r}: flags start with --config.")
    progress.start_log()
    started = time.monotonic()
    config, workdir = _CONFIG.value, Workdir(_WORKDIR.value)
    if _COMPILE_CACHE.value:
        jax.config.update("jax_compilation_cache_dir", _COMPILE_CACHE.value)
        # the quickly compiled too: a short run consists of them
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    try:
        if _DISTRIBUTED.value:
            processes.join(
                coordinator=_COORDINATOR.value,
                num_processes=_NUM_PROCESSES.value,
                process_id=_PROCESS_ID.value,
                timeout_seconds=_TIMEOUT.value,
            )
        processes.check_agreement(config)
        task, programs, trainers = processes.together(lambda: _prepare(config))
        if not config.dry_run:
            processes.first_does(lambda: _open(workdir, config, trainers))
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {workdir.shown(error)}")
    for name, value in task.facts.items():
        progress.log.info("%s: %s", name, value)
    asked = config.advise and processes.is_first()
    limits = advice.advise(config, task) if asked else []
    if config.dry_run:
        for program, trainer in zip(programs, trainers, strict=True):
            found = costs.costs(trainer)
            if processes.is_first():
                _print_costs(program, found)
                if trainer.course is not None:
                    _print_course(trainer.course)
        return

    def write_config(wall_seconds):
        if processes.is_first():
            records.write_config(
                workdir.local,
                config,
                docstring=_docstring(),
                facts=task.facts,
                limits=limits,
                wall_seconds=wall_seconds,
            )
        workdir.upload()

    write_config(None)
    rows, curve = [], []
    try:
        for program, trainer in zip(programs, trainers, strict=True):
            own_rows, own_curve = _train(workdir, program, trainer, task)
            rows += own_rows
            curve += own_curve
    except train.InterruptionError as stop:
        write_config(time.monotonic() - started)
        progress.log.info("%s. The same command goes on from there.", stop)
        sys.exit(143)  # as a shell reports SIGTERM
    except train.DivergenceError as error:
        write_config(time.monotonic() - started)
        sys.exit(f"error: {error}")
    except checkpoints.OtherRunError as error:
        sys.exit(f"error: {error}")
    write_config(time.monotonic() - started)
    if processes.is_first():
        records.write_results(workdir.local, rows)
        if curve:
            records.write_curves(workdir.local, curve)
        _draw(workdir)
        workdir.upload()


def _prepare(
    config: ConfigDict,
) -> tuple[Task, list[grid.Program], list[train.Trainer]]:
    """What a config asks for, checked."""
    build.check(config)
    task = build.task(config)
    programs = grid.programs(config)
    trainers = _trainers(config, task, programs)
    for program, trainer in zip(programs, trainers, strict=True):
        costs.check_memory(program, trainer)
    return task, programs, trainers


def _open(
    workdir: Workdir, config: ConfigDict, trainers: Iterable[train.Trainer]
) -> None:
    """Begins the records, or checks that they are of this run."""
    workdir.download()
    records.open_workdir(workdir.local, config)
    for course in {trainer.course for trainer in trainers} - {None}:
        records.write_trace(workdir.local, course, config.seeds[0])


def _trainers(
    config: ConfigDict, task: Task, programs: list[grid.Program]
) -> list[train.Trainer]:
    """A trainer for each program; those of an arm share what its cluster did."""
    tasks = {config.task.batch_size: task}
    followed = {}  # arm -> its own config, and its course
    for arm in {program.arm: None for program in programs if program.arm}:
        own = build.for_arm(config, arm)
        course = build.course(own, arm)
        own.steps, own.chunk = course.steps, course.chunk
        if own.task.batch_size not in tasks:
            # evaluated by one compiled function
            tasks[own.task.batch_size] = dataclasses.replace(
                build.task(own), evaluate=task.evaluate
            )
        followed[arm] = own, course
    trainers = []
    for program in programs:
        own, course = followed.get(program.arm, (config, None))
        trainers.append(train.trainer(own, program, tasks[own.task.batch_size], course))
    return trainers


def _train(
    workdir: Workdir, program: grid.Program, trainer: train.Trainer, task: Task
) -> tuple[list[dict], list[dict]]:
    """Trains one program and returns its rows of results.csv and of curves.csv."""
    config, course = trainer.config, trainer.course
    kept = checkpoints.Checkpoints(
        workdir.checkpoints / program.name,
        max_delay=trainer.max_delay,
        kept=config.checkpoints_kept,
    )
    # first, so that two states are never alive at once
    initial = jax.device_get(trainer.evaluate(trainer.init()))
    state = kept.restore(trainer.shapes())
    start = 0 if state is None else int(execution.held(state).step)
    if state is None:
        state = trainer.init()
    else:
        done = "is done" if start == config.steps else "resumes"
        progress.log.info("%s %s at step %d", program.name, done, start)
    with contextlib.ExitStack() as stack:
        stack.callback(kept.close)
        if processes.is_first():
            # an arm's updates are of different numbers of gradients
            work = throughput.of(config, program, task) if course is None else None
            metrics = records.Metrics(workdir.local, program, start, course, work)
            stack.callback(metrics.close)
            bar = progress.Bar(program.name, start, config.steps)
            stack.callback(bar.close)

        def report(*chunk):
            if processes.is_first():
                bar.update(metrics.write(*chunk))

        def save(state):
            workdir.upload()  # the rows first: none may lack up to a checkpoint
            kept.save(state)

        state = train.run(
            trainer,
            state,
            save=save,
            report=report,
            profile_dir=str(workdir.local / "profile"),
        )
    final, counters = jax.device_get((trainer.evaluate(state), trainer.counters(state)))
    rows = records.results(config, program, counters, initial, final, course)
    if course is None:
        return rows, []
    curve = curves.rows(records.settings(config, program), initial, metrics.rows())
    if config.target.value:
        rows = curves.with_target(
            rows, curve, config.target.metric, config.target.value
        )
    return rows, curve


def _draw(workdir: Workdir) -> None:
    """Figures and report, from the records alone."""
    # matplotlib takes seconds to import: not before training
    from experiments import figures, report

    for sentence in figures.warnings(workdir.local):
        progress.log.warning("%s", workdir.shown(sentence))
    drawn = [("figure", path) for path in figures.draw(workdir.local)]
    results = "results", workdir.local / "results.csv"
    for what, path in (*drawn, results, ("report", report.write(workdir.local))):
        progress.log.info("%s: %s", what, workdir.shown(path))


def _print_costs(program: grid.Program, cost: costs.Costs) -> None:
    mib = 2**20
    print(
        f"{program.name}: {cost.cells} cells, compiled in"
        f" {cost.compile_seconds:.1f} s\n"
        f"  parameters of a cell   {cost.parameters:,}\n"
        f"  history, all cells     {cost.history_bytes / mib:,.1f} MiB\n"
        f"  checkpoint             {cost.state_bytes / mib:,.1f} MiB\n"
        f"  FLOPs of an update     {cost.flops:.3g}\n"
        f"  estimated peak memory  {cost.peak_bytes / mib:,.1f} MiB"
    )


def _print_course(course: Course) -> None:
    gradients = course.counts(0, course.steps)
    print(
        f"  gradients of an update {gradients.min()} to {gradients.max()}, mean"
        f" {gradients.mean():.4g}\n"
        f"  staleness              mean {course.mean_staleness:.4g}, at most"
        f" {course.max_staleness} updates\n"
        f"  updates                {course.steps:,}, evaluated every {course.chunk}\n"
        f"  simulated              {course.seconds(course.steps).mean():,.6g} s"
    )


def _docstring() -> str:
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    path = path.split(".py:")[0] + ".py" if ".py:" in path else path
    return ast.get_docstring(ast.parse(Path(path).read_text())) or ""


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; an unknown or mistyped config key is one readable line."""
    try:
        return flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).strip("\"'").split())
        # what a config file itself refuses comes within a traceback
        reason = reason.rpartition(" ValueError: ")[2]
        if isinstance(error, (AttributeError, KeyError)):
            reason = (
                f"the config has no key {reason!r}; configs/default.py has them all"
            )
        sys.exit(f"error: {reason}.".replace("..", "."))


def run() -> None:
    """The command line."""
    # tasks of one's own are found where the command runs
    sys.path.insert(0, os.getcwd())
    jax.config.config_with_absl()
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main, flags_parser=_parse_flags)


if __name__ == "__main__":
    run()
