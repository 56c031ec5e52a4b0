"""The collectives of a compiled module, and the computation beside each of them."""

import collections
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)


class Speed(NamedTuple):
    """What a device does in a second, for estimates of a schedule's time."""

    flops: float  # of matrix products
    link: float  # bytes that it sends to the devices of its slice
    network: float = 0.0  # bytes that it sends to other slices; 0 where not known
    hertz: float = 0.0  # cycles, where the compiler prints its estimate in them
    memory: float = np.inf  # bytes that it reads and writes; needed with `hertz`


class Collective(NamedTuple):
    """One collective, as the schedule of its computation has it."""

    kind: str  # one of KINDS
    name: str  # of the instruction that starts it
    num_bytes: int  # of what goes in or of what comes out, the larger; on one device
    dtype: str  # as XLA spells it: bf16, f32; several joined by "+"
    group_size: int  # devices that exchange; or slices
    between_slices: bool  # a send and a recv, over the network of the slices' hosts
    asynchronous: bool  # whether something may run between its start and its end
    times: int  # it runs in a step; more than one in a loop of known length
    beside_seconds: float  # estimated time of the computation beside it, each time
    bandwidth: float  # that a device has for it, in bytes a second

    @property
    def sent_bytes(self) -> float:
        """What a device sends at least, each time.

            2 B (n - 1) / n for an all-reduce of B bytes over n devices,
            B (n - 1) / n for a gather, a scatter or an all-to-all, B else

        References:
            Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
            workstations, J. Parallel Distrib. Comput. 69(2), 2009.
        """
        if self.kind.startswith("collective"):
            return self.num_bytes
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.num_bytes * (self.group_size - 1) / self.group_size

    @property
    def needed_bandwidth(self) -> float:
        """Bytes/s with which the collective ends before its result is waited for."""
        return self.sent_bytes / self.beside_seconds if self.beside_seconds else np.inf

    @property
    def hidden(self) -> bool:
        """Whether the collective ends before its result is waited for."""
        return self.needed_bandwidth <= self.bandwidth

    @property
    def waiting_seconds(self) -> float:
        """How long a device waits for it, each time; infinite if not known."""
        sending = self.sent_bytes / self.bandwidth if self.bandwidth else np.inf
        return max(0.0, sending - self.beside_seconds)


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str  # the type of its result
    opcode: str
    operands: tuple[str, ...]  # names, of the same computation
    attributes: str  # what follows its operands


class Module(NamedTuple):
    """A compiled module; instructions stand in the order in which they are run."""

    computations: dict[str, list[Instruction]]
    entry: str  # the computation that is run
    devices: int


def parse(text: str) -> Module:
    r"""Reads a module, printed by `jax.stages.Compiled.as_text()`.

    Raises:
        ValueError: if the text has no entry computation.

    Example:
        >>> module = parse('''HloModule step, num_partitions=2
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}
        ... }''')
        >>> found = collectives(module, Speed(flops=1e12, link=1e9))
        >>> [(c.kind, c.num_bytes, c.group_size) for c in found]
        [('all-reduce', 32, 2)]
    """
    computations: dict[str, list[Instruction]] = {}
    current, entry = None, None
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")) and line.endswith("{"):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = name if line.startswith("ENTRY ") else entry
            current = computations[name] = []
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            current.append(_instruction(line))
    if entry is None:
        raise ValueError("The text must be a compiled module's, got one with no ENTRY.")
    counts = re.findall(
        r"\b(?:replica_count|num_partitions)=(\d+)", text.split("\n")[0]
    )
    return Module(computations, entry, math.prod(map(int, counts)))


def collectives(module: Module, speed: Speed) -> list[Collective]:
    """All collectives of a module, those in loops and called computations too.

    A collective is asynchronous in one of three forms. It starts and ends in two
    instructions. Or, on a TPU, it goes through a chain of fusions (a start,
    computations, a done) and advances in these alone. Or, between slices of TPUs, it is
    a pair of a send and a recv. A collective that the compiler wanted to be
    asynchronous, but found no computation for, is printed as a synchronous one.

    The time beside a collective is a sum of estimates. With `speed.hertz` they are the
    cycles that the compiler prints, and 0 where it prints none; else FLOPs of matrix
    products over `speed.flops`, a lower bound. In a fusion without a product XLA also
    counts the bytes of the collective that goes through it; these are subtracted.
    Collectives that are under way at the same time share their link: a later one has
    only the time that the earlier ones leave. Nothing here was measured on a device.

    Args:
        module: as `parse` returns it.
        speed: of a device.

    Returns:
        One record for each, in the order of their starts. A loop whose length the text
        does not tell counts once. Of a conditional, the branch that sends most.
    """
    return list(_Reader(module, speed).collectives(module.entry, 1))


def flops(module: Module) -> float:
    """FLOPs of the matrix products and convolutions in one run on one device.

    Two for each product of two numbers; calls of cuBLAS count. A loop counts as often
    as it runs, once where the text does not tell.
    """
    return _Reader(module).flops(module.entry)


def seconds(module: Module, speed: Speed) -> float:
    """Estimated time of all computation in one run, as in `collectives`."""
    return _Reader(module, speed).seconds(module.entry)


def shape_bytes(shape: str) -> int:
    """Bytes of an array's type, or of all in a tuple's.

    Example:
        >>> shape_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)}, u32[])")
        16
    """
    return sum(_bits(dtype) * math.prod(dims) for dtype, dims in _arrays(shape)) // 8


class _Flight(NamedTuple):
    """A collective within the schedule of a computation."""

    collective: Instruction
    holder: str  # the computation in which its operands are named
    result: str  # the type of what comes out
    # what runs between its start and its end; None: nothing may, it is synchronous
    beside: list[Instruction] | None
    end: int = 0  # where in the schedule it is waited for; 0 of a chain, which has none


def _all_sent(found: list[Collective]) -> float:
    return sum((c.sent_bytes * c.times for c in found), start=0.0)


class _Reader:
    """A module, and what is known of its computations: each is looked at once."""

    def __init__(self, module: Module, speed: Speed | None = None):
        self.module, self.speed = module, speed
        self.flops = functools.cache(functools.partial(self._sum, self._flops))
        self.seconds = functools.cache(functools.partial(self._sum, self._seconds))
        self.shapes = {
            name: {i.name: i.shape for i in instructions}
            for name, instructions in module.computations.items()
        }

    def collectives(self, name: str, times: int) -> Iterator[Collective]:
        """Those of a computation that runs `times` times, and of all that it calls."""
        flights = self._flights(name)
        schedule = self.module.computations[name]
        ends = np.cumsum([self._seconds(name, one) for one in schedule])  # [s]
        free = {False: 0.0, True: 0.0}  # between slices? -> when that link is free [s]
        for place, instruction in enumerate(schedule):
            for flight in flights.get(place, ()):
                found = self._record(flight, instruction, name, times)
                if flight.end:  # it shares its link with those before it
                    until = ends[flight.end - 1]
                    begun = max(ends[place], free[found.between_slices])
                    found = found._replace(beside_seconds=max(0.0, until - begun))
                    if found.bandwidth:
                        sending = found.sent_bytes / found.bandwidth
                        free[found.between_slices] = begun + sending
                yield found
            if instruction.opcode != "fusion" and place not in flights:
                called = [
                    list(self.collectives(one, times * count))
                    for one, count in self._calls(instruction)
                ]
                if instruction.opcode == "conditional":  # one branch runs
                    called = [max(called, key=_all_sent, default=[])]
                yield from itertools.chain(*called)

    def _record(self, flight, start, name, times):
        shapes, between = self.shapes[flight.holder], flight.collective.opcode == "recv"
        sent = " ".join(shapes[operand] for operand in flight.collective.operands)
        sent = flight.result if between else sent
        carried = 0 if flight.end else 2 * shape_bytes(start.shape)
        beside = [self._own_seconds(name, i, carried) for i in flight.beside or ()]
        return Collective(
            kind=_kind(flight.collective),
            name=start.name,
            num_bytes=max(shape_bytes(sent), shape_bytes(flight.result)),
            dtype="+".join(
                sorted({dtype for dtype, _ in _arrays(sent) if _bits(dtype)})
            ),
            group_size=_group_size(flight.collective, self.module.devices),
            between_slices=between,
            asynchronous=flight.beside is not None,
            times=times,
            beside_seconds=sum(beside, start=0.0),
            bandwidth=self.speed.network if between else self.speed.link,
        )

    def _flights(self, name: str) -> dict[int, list[_Flight]]:
        """Collectives of one schedule, by the place at which they start."""
        flights = collections.defaultdict(list, self._fused(name))
        schedule = self.module.computations[name]
        starts: dict[str, int] = {}  # what hands a collective on -> where it started
        ends: dict[int, int] = {}
        for place, one in enumerate(schedule):
            start = starts.get(one.operands[0])
            if one.opcode in KINDS:
                flights[place].append(_Flight(one, name, one.shape, None))
            elif one.opcode.endswith("-start"):
                if _kind(one) in KINDS or self._inside(one):
                    starts[one.name] = place
            elif one.opcode == "recv" and _kind(one) in KINDS:
                starts[one.name] = place
            elif start is not None and one.opcode.endswith("-update"):
                starts[one.name] = start
            elif start is not None and one.opcode.endswith("-done"):
                ends[start] = place
        for start in set(starts.values()):
            one, end = schedule[start], ends.get(start, len(schedule))
            result = schedule[end].shape if start in ends else one.shape
            beside = schedule[start + 1 : end]
            inner, holder = one, name
            if _kind(one) not in KINDS:
                (inner, *_), holder = self._inside(one), self._called(one)
            flights[start].append(_Flight(inner, holder, result, beside, end))
        return flights

    def _fused(self, name: str) -> dict[int, list[_Flight]]:
        """Those that go through fusions, one or a chain of them."""
        chains = collections.defaultdict(list)
        for place, one in enumerate(self.module.computations[name]):
            for inner in self._inside(one) if one.opcode == "fusion" else ():
                chain = _found(r'chain_id="(\d+)"', inner.attributes) or one.name
                chains[chain].append((place, one, inner))
        flights = collections.defaultdict(list)
        for (place, first, inner), *others in chains.values():
            holder, beside = (
                self._called(first),
                [first, *(one for _, one, _ in others)],
            )
            held = {i.opcode for i in self.module.computations[holder]}
            if not others and not held & {"convolution", "dot"}:
                beside = None  # fused with what cuts or converts it
            flights[place].append(_Flight(inner, holder, inner.shape, beside))
        return flights

    def _called(self, instruction: Instruction) -> str:
        return _found(r"\bcalls=%?([\w.\-]+)", instruction.attributes)

    def _inside(self, instruction: Instruction) -> list[Instruction]:
        """The collectives in a fusion, or in what is wrapped to be asynchronous."""
        held = self.module.computations.get(self._called(instruction), ())
        return [i for i in held if i.opcode in KINDS]

    def _calls(self, instruction: Instruction) -> list[tuple[str, int]]:
        """Computations that an instruction runs, and how often."""
        attributes = instruction.attributes
        if instruction.opcode == "while":
            body = _found(r"\bbody=%?([\w.\-]+)", attributes)
            return [(body, self._trips(attributes))]
        if instruction.opcode == "conditional":
            names = _found(r"\bbranch_computations=\{(.*?)\}", attributes).split(",")
            names += re.findall(r"\b(?:true|false)_computation=([\w.\-%]+)", attributes)
            return [(name.strip(" %"), 1) for name in names if name]
        if instruction.opcode == "call":
            return [(_found(r"\bto_apply=%?([\w.\-]+)", attributes), 1)]
        called = self._called(instruction)
        return [(called, 1)] if called else []

    def _trips(self, attributes: str) -> int:
        known = _found(r'"known_trip_count":\{"n":"(\d+)"', attributes)
        if known:
            return int(known)
        # TPUs do not print it: a loop that counts from 0 is compared with its length
        condition = _found(r"\bcondition=%?([\w.\-]+)", attributes)
        held = self.module.computations.get(condition, ())
        lengths = [i.operands[0] for i in held if i.opcode == "constant"]
        if len(lengths) == 1 and any("direction=LT" in i.attributes for i in held):
            return int(lengths[0]) if lengths[0].isdigit() else 1
        return 1

    def _sum(self, cost: Callable[[str, Instruction], float], name: str) -> float:
        return sum(cost(name, one) for one in self.module.computations[name])

    def _of_calls(self, total: Callable[[str], float], one: Instruction) -> float:
        """A cost of what an instruction calls: of the dearest branch, if it chooses."""
        costs = [count * total(called) for called, count in self._calls(one)]
        if one.opcode == "conditional":
            return max(costs, default=0.0)
        return sum(costs, start=0.0)

    def _flops(self, name: str, one: Instruction) -> float:
        operands = [self.shapes[name].get(operand, "") for operand in one.operands]
        if one.opcode == "dot":
            contracted = _found(r"\blhs_contracting_dims=\{(.*?)\}", one.attributes)
            return _dot_flops(one.shape, operands[0], contracted)
        if one.opcode == "custom-call" and "__cublas$" in one.attributes:
            key = r'"lhs_contracting_dimensions":\[(.*?)\]'
            contracted = _found(key, one.attributes)
            return _dot_flops(one.shape, operands[0], contracted)
        if one.opcode == "convolution":
            return _convolution_flops(one, operands)
        return self._of_calls(self.flops, one)

    def _own_seconds(self, name: str, one: Instruction, carried: int) -> float:
        """Estimated time without `carried` bytes, which are no part of a product's.

        By libtpu 0.0.42 for a v5e, an SGD update of 32 MiB of bfloat16 takes 307,512 or
        375,876 cycles, and 573,760 where it carries a sum; a product of 69 GFLOPs takes
        542,476, and 544,608.
        """
        if self._flops(name, one):
            return self._seconds(name, one)
        return max(0.0, self._seconds(name, one) - carried / self.speed.memory)

    def _seconds(self, name: str, one: Instruction) -> float:
        if one.opcode in ("while", "conditional", "call"):
            return self._of_calls(self.seconds, one)
        if self.speed.hertz:
            cycles = _found(r'"estimated_cycles":"(\d+)"', one.attributes)
            return int(cycles or 0) / self.speed.hertz
        return self._flops(name, one) / self.speed.flops


def _instruction(line: str) -> Instruction:
    line = re.sub(r"/\*.*?\*/", "", line).strip().removeprefix("ROOT ")
    name, _, rest = line.partition(" = ")
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, _, rest = rest.partition("(")
    end = _closing("(" + rest) - 1
    inside = rest[:end]
    # a constant's value and a parameter's number stand where others have operands
    operands = re.findall(r"%([\w.\-]+)", inside) or [inside]
    return Instruction(
        name.lstrip("%"), shape, opcode, tuple(operands), rest[end + 1 :]
    )


def _closing(text: str) -> int:
    """Where the parenthesis is closed with which a text begins."""
    depth = 0
    for place in re.finditer(r"[()]", text):
        depth += 1 if place[0] == "(" else -1
        if not depth:
            return place.start()
    raise ValueError(f"A line of the module must close its parentheses, got {text!r}.")


def _arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """The arrays of a type: dtypes and dimensions."""
    return [
        (dtype, tuple(int(n.lstrip("<=")) for n in dims.split(",") if n))
        for dtype, dims in re.findall(r"\b([a-z]\w*)\[([\d,<=]*)\]", shape)
    ]


def _bits(dtype: str) -> int:
    return 8 if dtype == "pred" else int(_found(r"^[a-z]+(\d+)", dtype) or 0)


def _kind(instruction: Instruction) -> str:
    if instruction.opcode == "recv":  # what the hosts of TPU slices do with it
        transfer = r'_xla_megascale_transfer_type="(\w+)"'
        return _found(transfer, instruction.attributes).lower().replace("_", "-")
    return instruction.opcode.removesuffix("-start")


def _found(pattern: str, text: str) -> str:
    """What a pattern's group matches first; empty if nothing."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def _group_size(collective: Instruction, devices: int) -> int:
    attributes = collective.attributes
    slices = _found(r'_xla_megascale_target="\{(.*?)\}', attributes)  # "{1,3:4}x{0}"
    if slices:
        ends = [list(map(int, part.split(":"))) for part in slices.split(",")]
        return sum(end[-1] - end[0] + 1 for end in ends)
    listed = _found(r"\breplica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return len(listed.split(","))
    numbered = _found(r"\breplica_groups=\[\d+,(\d+)\]", attributes)  # [groups, size]
    if numbered:
        return int(numbered)
    mesh = re.search(r"\breplica_groups=mesh\[(.*?)\].*?\{(.*?)\}", attributes)
    if mesh:  # 'a'=2,'b'=4 and the axes that take part; 'b':(1)2 is a part of one
        sizes = dict(re.findall(r"'(.*?)'=(\d+)", mesh[1]))
        axes = re.findall(r"'(.*?)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return devices  # {}: all


def _dot_flops(result: str, lhs: str, contracted: str) -> float:
    """Of the first array of `result`; a call of cuBLAS also returns its workspace."""
    shape, of_lhs = _arrays(result)[0][1], _arrays(lhs)[0][1]
    depth = math.prod(of_lhs[int(d)] for d in re.findall(r"\d+", contracted))
    return 2.0 * math.prod(shape) * depth


def _convolution_flops(one: Instruction, operands: list[str]) -> float:
    labels = re.split("_|->", _found(r"\bdim_labels=([\w?]+->[\w?]+)", one.attributes))
    lhs, kernel, result = (
        dict(zip(names, _arrays(shape)[0][1], strict=True))
        for names, shape in zip(labels, [*operands, one.shape], strict=True)
    )
    window = _found(r"\bwindow=\{(.*?)\}", one.attributes)

    def of_window(key, dimension, default):
        sizes = _found(rf"\b{key}=([\dx_\-]+)", window).split("x")
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
        int(_found(rf"\b{kind}_group_count=(\d+)", one.attributes) or 1)
        for kind in ("feature", "batch")
    ]
    return 2.0 * products / math.prod(groups)
