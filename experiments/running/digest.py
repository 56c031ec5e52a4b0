"""A fingerprint of a program, to check that a folder's records belong to it."""

import dataclasses
import enum
import functools
import hashlib
import numbers
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from experiments.running.program import Program, without_addresses
from experiments.running.trainer import Trainer
from experiments.training.rules import data_seed

Digest = Callable[[int], dict[str, str]]
"""updates -> {part of a program: its fingerprint}, for a run of so many updates."""

_OF_SOURCE = ("debug_info", "src_info", "name_and_src_info")  # name files and lines


def fingerprint(trainer: Trainer) -> Digest:
    """The fingerprint of the first updates of a program.

    It covers the traced functions (primitives, shapes, every constant), the seeds and
    cells, the batches of all workers in the first, the middle and the last of these
    updates, the number of examples, the simulated times, and the traces until then. If
    each worker along a trace has its part of the data, it covers one batch of each
    worker. A longer run of the same program has the same fingerprint for the shorter
    number of updates, unless a schedule depends on this number: it is a constant.
    """
    rule, (named, values) = trainer.program.rule, _named(trainer.values)

    @functools.cache
    def functions():
        hash_of = _Traced().hash_of
        return {name: hash_of(jaxpr) for name, jaxpr in trainer.traced().items()}

    def parts(updates):
        steps = sorted({0, updates // 2, updates - 1})
        batches = [rule.given(step, step + 1) for step in steps]
        arrays = jax.tree.leaves([*batches, *_of_each_worker(trainer.program)])
        clocks = [clock(updates) for clock in (rule.examples, rule.seconds) if clock]
        return functions() | {
            "grid and seeds": _hash(repr(named).encode(), *map(_of_array, values)),
            "clocks": _hash(*map(_of_array, clocks)),
            "data": _hash(*map(_of_array, arrays)),
            "traces": _hash(
                *(part for t in rule.traces for part in _of_trace(t, updates))
            ),
        }

    return parts


def _of_each_worker(program: Program) -> list[Any]:
    """A batch of each worker of the traces, if each has its part of the data."""
    drawn = program.task.batches_of
    if drawn is None:
        return []
    return [
        drawn(data_seed(seed), 0, np.arange(trace.num_workers))
        for seed, trace in zip(program.seeds, program.rule.traces, strict=False)
    ]


def _named(values: Any) -> tuple[list[str], list[Any]]:
    """The names and the arrays of a tree."""
    pairs = jax.tree.leaves_with_path(values)
    return [jax.tree_util.keystr(path) for path, _ in pairs], [x for _, x in pairs]


class _Traced:
    """Fingerprints of traced functions, without printing them.

    A terminal's colors and width, print options and the hash seed change printed text.
    So variables are numbered in the order in which they appear, and parameters are
    split down to numbers, names and bytes.
    """

    def __init__(self):
        # keeps the function, because another function could get its id
        self._done: dict[int, tuple[Any, str]] = {}

    def hash_of(self, traced: ClosedJaxpr | Jaxpr) -> str:
        """The fingerprint of a traced function, and of those that it calls."""
        if id(traced) not in self._done:
            self._done[id(traced)] = traced, self._hash_of(traced)
        return self._done[id(traced)][1]

    def _hash_of(self, traced: ClosedJaxpr | Jaxpr) -> str:
        closed = isinstance(traced, ClosedJaxpr)
        jaxpr = traced.jaxpr if closed else traced
        places: dict[Any, int] = {}

        def atoms(ins_or_outs):
            return ";".join(map(atom, ins_or_outs))

        def atom(x):
            if isinstance(x, Literal):
                value = f"={_hash(self._of(x.val))}"
            else:
                value = places.setdefault(x, len(places))
            weak = getattr(x.aval, "weak_type", False)
            return f"{x.aval.str_short()} {weak} {value}"

        taken = atoms(jaxpr.constvars), atoms(jaxpr.invars)
        equations = [
            (one.primitive.name, atoms(one.invars), atoms(one.outvars), one.params)
            for one in jaxpr.eqns
        ]
        consts = list(traced.consts) if closed else []
        return _hash(self._of((taken, equations, consts, atoms(jaxpr.outvars))))

    def _of(self, value: Any) -> bytes:
        """A parameter of an equation as bytes."""
        kind = type(value).__name__
        match value:
            case ClosedJaxpr() | Jaxpr():
                parts = [self.hash_of(value)]
            case enum.Enum():
                parts = [value.name]
            case None | str() | bytes() | bool():
                return f"{kind} {value!r}".encode()
            case numbers.Integral():  # of Python or of NumPy; its type has the dtype
                return repr(int(value)).encode()
            case numbers.Complex():
                return repr(complex(value)).encode()
            case _ if isinstance(value, jax.Array) or hasattr(value, "__array__"):
                return _of_array(value)
            case functools.partial():
                parts = [value.func, value.args, value.keywords]
            case Mapping():
                pairs = [(k, v) for k, v in value.items() if k not in _OF_SOURCE]
                parts = sorted(map(self._of, pairs))
            case Set():
                parts = sorted(map(self._of, value))
            case tuple() | list():
                parts = value
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                names = {field.name for field in dataclasses.fields(value)}
                parts = [{name: getattr(value, name) for name in names}]
            case _ if hasattr(value, "__qualname__"):  # a function or a class
                return f"{value.__module__}.{value.__qualname__}".encode()
            case _:
                return without_addresses(f"{kind} {value!r}").encode()
        each = [part if isinstance(part, bytes) else self._of(part) for part in parts]
        return _hash(kind.encode(), *each).encode()


def _of_trace(trace: Any, updates: int) -> Iterator[bytes]:
    """The gradients of the first updates, and the times of these updates."""
    mine = trace.update < updates
    for column in (trace.update, trace.worker, trace.read_version):
        yield _of_array(column[mine])
    yield _of_array(trace.seconds[:updates])
    yield _of_array(trace.divisor[:updates])


def _of_array(array: Any) -> bytes:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def _hash(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]
