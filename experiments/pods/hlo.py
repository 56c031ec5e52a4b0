"""The text of a compiled module: its computations, their instructions and types."""

import math
import re
from typing import NamedTuple

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
"""The opcodes of collectives."""


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str  # the type of its result
    opcode: str
    operands: tuple[str, ...]  # names of instructions of the same computation
    attributes: str  # the text after its operands
    is_root: bool = False  # whether the computation returns its result

    def first_match(self, pattern: str) -> str:
        """The first match of a pattern's group in the attributes; "" without one."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""

    @property
    def called(self) -> str:
        """The computation that a fusion or an asynchronous wrapper calls; else ""."""
        return self.first_match(r"\bcalls=%?([\w.\-]+)")


class Module(NamedTuple):
    """A compiled module; instructions are in the order in which they run."""

    computations: dict[str, list[Instruction]]
    entry: str  # the computation that is run
    devices: int

    def inside(self, one: Instruction) -> list[Instruction]:
        """The collectives in a fusion or in an asynchronous wrapper."""
        held = self.computations.get(one.called, ())
        return [i for i in held if i.opcode in KINDS]

    def calls(self, one: Instruction) -> list[tuple[str, int]]:
        """The computations that an instruction runs, each with its number of runs."""
        if one.opcode == "while":
            return [(one.first_match(r"\bbody=%?([\w.\-]+)"), self._trips(one))]
        if one.opcode == "conditional":
            names = one.first_match(r"\bbranch_computations=\{(.*?)\}").split(",")
            names += re.findall(
                r"\b(?:true|false)_computation=([\w.\-%]+)", one.attributes
            )
            return [(name.strip(" %"), 1) for name in names if name]
        if one.opcode == "call":
            return [(one.first_match(r"\bto_apply=%?([\w.\-]+)"), 1)]
        return [(one.called, 1)] if one.called else []

    def _trips(self, loop: Instruction) -> int:
        known = loop.first_match(r'"known_trip_count":\{"n":"(\d+)"')
        if known:
            return int(known)
        # TPUs do not print it: the condition compares a count from 0 with the length
        held = self.computations.get(loop.first_match(r"\bcondition=%?([\w.\-]+)"), ())
        lengths = [i.operands[0] for i in held if i.opcode == "constant"]
        if len(lengths) == 1 and any("direction=LT" in i.attributes for i in held):
            return int(lengths[0]) if lengths[0].isdigit() else 1
        return 1


def parse(text: str) -> Module:
    r"""The module in a text that `jax.stages.Compiled.as_text()` returns.

    Raises:
        ValueError: if the text has no entry computation.

    Example:
        >>> module = parse('''HloModule step, num_partitions=2
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}
        ... }''')
        >>> main = module.computations["main"]
        >>> [(one.opcode, shape_bytes(one.shape)) for one in main]
        [('parameter', 32), ('all-reduce', 32)]
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
        raise ValueError("`text` must be a compiled module, got a text with no ENTRY.")
    counts = re.findall(
        r"\b(?:replica_count|num_partitions)=(\d+)", text.split("\n")[0]
    )
    return Module(computations, entry, math.prod(map(int, counts)))


def shape_bytes(shape: str) -> int:
    """The bytes of an array of this type, or of all arrays of a tuple's type.

    Example:
        >>> shape_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)}, u32[])")
        16
    """
    return sum(bits(dtype) * math.prod(dims) for dtype, dims in arrays(shape)) // 8


def _instruction(line: str) -> Instruction:
    line = re.sub(r"/\*.*?\*/", "", line).strip()
    name, _, rest = line.removeprefix("ROOT ").partition(" = ")
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, _, rest = rest.partition("(")
    end = _closing("(" + rest) - 1
    inside = rest[:end]
    # a constant has its value, and a parameter its number, in place of operands
    operands = re.findall(r"%([\w.\-]+)", inside) or [inside]
    is_root, name = line.startswith("ROOT "), name.lstrip("%")
    return Instruction(name, shape, opcode, tuple(operands), rest[end + 1 :], is_root)


def _closing(text: str) -> int:
    """The place of the parenthesis that closes the first one of a text."""
    depth = 0
    for place in re.finditer(r"[()]", text):
        depth += 1 if place[0] == "(" else -1
        if not depth:
            return place.start()
    raise ValueError(f"A line of the module must close its parentheses, got {text!r}.")


def arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """The dtype and the dimensions of each array in a type."""
    return [
        (dtype, tuple(int(n.lstrip("<=")) for n in dims.split(",") if n))
        for dtype, dims in re.findall(r"\b([a-z]\w*)\[([\d,<=]*)\]", shape)
    ]


def bits(dtype: str) -> int:
    """The bits of a number of this dtype, as XLA spells it; 0 for a token."""
    if dtype == "pred":
        return 8
    match = re.match(r"[a-z]+(\d+)", dtype)
    return int(match[1]) if match else 0
