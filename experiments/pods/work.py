"""The computation of a compiled module: FLOPs, bytes, and an estimate of its time."""

import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from experiments.pods import hlo

_FREE = {"after-all", "bitcast", "constant", "get-tuple-element", "iota", "tuple"}
_FREE |= {"opt-barrier", "parameter", "partition-id", "replica-id", "send", "recv"}
_FREE |= {*hlo.KINDS}
"""Opcodes that compute nothing and move nothing in a device's own memory."""

_CUTS = ("dynamic-slice", "gather", "slice")
_WRITES = {"dynamic-update-slice": 1, "scatter": 2}
"""{opcode that writes a part of its first operand: which operand has the new part}."""

NO_ESTIMATE = 2**62
"""The least number of cycles that is no estimate: XLA then prints 2^63 - 1."""

LARGER_STEPS = 8
"""The factor by which steps may be larger in a loop that carries no collective.

In libtpu 0.0.42 a loop over tiles that carries a collective has at most 128 tiles in a
step; other loops have 1,024. On a v5e an update of Adam takes 152,781 cycles in 9 steps
and 167,900 in 18; the loss of 8,192 tokens takes 7,484,460 in 396 and 12,446,368 in
3,152.
"""


class Speed(NamedTuple):
    """The rates of a device, per second, for estimates of a schedule's time."""

    flops: float  # FLOPs of matrix products
    link: float  # bytes that it sends to the devices of its slice
    network: float = 0.0  # bytes that it sends to other slices; 0 if not known
    hertz: float = 0.0  # cycles, if the compiler prints estimates in cycles; else 0
    memory: float = np.inf  # bytes that it reads and writes
    one_link: float = np.inf  # bytes that it sends to one neighbor, at most `link`
    step_seconds: float = 0.0  # time to begin a step of a TPU's loop over tiles


class Work:
    """The FLOPs and the time of a module's computations; each is summed once."""

    def __init__(self, module: hlo.Module, speed: Speed):
        self.module, self.speed = module, speed
        self.flops = functools.cache(functools.partial(self._sum, self.flops_of))
        self.seconds = functools.cache(functools.partial(self._sum, self.seconds_of))
        self.shapes = {
            name: {i.name: i.shape for i in instructions}
            for name, instructions in module.computations.items()
        }

    def flops_of(self, name: str, one: hlo.Instruction) -> float:
        """The FLOPs of an instruction of the computation `name`."""
        operands = [self.shapes[name].get(operand, "") for operand in one.operands]
        if one.opcode == "dot":
            contracted = one.first_match(r"\blhs_contracting_dims=\{(.*?)\}")
            return _dot_flops(one.shape, operands[0], contracted)
        if one.opcode == "custom-call" and "__cublas$" in one.attributes:
            contracted = one.first_match(r'"lhs_contracting_dimensions":\[(.*?)\]')
            return _dot_flops(one.shape, operands[0], contracted)
        if one.opcode == "convolution":
            return _convolution_flops(one, operands)
        return self._of_calls(self.flops, one)

    def seconds_of(self, name: str, one: hlo.Instruction) -> float:
        """The estimated time of an instruction, without the time for a collective.

            (cycles that the compiler prints) / hertz, or, of a GPU,
            max( FLOPs / peak, bytes / bandwidth of the memory )

        The second one, a roofline, is also used if the compiler has no estimate.
        """
        if one.opcode in ("while", "conditional", "call"):
            return self._of_calls(self.seconds, one)
        if not self.speed.hertz:
            return self._roofline(name, one)
        cycles = int(one.first_match(r'"estimated_cycles":"(\d+)"') or 0)
        if cycles >= NO_ESTIMATE:
            return self._roofline(name, one)
        return max(0.0, cycles / self.speed.hertz - self.carrying_seconds(one))

    def carrying_seconds(self, one: hlo.Instruction) -> float:
        """The time that a collective adds to the TPU's fusion that carries it.

            (s - ceil(s / 8)) step_seconds,    s its steps

        for a loop over tiles: it takes smaller steps, so that the collective advances
        between them. For a matrix product the added time is 0.
        """
        sizes = one.first_match(r'"iteration_bounds":\[(.*?)\]')
        if not (sizes and self.module.inside(one)) or self.flops(one.called):
            return 0.0
        steps = math.prod(int(size) for size in re.findall(r"\d+", sizes))
        without = math.ceil(steps / LARGER_STEPS)
        return (steps - without) * self.speed.step_seconds

    def bytes_of(self, name: str, one: hlo.Instruction) -> int:
        """The bytes that an instruction reads and writes.

        If it cuts, gathers or writes only a part of an array, the part counts.
        """
        if one.opcode in _FREE or one.opcode.endswith(("-start", "-done", "-update")):
            return 0
        sizes = [
            hlo.shape_bytes(self.shapes[name].get(operand, ""))
            for operand in one.operands
        ]
        if one.opcode == "fusion":
            return self._fused_bytes(one, sizes)
        if one.opcode == "custom-call" and "__cublas$" in one.attributes:
            dtype, dims = hlo.arrays(one.shape)[0]  # the second array is its workspace
            return sum(sizes) + hlo.bits(dtype) * math.prod(dims) // 8
        if one.opcode in _CUTS:
            return 2 * hlo.shape_bytes(one.shape)
        if one.opcode in _WRITES:
            return 2 * sizes[_WRITES[one.opcode]]
        return sum(sizes) + hlo.shape_bytes(one.shape)

    def _fused_bytes(self, fusion: hlo.Instruction, sizes: list[int]) -> int:
        """The bytes that a fusion reads of its operands and writes of its results."""
        held = self.module.computations.get(fusion.called, [])
        by_name = {one.name: one for one in held}

        def source(name):
            while name in by_name and by_name[name].opcode == "bitcast":
                (name,) = by_name[name].operands
            return name

        read = dict.fromkeys(range(len(sizes)), 0)
        numbers = {i.name: int(i.operands[0]) for i in held if i.opcode == "parameter"}
        for one in held:
            if one.opcode == "bitcast":
                continue
            for place, operand in enumerate(map(source, one.operands)):
                if operand not in numbers or (place == 0 and one.opcode in _WRITES):
                    continue
                number = numbers[operand]
                cut = place == 0 and one.opcode in _CUTS
                part = hlo.shape_bytes(one.shape) if cut else sizes[number]
                read[number] = min(sizes[number], read[number] + part)

        def written(name):
            one = by_name[source(name)]
            if one.opcode == "tuple":
                return sum(map(written, one.operands))
            if one.opcode not in _WRITES:
                return hlo.shape_bytes(one.shape)
            part = by_name[one.operands[_WRITES[one.opcode]]].shape
            # a scatter also reads the part to which it adds
            return hlo.shape_bytes(part) * _WRITES[one.opcode]

        root = [one.name for one in held if one.is_root] or [i.name for i in held[-1:]]
        return sum(read.values()) + sum(map(written, root))

    def _roofline(self, name: str, one: hlo.Instruction) -> float:
        products = self.flops_of(name, one) / self.speed.flops
        return max(products, self.bytes_of(name, one) / self.speed.memory)

    def _sum(self, cost: Callable[[str, hlo.Instruction], float], name: str) -> float:
        return sum(cost(name, one) for one in self.module.computations[name])

    def _of_calls(self, total: Callable[[str], float], one: hlo.Instruction) -> float:
        """The cost of an instruction's calls; of a conditional, its largest branch."""
        costs = [count * total(called) for called, count in self.module.calls(one)]
        if one.opcode == "conditional":
            return max(costs, default=0.0)
        return sum(costs, start=0.0)


def flops(module: hlo.Module) -> float:
    """The FLOPs of the matrix products and convolutions in one run on one device.

    Each product of two numbers is two FLOPs; calls of cuBLAS count. A loop counts as
    often as it runs, or once if its length is unknown.
    """
    return Work(module, Speed(flops=1.0, link=1.0)).flops(module.entry)


def seconds(module: hlo.Module, speed: Speed) -> float:
    """The estimated time of all computation in one run, as in `Work.seconds_of`."""
    return Work(module, speed).seconds(module.entry)


def _dot_flops(result: str, lhs: str, contracted: str) -> float:
    """The FLOPs of the first array of `result`; cuBLAS also returns its workspace."""
    shape, of_lhs = hlo.arrays(result)[0][1], hlo.arrays(lhs)[0][1]
    depth = math.prod(of_lhs[int(d)] for d in re.findall(r"\d+", contracted))
    return 2.0 * math.prod(shape) * depth


def _convolution_flops(one: hlo.Instruction, operands: list[str]) -> float:
    labels = re.split("_|->", one.first_match(r"\bdim_labels=([\w?]+->[\w?]+)"))
    lhs, kernel, result = (
        dict(zip(names, hlo.arrays(shape)[0][1], strict=True))
        for names, shape in zip(labels, [*operands, one.shape], strict=True)
    )

    def of_window(key, dimension, default):
        given = one.first_match(rf"\bwindow=\{{[^}}]*\b{key}=([\dx_\-]+)")
        sizes = given.split("x")
        return sizes[dimension] if sizes != [""] else default

    products = lhs["b"] * lhs["f"] * result["f"]
    for dimension in range(len(lhs) - 2):
        # count only the places where the kernel meets the input, not padding or holes
        key = str(dimension)
        at = np.add.outer(
            np.arange(result[key]) * int(of_window("stride", dimension, 1)),
            np.arange(kernel[key]) * int(of_window("rhs_dilate", dimension, 1)),
        ) - int(of_window("pad", dimension, "0_0").split("_")[0])
        holes = int(of_window("lhs_dilate", dimension, 1))
        inside = (at >= 0) & (at < lhs[key] * holes) & (at % holes == 0)
        products *= int(inside.sum())
    groups = [
        int(one.first_match(rf"\b{kind}_group_count=(\d+)") or 1)
        for kind in ("feature", "batch")
    ]
    return 2.0 * products / math.prod(groups)
