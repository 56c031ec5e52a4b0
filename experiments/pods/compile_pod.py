"""Compiles a config's step for a TPU topology, with no TPU, and says what it costs.

    python -m experiments.pods.compile_pod --config=configs/char_lm.py \
        --topology=v5e:4x4 --config.batch_size=1024

It compiles what `experiments.main` would run there, a loop of some updates, for each
program of the experiment in turn. The experiment's training must be `on_devices`, with
as many workers as the topology has devices, or a multiple. It exits with 1 where a
program does not fit; `--json=PATH` writes all of it to a file. Needs the `tpu` extra.
"""

import collections
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import app, flags
from jax.experimental import topologies
from ml_collections import config_flags

from experiments import configs, costs, loop
from experiments.experiment import Experiment
from experiments.pods import hlo
from experiments.programs import programs


class PodError(Exception):
    """Why a step could not be compiled for a topology, and what to do."""


class Chip(NamedTuple):
    """A generation of TPUs."""

    hbm_gib: float  # of a device, that a program may use: what XLA says there is
    side: int  # devices along an axis of the largest topology
    # cores of a chip are one device, as where it is attached
    settings: Mapping[str, str] = {}


CHIPS = {
    "v4": Chip(30.75, 16, {"chip_config_name": "megacore"}),
    "v5e": Chip(15.75, 16),
    "v5p": Chip(95.74, 28),
    "v6e": Chip(31.25, 16),
    "tpu7x": Chip(94.75, 16),  # each of a chip's two cores is a device
}


class Report(NamedTuple):
    """What a compiled program needs and does. Bytes and FLOPs are per device."""

    program: str
    topology: str
    devices: int
    hbm_bytes: int  # it has, for programs
    compile_seconds: float
    argument_bytes: int  # the state and what the updates are given
    history_bytes: int  # of the arguments: the rings in the state
    output_bytes: int  # beside those written over donated arguments
    temp_bytes: int
    host_bytes: int  # in the memory of the device's host
    flops: float  # as XLA counts them: a loop's body once, so of one update
    bytes_accessed: float  # likewise; of on-chip memory, too
    collectives: tuple[hlo.Collective, ...]

    @property
    def needed_bytes(self) -> int:
        """Of the device's memory."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes

    def sent_bytes(self, *, hidden: bool) -> int:
        """In an update, by collectives hidden behind computation, or by the others."""
        return sum(
            c.num_bytes * c.times for c in self.collectives if c.hidden == hidden
        )

    def as_json(self) -> dict[str, Any]:
        """All of it, and what follows from it."""
        collectives = [c._asdict() | {"hidden": c.hidden} for c in self.collectives]
        return self._asdict() | {
            "needed_bytes": self.needed_bytes,
            "collectives": collectives,
        }


def devices(topology: str) -> list[jax.Device]:
    """The devices of a topology, to compile for; nothing can be put on them.

    Args:
        topology: a chip of `CHIPS` and how many there are along each axis, "v5e:4x4".

    Raises:
        PodError: if there is no such topology, or libtpu is missing.
    """
    chip, _, sides = topology.partition(":")
    known = re.fullmatch(r"\d+(x\d+)+", sides) and chip in CHIPS
    if not known or max(map(int, sides.split("x"))) > CHIPS[chip].side:
        raise PodError(
            f"`topology` must be one of {', '.join(CHIPS)}, with no more than"
            f" {', '.join(str(c.side) for c in CHIPS.values())} chips along an axis, as"
            f" in v5e:4x4, v5e:16x16, v4:2x2x4 or v5p:4x4x4; got {topology!r}."
        )
    if importlib.util.find_spec("libtpu") is None:
        raise PodError("libtpu is missing: pip install -e '.[tpu]'.")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",  # or it looks for the machine that it is on
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # said to be unknown otherwise
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is held: several may compile
    }.items():
        os.environ.setdefault(name, value)
    try:
        return list(
            topologies.get_topology_desc(
                topology_name=topology, platform="tpu", **CHIPS[chip].settings
            ).devices
        )
    except jax.errors.JaxRuntimeError as error:
        raise PodError(
            f"`topology` must be one that there is, as v5e:4x4, got {topology!r}:"
            f" {str(error).strip().splitlines()[0]}"
        ) from error


def reports(experiment: Experiment, topology: str) -> Iterator[Report]:
    """Compiles the programs of an experiment, one after the other.

    Args:
        experiment: whose training is `on_devices`.
        topology: to compile for, as of `devices`.

    Raises:
        PodError: if its workers are not for so many devices, or are simulated ones, or
            a program does not fit.
        ValueError: if it cannot be trained at all.
    """
    there = devices(topology)
    for program in programs(experiment):
        workers = program.rule.workers
        if not program.rule.devices or workers % len(there):
            raise PodError(
                f"{program.name} has {workers} workers, but {topology} has"
                f" {len(there)} devices: train `on_devices` with a multiple of them."
            )
        trainer = loop.trainer(program, measure=experiment.measure, devices=there)
        yield examine(
            trainer.run_chunk,
            (trainer.shapes(), *trainer.given_shapes()),
            topology,
            program=program.name,
        )


def examine(
    jitted: Any,
    arguments: Sequence[Any],
    topology: str,
    *,
    program: str = "",
) -> Report:
    """Compiles a function and reads off what it needs and does. Nothing is run.

    Args:
        jitted: what `jax.jit` made, with its options of the compiler.
        arguments: what it takes: trees of `jax.ShapeDtypeStruct` whose shardings are
            over the topology's devices.
        topology: whose memory it is to fit.
        program: its name.

    Raises:
        PodError: if it does not fit.
    """
    lowered = jitted.lower(*arguments)
    started = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = " ".join(str(error).split())[:400]
        raise PodError(_too_large(program, topology, arguments, found)) from error
    seconds = time.perf_counter() - started
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    module = hlo.parse(compiled.as_text())
    report = Report(
        program=program,
        topology=topology,
        devices=module.devices,
        hbm_bytes=int(_chip(topology).hbm_gib * 2**30),
        compile_seconds=seconds,
        argument_bytes=memory.argument_size_in_bytes,
        history_bytes=costs.device_bytes(costs.rings(arguments)),
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
        host_bytes=memory.host_argument_size_in_bytes
        + memory.host_output_size_in_bytes
        - memory.host_alias_size_in_bytes
        + memory.host_temp_size_in_bytes,
        flops=cost.get("flops", 0.0),  # none of them: not said
        bytes_accessed=cost.get("bytes accessed", 0.0),
        collectives=tuple(hlo.collectives(module)),
    )
    if report.needed_bytes > report.hbm_bytes:
        found = f"it needs {report.needed_bytes / 2**30:.2f} GiB."
        raise PodError(_too_large(program, topology, arguments, found))
    return report


def table(report: Report) -> str:
    """A report for reading."""
    rows = {
        "compiled in": f"{report.compile_seconds:.1f} s",
        "memory of a device": _mib(report.hbm_bytes),
        "needed": _mib(report.needed_bytes),
        "  arguments": _mib(report.argument_bytes),
        "    history": _mib(report.history_bytes),
        "  outputs beside them": _mib(report.output_bytes),
        "  temporary": _mib(report.temp_bytes),
        "needed of its host": _mib(report.host_bytes),
        "FLOPs of an update": f"{report.flops:.4g}",
        "bytes it accesses": _mib(report.bytes_accessed),
    }
    hidden, exposed = (report.sent_bytes(hidden=h) for h in (True, False))
    if hidden + exposed:
        rows["bytes it sends"] = f"{hidden:,} hidden, {exposed:,} on the critical path"
    lines = [f"  {name:<24}{value}" for name, value in rows.items()]
    alike = collections.Counter()
    for c in report.collectives:
        size, group = f"{c.num_bytes:,} bytes", f"{c.group_size} devices"
        alike[c.kind, size, c.dtype, group, _place(c)] += c.times
    cells = [(f"{count} x", *facts) for facts, count in alike.items()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines += ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    name = " ".join(filter(None, (report.program, "on", report.topology)))
    return "\n".join([f"{name}: {report.devices} devices", *lines])


def _place(collective: hlo.Collective) -> str:
    if collective.hidden:
        return f"beside {collective.flops_share:.1%} of the FLOPs"
    if collective.asynchronous:
        return "asynchronous, on the critical path"
    return "on the critical path"


def main(experiment: Experiment, topology: str, json_path: str | None = None) -> None:
    """Compiles an experiment and prints its reports; exits with 1 if it cannot.

    Args:
        experiment: whose training is `on_devices`.
        topology: to compile for.
        json_path: where to write the reports, too; None for nowhere.
    """
    done = []
    try:
        for report in reports(experiment, topology):
            print(table(report), flush=True)
            done.append(report.as_json())
        if json_path:
            Path(json_path).write_text(json.dumps(done, indent=2) + "\n")
    except (PodError, ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {error}")


def _chip(topology: str) -> Chip:
    return CHIPS[topology.partition(":")[0]]


def _too_large(program: str, topology: str, arguments: Any, found: str) -> str:
    held, history = (
        costs.device_bytes(arguments),
        costs.device_bytes(costs.rings(arguments)),
    )
    return (
        f"{program or 'The step'} does not fit a device of {topology}, which has"
        f" {_chip(topology).hbm_gib} GiB: its arguments are {held / 2**30:.2f} GiB, of"
        f" which {history / 2**30:.2f} GiB are histories. Take a smaller batch a"
        " device, a shorter chunk, or a shorter, narrower or sharded history. XLA says:"
        f" {found}"
    )


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    if len(rest) > 1:
        sys.exit(f"error: unknown argument {rest[1]!r}: flags start with --config.")
    return rest


def run() -> None:
    """The command line."""
    # tasks of one's own are found where the command runs
    sys.path.insert(0, os.getcwd())
    jax.config.update("jax_platforms", "cpu")  # where there is libtpu, a TPU is sought
    config = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
    topology = flags.DEFINE_string("topology", None, "As v5e:4x4 or v5p:4x4x4.")
    json_path = flags.DEFINE_string("json", None, "Where to write the reports, too.")
    flags.mark_flags_as_required(["config", "topology"])

    def start(argv):
        del argv
        source = config_flags.get_config_filename(flags.FLAGS["config"])
        try:
            experiment = configs.made(source, config.value)
        except (ValueError, OSError) as error:
            sys.exit(f"error: {error}")
        main(experiment, topology.value, json_path.value)

    app.run(start, flags_parser=_parse_flags)


if __name__ == "__main__":
    run()
