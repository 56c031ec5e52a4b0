"""The collectives of a compiled module, and the computation beside each of them."""

import collections
import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from experiments.pods import hlo
from experiments.pods.hlo import Instruction, Module
from experiments.pods.work import Speed, Work


class Collective(NamedTuple):
    """A collective in the schedule of a computation."""

    kind: str  # one of `hlo.KINDS`
    name: str  # the name of the instruction that starts it
    num_bytes: int  # the larger of its input and its output, on one device
    dtype: str  # as XLA spells it: bf16, f32; several joined by "+"
    group_size: int  # the number of devices, or slices, that exchange
    between_slices: bool  # a send and a recv, over the network of the slices' hosts
    asynchronous: bool  # whether something may run between its start and its end
    times: int  # how often it runs in a step; once in a loop of unknown length
    beside_seconds: float  # estimated time of computation beside it, each time
    carrying_seconds: float  # time that it adds to the fusions that carry it
    bandwidth: float  # bytes per second that a device can send for it
    in_branch: bool = False  # whether a conditional has it: it may not run in a step

    @property
    def sent_bytes(self) -> float:
        """The least bytes that a device sends, each time.

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
    def sending_seconds(self) -> float:
        """The seconds that a device sends, each time; infinite if not known."""
        return self.sent_bytes / self.bandwidth if self.bandwidth else math.inf

    @property
    def needed_bandwidth(self) -> float:
        """The least bandwidth at which computation hides the collective, in bytes/s."""
        if not self.beside_seconds:
            return math.inf
        return self.sent_bytes / self.beside_seconds

    @property
    def hidden(self) -> bool:
        """Whether the collective ends before a device waits for its result."""
        return self.needed_bandwidth <= self.bandwidth

    @property
    def waiting_seconds(self) -> float:
        """The seconds that the collective adds to a step, each time; inf: not known.

            max( sending - beside, carrying )

        A collective also sends during the time that it adds to the fusions that carry
        it.
        """
        return max(self.carrying_seconds, self.sending_seconds - self.beside_seconds)

    @property
    def hidden_seconds(self) -> float:
        """The seconds of its sending that add no time to a step; 0 if not known."""
        if not self.bandwidth:
            return 0.0
        return max(0.0, self.sending_seconds - self.waiting_seconds)


def collectives(module: Module, speed: Speed) -> list[Collective]:
    """All collectives of a module, also in loops and in called computations.

    A collective is asynchronous in one of three forms. It starts and ends in two
    instructions. Or, on a TPU, it goes through a chain of fusions (a start,
    computations, a done) and advances only in these. Or, between slices of TPUs, it is
    a pair of a send and a recv, and it starts at the first of the two. If the compiler
    finds no computation beside an asynchronous collective, the text has a synchronous
    one in its place.

    Times come from `Work.seconds_of`. Collectives that start and end in two
    instructions share their link: a collective begins when all earlier ones have been
    sent. While a device waits for one collective, the other ones advance. No time is
    measured on a device.

    Args:
        module: the result of `hlo.parse`.
        speed: the speed of a device.

    Returns:
        A record for each collective, in the order of their starts. A loop of unknown
        length counts once. A conditional counts with the branch that sends most.

    Example:
        >>> module = hlo.parse('''HloModule step, num_partitions=2
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}
        ... }''')
        >>> (one,) = collectives(module, Speed(flops=1e12, link=16.0))
        >>> one.kind, one.num_bytes, one.group_size, one.waiting_seconds
        ('all-reduce', 32, 2, 2.0)
    """
    return list(_Reader(module, speed).collectives(module.entry, 1))


class _Flight(NamedTuple):
    """The instructions of a collective in the schedule of a computation."""

    collective: Instruction
    holder: str  # the computation that has its operands
    result: str  # the type of its output
    start: Instruction
    end: int | None = None  # the place that waits for it; None: it is synchronous
    carriers: tuple[Instruction, ...] = ()  # the fusions that it goes through


def _all_sent(collectives: list[Collective]) -> float:
    return sum((c.sent_bytes * c.times for c in collectives), start=0.0)


class _Reader:
    """Reads the collectives of a module, with estimated times."""

    def __init__(self, module: Module, speed: Speed):
        self.module, self.speed = module, speed
        self.work = Work(module, speed)

    def collectives(self, name: str, times: int) -> Iterator[Collective]:
        """The collectives of a computation that runs `times` times, with its calls."""
        flights = self._flights(name)
        timed = self._timed(name, flights)
        for place, instruction in enumerate(self.module.computations[name]):
            for flight in flights.get(place, ()):
                yield self._record(flight, name, times, timed.get(id(flight)))
            if instruction.opcode != "fusion" and place not in flights:
                called = [
                    list(self.collectives(one, times * count))
                    for one, count in self.module.calls(instruction)
                ]
                if instruction.opcode == "conditional":  # one branch runs
                    most = max(called, key=_all_sent, default=[])
                    called = [[one._replace(in_branch=True) for one in most]]
                yield from itertools.chain(*called)

    def _timed(self, name: str, flights: dict[int, list[_Flight]]) -> dict[int, float]:
        """{id of a flight: seconds beside it}, if it starts and ends in two places.

        These are the seconds from the time when its link is free until a device waits
        for it. Meanwhile the device computes, carries other collectives, and waits.
        """
        clock, free = 0.0, collections.defaultdict(float)  # {link: when it is free [s]}
        ending, beside = collections.defaultdict(list), {}

        def waited(flight, record, begun):
            beside[id(flight)] = max(0.0, clock - begun)
            return record._replace(beside_seconds=beside[id(flight)])

        for place, instruction in enumerate(self.module.computations[name]):
            for flight, record, begun in ending.pop(place, ()):
                if not flight.carriers:
                    record = waited(flight, record, begun)
                if math.isfinite(record.waiting_seconds):
                    clock += record.waiting_seconds - record.carrying_seconds
            clock += self.work.seconds_of(name, instruction)
            clock += self.work.carrying_seconds(instruction)
            for flight in flights.get(place, ()):
                record, begun = self._record(flight, name, 1), clock
                sending = record.sending_seconds
                if flight.end is None:
                    clock += sending if math.isfinite(sending) else 0.0
                    continue
                if not flight.carriers:
                    begun = max(clock, free[record.between_slices])
                    if math.isfinite(sending):
                        free[record.between_slices] = begun + sending
                ending[flight.end].append((flight, record, begun))
        for flight, record, begun in itertools.chain(*ending.values()):
            if not flight.carriers:
                waited(flight, record, begun)
        return beside

    def _record(self, flight, name, times, beside=None):
        collective, shapes = flight.collective, self.work.shapes[flight.holder]
        between = collective.opcode == "recv"
        sent = " ".join(shapes[operand] for operand in collective.operands)
        sent = flight.result if between else sent
        carried = [self.work.seconds_of(name, one) for one in flight.carriers]
        longer = [self.work.carrying_seconds(one) for one in flight.carriers]
        bandwidth = self.speed.network if between else self.speed.link
        if collective.opcode.startswith("collective-permute"):  # to one neighbor
            bandwidth = min(bandwidth, self.speed.one_link)
        kind = _kind(collective)
        if kind == "all-reduce" and self._keeps_a_part(collective, flight.holder):
            kind = "reduce-scatter"
        return Collective(
            kind=kind,
            name=flight.start.name,
            num_bytes=max(hlo.shape_bytes(sent), hlo.shape_bytes(flight.result)),
            dtype="+".join(
                sorted({dtype for dtype, _ in hlo.arrays(sent) if hlo.bits(dtype)})
            ),
            group_size=_group_size(collective, self.module.devices),
            between_slices=between,
            asynchronous=flight.end is not None,
            times=times,
            beside_seconds=sum(carried, start=0.0) if beside is None else beside,
            carrying_seconds=sum(longer, start=0.0),
            bandwidth=bandwidth,
        )

    def _keeps_a_part(self, collective: Instruction, holder: str) -> bool:
        """Whether a fusion returns only the part of a sum that the device keeps.

        libtpu writes a reduce-scatter in this way, or as an all-reduce.
        """
        held = self.module.computations[holder]
        (root,) = [one for one in held if one.is_root] or held[-1:]
        return (
            root.opcode == "dynamic-slice"
            and root.operands[0] == collective.name
            and holder != self.module.entry
        )

    def _flights(self, name: str) -> dict[int, list[_Flight]]:
        """{place in the schedule: the collectives that start there}."""
        flights = collections.defaultdict(list, self._fused(name))
        schedule = self.module.computations[name]
        sends = {
            key: place
            for place, one in enumerate(schedule)
            if one.opcode == "send" and (key := _transfer(one))
        }
        starts: dict[str, int] = {}  # {instruction: start of the collective in it}
        ends: dict[int, int] = {}
        for place, one in enumerate(schedule):
            start = starts.get(one.operands[0])
            if one.opcode in hlo.KINDS:
                flights[place].append(_Flight(one, name, one.shape, one))
            elif one.opcode.endswith("-start"):
                if _kind(one) in hlo.KINDS or self.module.inside(one):
                    starts[one.name] = place
            elif one.opcode == "recv" and _kind(one) in hlo.KINDS:
                starts[one.name] = place
            elif start is not None and one.opcode.endswith("-update"):
                starts[one.name] = start
            elif start is not None and one.opcode.endswith("-done"):
                ends[start] = place
        for start in set(starts.values()):
            one, end = schedule[start], ends.get(start, len(schedule))
            result = schedule[end].shape if start in ends else one.shape
            inner, holder = one, name
            if _kind(one) not in hlo.KINDS:
                (inner, *_), holder = self.module.inside(one), one.called
            begins = min(start, sends.get(_transfer(one), start))
            flights[begins].append(
                _Flight(inner, holder, result, schedule[begins], end)
            )
        return flights

    def _fused(self, name: str) -> dict[int, list[_Flight]]:
        """{place: collectives that start there}, in a fusion or in a chain of them."""
        chains = collections.defaultdict(list)
        for place, one in enumerate(self.module.computations[name]):
            for inner in self.module.inside(one) if one.opcode == "fusion" else ():
                chain = inner.first_match(r'chain_id="(\d+)"') or one.name
                chains[chain].append((place, one, inner))
        flights = collections.defaultdict(list)
        for (place, first, inner), *others in chains.values():
            carriers, end = (first, *(one for _, one, _ in others)), place + 1
            if others:
                end = others[-1][0] + 1
            held = {i.opcode for i in self.module.computations[first.called]}
            if not others and not held & {"convolution", "dot"}:
                carriers, end = (), None  # fused with a cut or a conversion alone
            flights[place].append(
                _Flight(inner, first.called, inner.shape, first, end, carriers)
            )
        return flights


def _kind(instruction: Instruction) -> str:
    if instruction.opcode == "recv":  # the collective of the hosts of TPU slices
        kind = instruction.first_match(r'_xla_megascale_transfer_type="(\w+)"')
        return kind.lower().replace("_", "-")
    return instruction.opcode.removesuffix("-start")


def _transfer(instruction: Instruction) -> str:
    """The name that a send and its recv between slices share; "" for others."""
    return instruction.first_match(r'_xla_host_transfer_rendezvous="(.*?)"')


def _group_size(collective: Instruction, devices: int) -> int:
    slices = collective.first_match(
        r'_xla_megascale_target="\{(.*?)\}'
    )  # "{1,3:4}x{0}"
    if slices:
        ends = [list(map(int, part.split(":"))) for part in slices.split(",")]
        return sum(end[-1] - end[0] + 1 for end in ends)
    listed = collective.first_match(r"\breplica_groups=\{\{([\d,]*)\}")
    if listed:
        return len(listed.split(","))
    numbered = collective.first_match(
        r"\breplica_groups=\[\d+,(\d+)\]"
    )  # [groups, size]
    if numbered:
        return int(numbered)
    pattern = r"\breplica_groups=mesh\[(.*?)\].*?\{(.*?)\}"
    mesh = re.search(pattern, collective.attributes)
    if mesh:  # 'a'=2,'b'=4 and the axes that take part; 'b':(1)2 is a part of an axis
        sizes = dict(re.findall(r"'(.*?)'=(\d+)", mesh[1]))
        axes = re.findall(r"'(.*?)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return devices  # {}: all devices
