"""Starts commands up to their first work, in a separate interpreter.

Reads [[module, arguments], ...] as JSON, and prints how each of them ended: "" if it
reached its work, else the last line.
"""

import contextlib
import functools
import importlib
import io
import json
import runpy
import sys
from unittest import mock

import jax
from absl import app, flags

WORK = {
    "experiments.main": ["experiments.run:run", "experiments.run:prepared"],
    "experiments.pods.compile_pod": ["experiments.pods.chips:Topology.devices"],
    "experiments.book": ["experiments.book.runs:run_all"],
    "experiments.advise": ["delayjax.cluster:advise"],
    "experiments.draw": [
        "experiments.results.runs:Run.read",
        "experiments.figures.drawing.ages:of_traces",
    ],
    "delayjax.testing": [
        f"delayjax._src.testing.{kind}:{check}"
        for kind, check in {
            "transformation": "check",
            "replicas": "check_averaging",
            "protocol": "check_protocol",
        }.items()
    ],
}
"""{module: the functions with which its work begins}."""
ABSENT = ("tensorflow_datasets",)  # packages that a command may import
JOIN = "experiments.host.processes:join"  # the other processes do not exist


class Started(BaseException):
    """Raised when the flags and values of a command are valid."""


def main() -> None:
    """Starts all commands."""
    commands = json.loads(sys.stdin.read())
    app.define_help_flags()  # otherwise each command would define them
    sys.modules.update({name: mock.MagicMock() for name in ABSENT})
    update = jax.config.update
    ends = []
    for module, arguments in commands:
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            # a bucket cannot be a cache here, and devices are made once
            mock.patch.object(jax.config, "update", _ignoring(update)),
        ):
            end = started(module, arguments)
        ends.append(end)
    print(json.dumps(ends))


def _ignoring(update):
    names = ("jax_compilation_cache_dir", "jax_num_cpu_devices")
    return lambda name, value: None if name in names else update(name, value)


def started(module: str, arguments: list[str]) -> str:
    """How a command ends, with its work replaced."""
    names = {*flags.FLAGS}
    with contextlib.ExitStack() as stack:
        for place in (JOIN, *WORK[module]):
            owner, _, name = place.partition(":")
            *path, name = name.split(".")
            owner = functools.reduce(getattr, path, importlib.import_module(owner))
            begun = None if place == JOIN else Started
            stack.enter_context(mock.patch.object(owner, name, side_effect=begun))
        stack.enter_context(mock.patch.object(sys, "argv", [module, *arguments]))
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except Started:
            return ""
        except SystemExit as end:
            return f"exit: {end.code}"
        finally:
            flags.FLAGS.unparse_flags()
            for name in {*flags.FLAGS} - names:  # another command has the same flags
                delattr(flags.FLAGS, name)
    return "it ended before its work"


if __name__ == "__main__":
    main()
