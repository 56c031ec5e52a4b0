"""`python -m delayjax.testing my_module:tx --devices=8`."""

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import jax

from delayjax._src.testing import protocol, replicas, subjects, transformation
from delayjax._src.testing.report import Report, said

KINDS = "transformation", "averaging", "protocol"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report on a module's method; returns 1 if a promise fails, else 0."""
    parser = _Parser(
        prog="python -m delayjax.testing",
        description="Checks the contract of a method of your own, and says what fails.",
    )
    parser.add_argument("method", help="MODULE:NAME, as my_module:tx")
    parser.add_argument(
        "--kind",
        choices=KINDS,
        default=KINDS[0],
        help="what it is: an Optax transformation; a function from an optimizer to a"
        " method that averages models; a protocol, a function of the server",
    )
    parser.add_argument("--devices", type=int, help="the devices to start on the CPU")
    parser.add_argument("--params", help="MODULE:NAME of a tree of arrays or shapes")
    parser.add_argument("--axis", help="the workers' axis of a transformation")
    parser.add_argument(
        "--period",
        type=int,
        help="H, if a method that averages claims to mix at every H-th step alone",
    )
    parser.add_argument(
        "--conserves-mean",
        action="store_true",
        help="if a method that averages claims that mixing changes no mean",
    )
    given = parser.parse_args(arguments)
    if given.devices is not None:
        if given.devices < 1:
            parser.error(f"--devices must be at least 1, got {given.devices}")
        # before a module is imported, which may touch a device
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", given.devices)
    claims = {"period": given.period, "conserves_mean": given.conserves_mean}
    if given.kind != "averaging" and any(claims.values()):
        parser.error(
            "--period and --conserves-mean are claims of a method that averages: write"
            f" --kind=averaging, got --kind={given.kind}"
        )
    sys.path.insert(0, os.getcwd())
    method = _loaded(parser, "the method", given.method)
    params = given.params and _loaded(parser, "--params", given.params)
    is_transformation = hasattr(method, "init") and hasattr(method, "update")
    if given.kind == KINDS[0] and callable(method) and not is_transformation:
        parser.error(
            f"{given.method} must be an Optax transformation, got {method!r}: name one,"
            " or write --kind=averaging or --kind=protocol"
        )
    try:
        report = _checked(given.kind, method, params, given.axis, claims)
    except (TypeError, ValueError) as error:
        parser.error(said(error))
    print(dataclasses.replace(report, of=given.method))
    return 1 if report.failures else 0


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _loaded(parser: _Parser, what: str, path: str) -> Any:
    """The object of MODULE:NAME."""
    module, _, name = path.partition(":")
    if not module or not name:
        parser.error(f"{what} must be MODULE:NAME, got {path!r}")
    try:
        held = importlib.import_module(module)
    except Exception as error:  # whatever happens in a stranger's module
        parser.error(f"the module {module!r} cannot be imported: {said(error)}")
    for part in name.split("."):
        if not hasattr(held, part):
            parser.error(f"the module {module!r} has no {name!r}")
        held = getattr(held, part)
    return held


def _checked(
    kind: str, method: Any, params: Any, axis_name: str | None, claims: dict[str, Any]
) -> Report:
    if kind == "protocol":
        return protocol.check_protocol(lambda: method)
    if kind == "averaging":
        return replicas.check_averaging(method, params=params, **claims)
    params = subjects.small() if params is None else params
    return transformation.check(method, params, axis_name=axis_name)
