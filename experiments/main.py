"""Runs the experiment of a config file.

    python -m experiments.main --config=configs/default.py --workdir=runs/default

The same command again goes on where the last one stopped.
"""

import itertools
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from ml_collections import config_flags

from experiments import claims, configs, loop, records, writers
from experiments.configs import knobs
from experiments.costs import costs
from experiments.experiment import Experiment
from experiments.host import processes, progress
from experiments.host.workdir import Workdir
from experiments.run import prepared, run

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder to write to; gs:// too.")
_SHARD = flags.DEFINE_string(
    "shard", "0/1", "i/n: every n-th cell, from number i on (0/n to (n-1)/n)."
)
_CHECK = flags.DEFINE_bool("check", False, "Exit with 1 where a claim is missed.")
_QUIET = flags.DEFINE_bool("quiet", False, "No progress, only warnings and errors.")
_WANDB = flags.DEFINE_string(
    "wandb", None, "A project of Weights & Biases that gets the numbers as well."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compile, print the costs, stop.")
_PROFILE = flags.DEFINE_list(
    "profile", [], "start,stop: JAX profiles these updates into WORKDIR/profile."
)
_CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every", None, "Updates; by default every 30 s."
)
_ANEW = flags.DEFINE_bool(
    "anew", False, "Remove the records of the run in the folder, and begin again."
)
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
    "A folder that keeps compiled programs, gs:// too; by default one in the user's"
    " cache. '' keeps none.",
)
# what all processes do alike depends on them
_SHARED_FLAGS = (_WORKDIR, _SHARD, _CHECKPOINT_EVERY, _ANEW, _DRY_RUN)


def main(argv: list[str]) -> None:
    """Checks everything that can be checked, then trains, then draws."""
    if len(argv) > 1:
        sys.exit(f"error: unknown argument {argv[1]!r}: flags start with --config.")
    progress.start_log(quiet=_QUIET.value)
    keep_compiled(_COMPILE_CACHE.value)
    try:
        if _DISTRIBUTED.value:
            processes.join(
                coordinator=_COORDINATOR.value,
                num_processes=_NUM_PROCESSES.value,
                process_id=_PROCESS_ID.value,
                timeout_seconds=_TIMEOUT.value,
            )
        chosen = knobs(_CONFIG.value)
        source = config_flags.get_config_filename(flags.FLAGS["config"])
        processes.check_agreement(
            {f"--config.{key}": value for key, value in chosen.items()}
            | {f"--{flag.name}": flag.value for flag in _SHARED_FLAGS}
        )
        experiment = processes.together(lambda: configs.made(source, _CONFIG.value))
        shard = _shard(_SHARD.value)
        if _DRY_RUN.value:
            for trainer in prepared(experiment, shard):
                print(f"{trainer.program.name}: {costs(trainer)}")
            return
        found = run(
            experiment,
            _WORKDIR.value,
            shard=shard,
            config=chosen,
            changed=configs.changed(source, chosen),
            source=source,
            checkpoint_every=_CHECKPOINT_EVERY.value,
            anew=_ANEW.value,
            writers=_writers(chosen),
            profile=_updates(_PROFILE.value),
        )
        if processes.is_first():
            met = _report(experiment, found)
            if _CHECK.value and not met:
                sys.exit(1)
    except loop.InterruptionError as stop:
        progress.log.info("%s. The same command goes on from there.", stop)
        sys.exit(143)  # as a shell reports SIGTERM
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from the last checkpoint.")
        sys.exit(130)  # as a shell reports SIGINT
    except TypeError as error:  # of a function in the config file, as a rule
        sys.exit(f"error: {configs.in_one_line(error, source)}")
    except (loop.DivergenceError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def keep_compiled(folder: str | None) -> None:
    """Keeps compiled programs in a folder, so that a second run compiles nothing."""
    if folder is None:
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", f"{cache}/delayjax/xla")
    if folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        # the quickly compiled too: a short run consists of them
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _shard(text: str) -> tuple[int, int]:
    try:
        part, parts = map(int, text.split("/"))
    except ValueError:
        part, parts = 0, 0
    if not 0 <= part < parts:
        raise ValueError(f"--shard must be i/n with 0 <= i < n, got {text!r}.")
    return part, parts


def _writers(chosen: dict[str, Any]) -> list[writers.Writer]:
    if not _WANDB.value or not processes.is_first():
        return []
    name = Path(_WORKDIR.value).name
    return [writers.WeightsAndBiases(_WANDB.value, name, chosen)]


def _updates(bounds: list[str]) -> range:
    try:
        start, stop = map(int, bounds or (0, 0))
        return range(start, stop)
    except ValueError:
        raise ValueError(
            f"--profile must be two updates, start,stop, got {','.join(bounds)!r}."
        ) from None


def _report(experiment: Experiment, found: records.Found) -> bool:
    """Writes report.html and says whether all claims are met."""
    from experiments import report  # matplotlib is needed now, and not earlier

    verdicts = claims.check(experiment.claims, found)
    place = Workdir(_WORKDIR.value)
    place.download()
    path = report.write(records.Run.read(place.local), experiment, verdicts=verdicts)
    place.upload()
    progress.log.info("report: %s", place.shown(path))
    for verdict in verdicts:
        progress.log.info("%s", verdict)
    return all(verdict.met for verdict in verdicts)


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; what cannot be read is one line."""
    paths = _given(argv, "config")
    try:
        for path in paths:
            configs.check_file(path)
        return flags.FLAGS(argv)
    except (AttributeError, KeyError) as error:
        key = str(error).strip("\"'")
        there = ", ".join(knobs(configs.own_config(paths[-1])))
        sys.exit(f"error: the config has no key {key!r}; it has {there}.")
    except (flags.Error, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        missing = re.search(r"Flag (--\w+) must have a value", reason)
        sys.exit(f"error: {f'{missing[1]} is missing.' if missing else reason}")


def _given(argv: list[str], name: str) -> list[str]:
    """The values of a flag."""
    joined = [text.partition("=")[2] for text in argv if text.startswith(f"--{name}=")]
    return joined + [b for a, b in itertools.pairwise(argv) if a == f"--{name}"]


def command_line() -> None:
    """The command line."""
    # tasks of one's own are found where the command runs
    sys.path.insert(0, os.getcwd())
    jax.config.config_with_absl()
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main, flags_parser=_parse_flags)


if __name__ == "__main__":
    command_line()
