"""Topologies to compile for: chips, their links and their speeds."""

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from experiments.pods.work import Speed


class PodError(Exception):
    """A step cannot be compiled for a topology; the text says why and what to do."""


class Chip(NamedTuple):
    """A device and its links."""

    memory_gib: float  # memory that XLA lets a program use
    speed: Speed  # its link goes to one neighbor; of a GPU to all GPUs of its host
    side: int = 0  # of a TPU: devices along an axis of the largest topology
    ring: int = 0  # an axis is a ring if its length is a multiple of this
    whole: bool = False  # whether rings need such lengths of all axes
    # options that make the cores of a chip one device, as on a real TPU
    settings: Mapping[str, str] = {}


CHIPS = {
    "v4": Chip(
        30.75,
        Speed(275e12, 50e9, hertz=1.05e9, memory=1.228e12, step_seconds=0.29e-6),
        *(16, 4, True),
        settings={"chip_config_name": "megacore"},
    ),
    "v5e": Chip(
        15.75,
        Speed(197e12, 50e9, 3.125e9, 1.5e9, 0.819e12, step_seconds=1.17e-6),
        *(16, 16),
    ),
    "v5p": Chip(
        95.74,
        Speed(459e12, 100e9, 6.25e9, 1.75e9, 2.765e12, step_seconds=0.61e-6),
        *(28, 4, True),
    ),
    "v6e": Chip(
        31.25,
        Speed(918e12, 100e9, 12.5e9, 1.75e9, 1.638e12, step_seconds=1.2e-6),
        *(16, 16),
    ),
    # each of the two cores of a chip is a device with half of the chip's numbers
    "tpu7x": Chip(
        94.75,
        Speed(2307e12 / 2, 50e9, 6.25e9, 2.2e9, 7.38e12 / 2, step_seconds=1.05e-6),
        *(16, 4, True),
    ),
    "h100": Chip(79.1, Speed(1979e12 / 2, 450e9, 50e9, memory=3.35e12)),
}
"""Published figures of each chip.

TPUs: the pages "TPU v5e", "TPU v5p", "TPU v6e" and "TPU7x" of
https://cloud.google.com/tpu/docs: half of the "bidirectional ICI bandwidth per chip"
over its ports (400 GB/s over 4, 1200 over 6, 800 over 4, 1200 over 6), and the "data
center network bandwidth"; for v4 Jouppi et al., ISCA 2023, arXiv:2304.01433, table 4.
Peaks: "peak compute per chip (bf16)"; half of NVIDIA's number, which is for sparsity.
Clocks: the rate at which the matrix units of a chip reach its peak (v5e: 4 units x
128^2 x 2 FLOPs; v6e and TPU7x: two passes a cycle). Steps: the time that libtpu 0.0.42
counts for the smallest loop; half of this time on v4 and v5p, whose two cores divide a
loop. GPU: NVIDIA's data sheet of the H100 (NVLink 900 GB/s both ways) and of the DGX
H100 (400 Gb/s for each GPU).
"""


class Topology(NamedTuple):
    """A set of devices: their chip, their number along each axis, and their slices."""

    name: str  # as the user writes it: "2*v5e:4x4"
    chip: str  # a key of CHIPS
    sides: tuple[int, ...]  # axes of a slice; of GPUs (slices, hosts, GPUs of a host)
    slices: int

    @property
    def is_gpu(self) -> bool:
        """Whether the devices are GPUs."""
        return not CHIPS[self.chip].side

    @property
    def memory_bytes(self) -> int:
        """The bytes of a device's memory that a program may use."""
        return int(CHIPS[self.chip].memory_gib * 2**30)

    @property
    def speed(self) -> Speed:
        """The speed of a device, with the bandwidth of a collective of all devices.

        A ring through all TPUs of a slice goes through its corners. There a device has
        one link for each axis, or two if the axis is a ring. Collectives among a part
        of the devices may have fewer links. For GPUs of several hosts the bandwidth is
        the bandwidth of the network, also within a host.
        """
        chip = CHIPS[self.chip]
        speed = chip.speed
        if self.is_gpu:
            hosts = math.prod(self.sides[:-1])
            return speed if hosts == 1 else speed._replace(link=speed.network)
        closed = [side % chip.ring == 0 for side in self.sides]
        closed = [all(closed)] * len(closed) if chip.whole else closed
        axes = zip(self.sides, closed, strict=True)
        links = sum(1 + ring for side, ring in axes if side > 1)
        return speed._replace(link=speed.link * max(1, links), one_link=speed.link)

    @property
    def compiler_options(self) -> dict[str, bool | int]:
        """Options to compile without the devices: no kernel is chosen by its time."""
        if not self.is_gpu:
            return {}
        return {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}

    def devices(self) -> list[jax.Device]:
        """The devices of the topology: descriptions to compile for, without memory.

        Raises:
            PodError: if this JAX cannot describe the topology, or a package is missing.
        """
        describe = _gpus if self.is_gpu else _tpus
        try:
            return list(describe(self).devices)
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise PodError(
                f"`topology` must be one that exists, such as {EXAMPLES}, got"
                f" {self.name!r}; JAX {jax.__version__} says: {reason}"
            ) from error


EXAMPLES = "v5e:4x4, v5e:16x16, v4:2x2x4, v5p:4x4x4, 2*v5e:4x4 or h100:1x1x8"


def topology(name: str) -> Topology:
    """The topology that a name describes.

    Args:
        name: a chip of `CHIPS`, and the number of devices along each axis: "v5e:4x4";
            with the number of slices in front: "2*v5e:4x4". For GPUs the numbers are
            slices, hosts of a slice, and GPUs of a host: "h100:1x1x8".

    Raises:
        PodError: if no topology has this name.

    Example:
        >>> topology("2*v5e:4x4")[1:]
        ('v5e', (4, 4), 2)
        >>> topology("v5e:4x4").speed.link / 1e9  # two links at a corner
        100.0
    """
    read = re.fullmatch(r"(?:(\d+)\*)?(\w+):(\d+(?:x\d+)+)", name)
    slices, chip, sides = read.groups() if read else (None, None, "")
    lengths = tuple(int(side) for side in sides.split("x") if side)
    slices = int(slices or 1)
    fits = chip in CHIPS and min(slices, *lengths) >= 1
    if fits and CHIPS[chip].side:
        fits = max(lengths) <= CHIPS[chip].side and len(lengths) in (2, 3)
    elif fits:
        fits = len(lengths) == 3 and slices == 1
    if not fits:
        most = ", ".join(f"{c.side} of {n}" for n, c in CHIPS.items() if c.side)
        raise PodError(
            f"`topology` must be CHIP:AxB or CHIP:AxBxC, as {EXAMPLES}, got {name!r}."
            f" Chips: {', '.join(CHIPS)}; along an axis at most {most}."
        )
    return Topology(name, str(chip), lengths, slices)


def _tpus(topology: Topology) -> Any:
    if importlib.util.find_spec("libtpu") is None:
        raise PodError("libtpu is missing: pip install -e '.[tpu]'.")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",  # else libtpu asks a server about its machine
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # else libtpu reports an unknown type
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is used: several may compile
    }.items():
        os.environ.setdefault(name, value)
    sides = "x".join(map(str, topology.sides))
    several = {"num_slices": topology.slices} if topology.slices > 1 else {}
    return topologies.get_topology_desc(
        topology_name=f"{topology.chip}:{sides}",
        platform="tpu",
        **CHIPS[topology.chip].settings,
        **several,
    )


def _gpus(topology: Topology) -> Any:
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise PodError("JAX's plugin for CUDA 13 is missing: pip install -e '.[cuda]'.")
    target = Path(__file__).with_name(f"{topology.chip}.txtpb").read_text()
    return topologies.get_topology_desc(
        topology_name=topology.chip,
        platform="cuda",
        target_config=target,
        topology="x".join(map(str, topology.sides)),
    )
