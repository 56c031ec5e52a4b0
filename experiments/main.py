"""Runs the experiment of a config file.

    python -m experiments.main --config=configs/default.py --workdir=runs/default

The same command continues a run that was stopped.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from ml_collections import config_flags

from experiments import statements
from experiments.config_files import ConfigFile, knobs, parse_flags
from experiments.host import processes, progress
from experiments.host.failures import in_one_line, of_changed
from experiments.host.folder import RunFolder
from experiments.results import effects
from experiments.results.runs import Run
from experiments.run import prepared, run
from experiments.running import loop
from experiments.running.costs import costs
from experiments.statements import Statements
from experiments.training.experiment import Experiment

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder to write to; gs:// too.")
_SHARD = flags.DEFINE_string(
    "shard",
    "0/1",
    "i/n: train every n-th cell, from number i on. The parts 0/n to (n-1)/n together"
    " are the whole grid, up to rounding, which grows in cells close to instability.",
)
_CHECK = flags.DEFINE_bool("check", False, "Exit with 1 if a record is missed.")
_RECORD = flags.DEFINE_bool(
    "record", False, "Keep the numbers of this run as the records of the config."
)
_QUIET = flags.DEFINE_bool("quiet", False, "Log only warnings and errors.")
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Print the cells and the memory of each program."
)
_PROFILE = flags.DEFINE_list(
    "profile", [], "start,stop: JAX profiles these updates into WORKDIR/profile."
)
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every",
    None,
    "Updates between checkpoints; by default one every 30 s.",
    lower_bound=1,
)
_KEEP_CHECKPOINTS = flags.DEFINE_bool(
    "keep_checkpoints",
    False,
    "Keep the checkpoints of the finished run: more updates continue from them.",
)
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Several processes: the same command on every host."
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, if it is not found automatically."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes",
    None,
    "The number of processes, if it is not found automatically.",
    lower_bound=1,
)
_PROCESS_ID = flags.DEFINE_integer(
    "process_id",
    None,
    "This process's number, if it is not found automatically.",
    lower_bound=0,
)
_TIMEOUT = flags.DEFINE_integer(
    "timeout_seconds",
    100,
    "Seconds that a process may be silent, or late at the start.",
    lower_bound=1,
)
_COMPILE_CACHE = flags.DEFINE_string(
    "compile_cache",
    None,
    "A folder that keeps compiled programs, gs:// too; by default one in the user's"
    " cache. '' keeps none.",
)
# all processes must have the same values of these flags
_SHARED_FLAGS = (_WORKDIR, _SHARD, _CHECKPOINT_EVERY, _KEEP_CHECKPOINTS, _DRY_RUN)


def main(file: ConfigFile) -> None:
    """Checks the flags and the experiment, trains, and writes the report."""
    progress.start_log(quiet=_QUIET.value)
    try:
        _check_flags()
        keep_compiled(_COMPILE_CACHE.value)
        if _DISTRIBUTED.value:
            processes.join(
                coordinator=_COORDINATOR.value,
                num_processes=_NUM_PROCESSES.value,
                process_id=_PROCESS_ID.value,
                timeout_seconds=_TIMEOUT.value,
            )
        chosen = knobs(_CONFIG.value)
        file.check(chosen)
        processes.check_agreement(
            {f"--config.{key}": value for key, value in chosen.items()}
            | {f"--{flag.name}": flag.value for flag in _SHARED_FLAGS}
        )
        changed = file.changed(chosen)
        for flag in (_CHECK, _RECORD):
            if flag.value and changed:
                raise ValueError(
                    f"--{flag.name} is for the config file's values, but"
                    f" {', '.join(changed)} is changed: leave one of the two out."
                )
        with of_changed(changed):
            made = processes.together(lambda: file.experiment(_CONFIG.value))
            stated = statements.about(file, _CONFIG.value)
        said = [*stated.published, *stated.records]
        shard, profile = _shard(_SHARD.value), _updates(_PROFILE.value)
        if _DRY_RUN.value:
            with of_changed(changed):
                trainers = prepared(made, shard, None if changed else said)
            print(f"programs: {len(trainers)}")
            for trainer in trainers:
                print(f"{trainer.program.name}: {costs(trainer)}")
                if trainer.program.searched:
                    axes = ", ".join(trainer.program.searched)
                    most = f"{made.effort.most:,} trainings of a series at most"
                    print(f"  before that a search   of {axes}: {most}")
            return
        outcome = run(
            made,
            _WORKDIR.value,
            shard=shard,
            config=chosen,
            changed=changed,
            source=file.source,
            stated=said,
            checkpoint_every=_CHECKPOINT_EVERY.value,
            keep_checkpoints=_KEEP_CHECKPOINTS.value,
            profile=profile,
        )
        if processes.is_first():
            met = _report(made, file, stated, outcome, changed)
            if _CHECK.value and not met:
                sys.exit(1)
    except loop.InterruptionError as stop:
        progress.log.info("%s. The same command goes on from there.", stop)
        # the codes of a shell for SIGINT and SIGTERM: a job queue can tell them apart
        sys.exit(130 if stop.by_hand else 143)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from the last checkpoint.")
        sys.exit(130)  # the code of a shell for SIGINT
    except TypeError as error:  # usually from a function in the config file
        sys.exit(f"error: --config={file.source}: {in_one_line(error)}")
    except (ValueError, OSError, loop.DivergenceError) as error:
        sys.exit(f"error: {error}")


def keep_compiled(folder: str | None) -> None:
    """Keeps compiled programs in a folder, so that a second run compiles nothing.

    Raises:
        ValueError: if the folder cannot be written.
    """
    if folder is None:
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", f"{cache}/delayjax/xla")
    elif folder and "://" not in folder:
        folder = os.path.expanduser(folder)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"--compile_cache={folder} cannot be written ({error.strerror}): choose"
                " a folder of your own, or '' to keep nothing."
            ) from error
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        # also programs that compile quickly: a short run has no others
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _check_flags() -> None:
    """Raises an error for flags that would be ignored, and for a wrong process id."""
    if not _DISTRIBUTED.value:
        for flag in (_COORDINATOR, _NUM_PROCESSES, _PROCESS_ID, _TIMEOUT):
            if flag.present:
                raise ValueError(
                    f"--{flag.name}={flag.value} is for several processes: add"
                    " --distributed, or leave it out."
                )
    count, number = _NUM_PROCESSES.value, _PROCESS_ID.value
    if None not in (count, number) and number >= count:
        raise ValueError(
            f"--process_id must be less than --num_processes={count}, got {number}."
        )


def _shard(text: str) -> tuple[int, int]:
    try:
        part, parts = map(int, text.split("/"))
    except ValueError:
        part, parts = 0, 0
    if not 0 <= part < parts:
        raise ValueError(f"--shard must be i/n with 0 <= i < n, got {text!r}.")
    return part, parts


def _updates(bounds: list[str]) -> range:
    try:
        start, stop = map(int, bounds or (0, 0))
    except ValueError:
        start, stop = -1, -1
    if start < 0 or (bounds and stop <= start):
        raise ValueError(
            "--profile must be two updates, start,stop, with 0 <= start < stop, got"
            f" {','.join(bounds)!r}."
        )
    return range(start, stop)


def _report(
    experiment: Experiment,
    file: ConfigFile,
    stated: Statements,
    outcome: Run,
    changed: Mapping[str, Any],
) -> bool:
    """Writes report.html, logs the answer, and returns whether all records are met."""
    from experiments import report  # matplotlib is needed now, and not earlier

    verdicts = stated.verdicts(outcome)
    path = report.write(outcome, experiment, verdicts)
    RunFolder(_WORKDIR.value).upload()
    progress.log.info("report: %s/%s", _WORKDIR.value.rstrip("/"), path.name)
    for judged in verdicts.published:
        if judged.measured is not None or judged.claim.measure is None:
            progress.log.info("%s", judged)  # the report explains a missing number
    if _RECORD.value:
        path = statements.record(file, verdicts.records)
        progress.log.info("the records are written to %s", path)
    else:
        for one in verdicts.records:
            progress.log.info("%s", one)
    if changed:
        progress.log.info("values changed: %s", ", ".join(changed))
    answers = [str(one) for one in outcome.answers if isinstance(one, effects.Answer)]
    lines = [outcome.question, *answers, outcome.not_found()]
    progress.log.info("%s", "\n".join(filter(None, lines)))
    return all(one.met for one in verdicts.records)


def command_line() -> None:
    """Parses the command line, and runs `main`."""
    # a config may import the user's modules from the current folder
    sys.path.insert(0, os.getcwd())
    jax.config.config_with_absl()
    app.run(main, flags_parser=_parse_flags)


def _parse_flags(argv: list[str]) -> ConfigFile:
    return parse_flags(argv, "config", "workdir")


if __name__ == "__main__":
    command_line()
