"""Measures the costs of delayjax on the devices of this machine, in one command.

    python -m benchmarks.device --out=.

measures in turn

    history    `benchmarks.history`: a step with a history beside its limit
    training   `benchmarks.training`: a delayed training step; a grid as one program
    memory     `benchmarks.memory`: a history by its formula, the compiler, the device
    replicas   `benchmarks.replicas`: the cost of averaging replicas, per step
    overlap    `benchmarks.device_overlap`: an all-reduce, and its hidden part

and writes a .md and a .json file, named by the kind of device, such as nvidia-h200.md;
with `--quick` nvidia-h200-quick.md, with sizes so small that they only test the
program. Files of an earlier run are replaced.

Each part runs in its own process, which is killed after 8 minutes. A part without
numbers says "not measured" and why; the other parts run all the same. This process
uses no device, because the parts could not use it then.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from benchmarks.side_by_side import heading, machine
from benchmarks.tables import NotMeasuredError, Table, not_measured

LIMIT = 480.0  # seconds for a part
CARD = "card"  # the part that describes the machine
SMALL = 2**14  # parameters, in a quick run


# The parts. Each imports what it needs, so that a missing package fails only one part.


def of_history(quick: bool) -> Iterable[Table]:
    """The tables of a step with a history."""
    from benchmarks import history

    if quick:
        return history.tables(SMALL, (1, 4), rounds=2)
    size = history.size_that_fits(history.DELAYS)
    return history.tables(size, history.DELAYS, history.ROUNDS)


def of_training(quick: bool) -> Iterable[Table]:
    """The tables of a training step, and of a grid of trainings."""
    from benchmarks import training

    if quick:
        tiny = {"batch_size": 2, "width": 8, "depth": 1, "heads": 1, "context": 8}
        return training.tables(tiny, rounds=2, updates=(2,), grids=1)
    return training.tables(training.MODEL, training.ROUNDS, (1_000,), grids=2)


def of_memory(quick: bool) -> Iterable[Table]:
    """The tables of the memory that histories need."""
    from benchmarks import memory

    if quick:
        return memory.tables(SMALL, (1, 4))
    return memory.tables(memory.SIZE, memory.DELAYS)


def of_replicas(quick: bool) -> Iterable[Table]:
    """The tables of averages of replicas."""
    from benchmarks import replicas

    rows = replicas.methods()
    if quick:
        rows = {name: rows[name] for name in replicas.PEERS}
        return replicas.tables(rows, (2,), rounds=1, torch=None)
    return replicas.tables(
        rows, replicas.BATCHES, replicas.ROUNDS, replicas.find_torch()
    )


def of_overlap(quick: bool) -> Iterable[Table]:
    """The tables of an all-reduce, and of its hidden part."""
    from benchmarks import device_overlap

    if quick:
        return device_overlap.tables((4 * SMALL,), (SMALL,))
    return device_overlap.tables(device_overlap.SUMMED, device_overlap.PARAMETERS)


PARTS: Mapping[str, Callable[[bool], Iterable[Table]]] = {
    "history": of_history,
    "training": of_training,
    "memory": of_memory,
    "replicas": of_replicas,
    "overlap": of_overlap,
}


# The process of a part.


def work(part: str, quick: bool, file: pathlib.Path) -> None:
    """Writes each table to the file as soon as it is measured, or why it is not."""
    parts: list[Any] = []

    def keep(one):
        parts.append(one)
        whole = file.with_suffix(".new")
        whole.write_text(json.dumps(parts))
        whole.replace(file)  # the process may be killed at any time

    try:
        if part == CARD:
            keep(machine())
            return
        for table in PARTS[part](quick):
            keep(table.as_json())
    except Exception as error:
        if not isinstance(error, NotMeasuredError):
            traceback.print_exc()
        keep(not_measured(error))


# The process that starts the parts.


def command(part: str, file: pathlib.Path, quick: bool) -> list[str]:
    """The command that starts the process of a part."""
    command = [sys.executable, "-m", "benchmarks.device", "--work", part, str(file)]
    return [*command, *["--quick"] * quick]


def in_a_process(part: str, quick: bool) -> list[Any]:
    """The tables that `work` measures within `LIMIT`, and why any are missing."""
    reason = []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "part.json")
        try:
            code = subprocess.run(command(part, file, quick), timeout=LIMIT).returncode
            if code:
                reason = [f"not measured: its process ended with exit code {code}"]
        except subprocess.TimeoutExpired:
            reason = [f"not measured: it took more than {LIMIT:g} s"]
        return [*(json.loads(file.read_text()) if file.exists() else ()), *reason]


def slug(kind: str) -> str:
    """The name of a file for a kind of device."""
    return re.sub("[^a-z0-9]+", "-", kind.lower()).strip("-")


def section(part: str, results: Iterable[Any]) -> str:
    """The Markdown text of a part."""
    blocks = [f"## {part.capitalize()}"]
    for one in results:
        if isinstance(one, str):
            blocks.append(one)
        else:
            table = Table(**one)
            blocks += [table.caption, "\n".join(table.markdown())]
    return "\n\n".join(blocks)


def page(result: Mapping[str, Any]) -> str:
    """The Markdown text of all parts."""
    quick = " With `--quick`: the numbers say nothing." * result["quick"]
    blocks = [
        f"# {result['machine']['device']}",
        f"{heading(result['machine'])}. `python -m benchmarks.device`, medians.{quick}",
        *(section(part, results) for part, results in result["parts"].items()),
    ]
    return "\n\n".join(blocks) + "\n"


def run(parts: Iterable[str], quick: bool, out: pathlib.Path) -> None:
    """Measures the parts, and writes both files after each."""
    card, *_ = in_a_process(CARD, quick)
    if isinstance(card, str):
        sys.exit(f"No device: {card}")
    result: dict[str, Any] = {"machine": card, "quick": quick, "parts": {}}
    name = slug(card["device"]) + "-quick" * quick
    for part in parts:
        started = time.monotonic()
        result["parts"][part] = results = in_a_process(part, quick)
        print(f"{section(part, results)}\n\n{time.monotonic() - started:.0f} s\n")
        (out / f"{name}.md").write_text(page(result))
        (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{out / name}.md, {out / name}.json")


class Flags(argparse.ArgumentParser):
    """A parser that refuses a bad flag in one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with the message."""
        self.exit(2, f"{message}\n")


def main() -> None:
    """Measures all parts, or the parts that `--parts` names."""
    parser = Flags(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a trial")
    parser.add_argument("--out", type=pathlib.Path, default=".", help="a folder")
    parser.add_argument(
        "--work", nargs=2, metavar=("PART", "FILE"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.work:
        part, file = args.work
        work(part, args.quick, pathlib.Path(file))
        return
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: must be a folder, or a new one: {error}")
    if not os.access(args.out, os.W_OK):
        parser.error(f"argument --out: {str(args.out)!r} may not be written to")
    run(dict.fromkeys(args.parts), args.quick, args.out)


if __name__ == "__main__":
    main()
