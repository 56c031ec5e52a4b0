"""Compiles a config's step for TPUs or GPUs that are not here, and prints its costs.

    python -m experiments.pods.compile_pod --config=configs/char_lm.py \
        --topology=v5e:4x4 --config.batch_size=1024

It compiles the loop of updates that `experiments.main` would run there, for each
program of the experiment in turn. The experiment's training must be `on_devices`; the
number of workers must be a multiple of the number of devices. `--topology=2*v5e:4x4` is
two slices of TPUs, `h100:1x1x8` a host of eight GPUs. It exits with 1 if a program does
not fit. It needs the extra `tpu` or `cuda`.

All times are estimated from the schedule, not measured: see docs/pods.md.
"""

import collections
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from absl import app, flags
from ml_collections import config_flags

from experiments.config_files import knobs, parse_flags
from experiments.pods import exchanges, hlo, work
from experiments.pods.chips import PodError, Topology, topology
from experiments.running import costs
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training.experiment import Experiment
from experiments.training.gradients import histories


class Report(NamedTuple):
    """The memory, FLOPs, times and collectives of a compiled program, per device."""

    program: str
    topology: str
    devices: int
    hbm_bytes: int  # memory of a device that programs may use
    compile_seconds: float
    argument_bytes: int  # the state and the data of the updates
    history_bytes: int  # part of the arguments: the histories in the state
    output_bytes: int  # outputs that are not written over donated arguments
    temp_bytes: int
    host_bytes: int  # in the memory of the device's host
    flops: float  # of an update's matrix products and convolutions
    bytes_accessed: float  # counted by XLA, on-chip memory too; 0: not known
    seconds: float  # of an update's computation, estimated as in `work.Work`
    collectives: tuple[exchanges.Collective, ...]

    @property
    def needed_bytes(self) -> int:
        """The bytes of the device's memory that the program needs."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes

    def exchanged_bytes(self, *, hidden: bool) -> int:
        """The bytes that an update exchanges in hidden collectives or in all others."""
        return sum(
            c.num_bytes * c.times for c in self.collectives if c.hidden == hidden
        )

    @property
    def sending_seconds(self) -> float:
        """The seconds of sending in an update; infinite if a bandwidth is not known."""
        return sum((c.sending_seconds * c.times for c in self.collectives), start=0.0)

    @property
    def waiting_seconds(self) -> float:
        """The seconds that collectives add to an update; infinite if not known."""
        return sum((c.waiting_seconds * c.times for c in self.collectives), start=0.0)


def reports(experiment: Experiment, name: str) -> Iterator[Report]:
    """Compiles the programs of an experiment, one after the other.

    Args:
        experiment: an experiment whose training is `on_devices`.
        name: the name of the topology to compile for, as in `chips.topology`.

    Raises:
        PodError: if the devices do not divide the workers, the workers are simulated,
            or a program does not fit.
        ValueError: if the experiment cannot be trained.
    """
    place = topology(name)
    devices = place.devices()
    for program in programs(experiment, devices=len(devices)):
        job = program.job
        if not job.devices or job.workers * job.devices_of_each % len(devices):
            each = f" of {job.devices_of_each} devices" * (job.devices_of_each > 1)
            raise PodError(
                f"{program.name} has {job.workers} workers{each}, but {name} has"
                f" {len(devices)} devices: train `on_devices` with a multiple of them."
            )
        trainer = Trainer(program, metrics=experiment.metrics, devices=devices)
        yield examine(
            trainer.run_chunk,
            (trainer.shapes(), *trainer.feed.shapes()),
            place,
            program=program.name,
        )


def examine(
    jitted: Any,
    arguments: Sequence[Any],
    place: Topology,
    *,
    program: str = "",
) -> Report:
    """The report of a function, which is compiled but not run.

    Args:
        jitted: a function from `jax.jit`, with the options of the compiler.
        arguments: the arguments of the function: trees of `jax.ShapeDtypeStruct` whose
            shardings are over the topology's devices.
        place: the topology of these devices.
        program: the name of the program.

    Raises:
        PodError: if the program does not fit the memory of a device.
    """
    lowered = jitted.lower(*arguments)
    started = time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options=place.compiler_options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = " ".join(str(error).split())[:400]
        raise PodError(_too_large(program, place, arguments, reason)) from error
    seconds = time.perf_counter() - started
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    module = hlo.parse(compiled.as_text())
    report = Report(
        program=program,
        topology=place.name,
        devices=module.devices * place.slices,
        hbm_bytes=place.memory_bytes,
        compile_seconds=seconds,
        argument_bytes=memory.argument_size_in_bytes,
        history_bytes=costs.device_bytes(histories(arguments)),
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
        host_bytes=memory.host_argument_size_in_bytes
        + memory.host_output_size_in_bytes
        - memory.host_alias_size_in_bytes
        + memory.host_temp_size_in_bytes,
        flops=work.flops(module),
        bytes_accessed=cost.get("bytes accessed", 0.0),
        seconds=work.seconds(module, place.speed),
        collectives=tuple(exchanges.collectives(module, place.speed)),
    )
    if report.needed_bytes > report.hbm_bytes:
        reason = f"it needs {report.needed_bytes / 2**30:.2f} GiB."
        raise PodError(_too_large(program, place, arguments, reason))
    return report


def table(report: Report) -> str:
    """The text of a report."""
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
        "its computation, about": f"{1e3 * report.seconds:.3g} ms",
    }
    if report.bytes_accessed:
        rows["bytes it accesses"] = _mib(report.bytes_accessed)
    hidden, exposed = (report.exchanged_bytes(hidden=h) for h in (True, False))
    if hidden + exposed:
        rows["bytes it exchanges"] = f"{hidden:,} hidden, {exposed:,} not"
    if hidden + exposed and math.isfinite(report.waiting_seconds):
        rows["  sending takes, about"] = f"{1e3 * report.sending_seconds:.3g} ms"
        rows["  it waits for them"] = f"{1e3 * report.waiting_seconds:.3g} ms"
    lines = [f"  {name:<26}{value}" for name, value in rows.items()]
    counts = collections.Counter()
    for c in report.collectives:
        size = f"{c.num_bytes:,} bytes"
        group = f"{c.group_size} {'slices' if c.between_slices else 'devices'}"
        counts[c.kind, size, c.dtype, group, _place(c)] += c.times
    cells = [(f"{count} x", *facts) for facts, count in counts.items()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines += ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    name = " ".join(filter(None, (report.program, "on", report.topology)))
    return "\n".join([f"{name}: {report.devices} devices", *lines])


def _place(collective: exchanges.Collective) -> str:
    """Words for a collective's place in the schedule, and the bandwidth it needs."""
    if collective.in_branch:
        return f"in a branch, {_place(collective._replace(in_branch=False))}"
    if not collective.asynchronous:
        return "synchronous"
    beside = f"asynchronous beside {1e6 * collective.beside_seconds:,.0f} us of compute"
    if not collective.beside_seconds:
        return beside
    needed = f"needs {collective.needed_bandwidth / 1e9:,.1f} GB/s"
    if not collective.bandwidth:
        return f"{beside}, {needed}"
    return f"{beside}, {needed} of {collective.bandwidth / 1e9:,.1f}"


def main(experiment: Experiment, name: str) -> None:
    """Compiles an experiment and prints its reports; exits with 1 if it cannot.

    Args:
        experiment: an experiment whose training is `on_devices`.
        name: the name of the topology to compile for.
    """
    try:
        for report in reports(experiment, name):
            print(table(report), flush=True)
    except (PodError, ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {error}")


def _too_large(program: str, place: Topology, arguments: Any, reason: str) -> str:
    held = costs.device_bytes(arguments)
    history = costs.device_bytes(histories(arguments))
    return (
        f"{program or 'The step'} does not fit a device of {place.name}, which has"
        f" {place.memory_bytes / 2**30:.2f} GiB: its arguments are {held / 2**30:.2f}"
        f" GiB, of which {history / 2**30:.2f} GiB are histories. Take a smaller batch"
        " per device, a shorter chunk, or a shorter, narrower or sharded history. XLA"
        f" says: {reason}"
    )


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def run() -> None:
    """Runs the command line."""
    # tasks of the user are imported from the current folder
    sys.path.insert(0, os.getcwd())
    jax.config.update("jax_platforms", "cpu")  # else libtpu looks for a TPU
    config = config_flags.DEFINE_config_file("config", None, "A file in configs/.")
    place = flags.DEFINE_string(
        "topology", None, "The devices: v5e:4x4, 2*v5e:4x4 or h100:1x1x8, for example."
    )

    def start(file):
        try:
            file.check(knobs(config.value))
            experiment = file.experiment(config.value)
        except (ValueError, OSError) as error:
            sys.exit(f"error: {error}")
        main(experiment, place.value)

    app.run(start, flags_parser=lambda argv: parse_flags(argv, "config", "topology"))


if __name__ == "__main__":
    run()
