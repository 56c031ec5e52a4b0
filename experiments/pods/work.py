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
"""Opcodes that write a part of their first operand in place: which operand it is."""

NO_ESTIMATE = 2**62
"""From so many cycles on, what XLA prints is no estimate: it prints 2^63 - 1."""

LARGER_STEPS = 8
"""How many times larger a step may be in a loop that carries no collective.

By libtpu 0.0.42 a loop over tiles that carries one has at most 128 tiles in a step,
others 1,024. On a v5e an update of Adam takes 152,781 cycles in 9 steps, and 167,900 in
18; the loss of 8,192 tokens 7,484,460 in 396, and 12,446,368 in 3,152.
"""


class Speed(NamedTuple):
    """What a device does in a second, for estimates of a schedule's time."""

    flops: float  # of matrix products
    link: float  # bytes that it sends to the devices of its slice
    network: float = 0.0  # bytes that it sends to other slices; 0 where not known
    hertz: float = 0.0  # cycles, where the compiler prints its estimate in them
    memory: float = np.inf  # bytes that it reads and writes
    one_link: float = np.inf  # bytes that it sends to one neighbor, at most `link`
    step_seconds: float = 0.0  # with which a TPU begins each step of a loop over tiles


class Work:
    """What a module computes, at some speed; each computation is looked at once."""

    def __init__(self, module: hlo.Module, speed: Speed):
        self.module, self.speed = module, speed
        self.flops = functools.cache(functools.partial(self._sum, self.flops_of))
        self.seconds = functools.cache(functools.partial(self._sum, self.seconds_of))
        self.shapes = {
            name: {i.name: i.shape for i in instructions}
            for name, instructions in module.computations.items()
        }

    def flops_of(self, name: str, one: hlo.Instruction) -> float:
        """FLOPs of an instruction of the computation `name`."""
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
        """Estimated time of an instruction, without what it takes for a collective.

            (cycles that the compiler prints) / hertz, or, of a GPU,
            max( FLOPs / peak, bytes / bandwidth of the memory )

        The second, a roofline, also where the compiler prints that it has no estimate.
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
        """How much longer a TPU's fusion takes because it carries a collective.

            (s - ceil(s / 8)) step_seconds,    s its steps

        for a loop over tiles: it takes smaller steps, so that the collective advances
        between them. A product takes as long as without.
        """
        sizes = one.first_match(r'"iteration_bounds":\[(.*?)\]')
        if not (sizes and self.module.inside(one)) or self.flops(one.called):
            return 0.0
        steps = math.prod(int(size) for size in re.findall(r"\d+", sizes))
        without = math.ceil(steps / LARGER_STEPS)
        return (steps - without) * self.speed.step_seconds

    def bytes_of(self, name: str, one: hlo.Instruction) -> int:
        """Bytes that an instruction reads and writes.

        Of an array that is only cut, gathered from, or written in a part, the part.
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
            dtype, dims = hlo.arrays(one.shape)[0]  # the second is its workspace
            return sum(sizes) + hlo.bits(dtype) * math.prod(dims) // 8
        if one.opcode in _CUTS:
            return 2 * hlo.shape_bytes(one.shape)
        if one.opcode in _WRITES:
            return 2 * sizes[_WRITES[one.opcode]]
        return sum(sizes) + hlo.shape_bytes(one.shape)

    def _fused_bytes(self, fusion: hlo.Instruction, sizes: list[int]) -> int:
        """Those of its operands that it reads, and of its results that it writes."""
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
            # what is added to is read, too
            return hlo.shape_bytes(part) * _WRITES[one.opcode]

        root = [one.name for one in held if one.is_root] or [i.name for i in held[-1:]]
        return sum(read.values()) + sum(map(written, root))

    def _roofline(self, name: str, one: hlo.Instruction) -> float:
        products = self.flops_of(name, one) / self.speed.flops
        return max(products, self.bytes_of(name, one) / self.speed.memory)

    def _sum(self, cost: Callable[[str, hlo.Instruction], float], name: str) -> float:
        return sum(cost(name, one) for one in self.module.computations[name])

    def _of_calls(self, total: Callable[[str], float], one: hlo.Instruction) -> float:
        """A cost of what an instruction calls: of the dearest branch, if it chooses."""
        costs = [count * total(called) for called, count in self.module.calls(one)]
        if one.opcode == "conditional":
            return max(costs, default=0.0)
        return sum(costs, start=0.0)


def flops(module: hlo.Module) -> float:
    """FLOPs of the matrix products and convolutions in one run on one device.

    Two for each product of two numbers; calls of cuBLAS count. A loop counts as often
    as it runs, once where the text does not tell.
    """
    return Work(module, Speed(flops=1.0, link=1.0)).flops(module.entry)


def seconds(module: hlo.Module, speed: Speed) -> float:
    """Estimated time of all computation in one run, as in `Work.seconds_of`."""
    return Work(module, speed).seconds(module.entry)


def _dot_flops(result: str, lhs: str, contracted: str) -> float:
    """Of the first array of `result`; a call of cuBLAS also returns its workspace."""
    shape, of_lhs = hlo.arrays(result)[0][1], hlo.arrays(lhs)[0][1]
    depth = math.prod(of_lhs[int(d)] for d in re.findall(r"\d+", contracted))
    return 2.0 * math.prod(shape) * depth


def _convolution_flops(one: hlo.Instruction, operands: list[str]) -> float:
    labels = re.split("_|->", one.first_match(r"\bdim_labels=([\w?]+->[\w?]+)"))
    lhs, kernel, result = (
        dict(zip(names, hlo.arrays(shape)[0][1], strict=True))
        for names, shape in zip(labels, [*operands, one.shape], strict=True)
    )
    window = one.first_match(r"\bwindow=\{(.*?)\}")

    def of_window(key, dimension, default):
        sizes = hlo.first_match(rf"\b{key}=([\dx_\-]+)", window).split("x")
        return sizes[dimension] if sizes != [""] else default

    products = lhs["b"] * lhs["f"] * result["f"]
    for dimension in range(len(lhs) - 2):
        # where a kernel's element meets the input, not its padding or its holes
        key = str(dimension)
        at = np.add.outer(
            np.arange(result[key]) * int(of_window("stride", dimension, 1)),
            np.arange(kernel[key]) * int(of_window("rhs_dilate", dimension, 1)),
        ) - int(of_window("pad", dimension, "0_0").split("_")[0])
        holes = int(of_window("lhs_dilate", dimension, 1))
        there = (at >= 0) & (at < lhs[key] * holes) & (at % holes == 0)
        products *= int(there.sum())
    groups = [
        int(one.first_match(rf"\b{kind}_group_count=(\d+)") or 1)
        for kind in ("feature", "batch")
    ]
    return 2.0 * products / math.prod(groups)
