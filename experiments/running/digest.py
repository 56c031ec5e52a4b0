"""A fingerprint of what a program computes: a folder's records are of that alone."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from experiments.running.trainer import Trainer

Digest = Callable[[int], dict[str, str]]
"""updates -> {part of a program: its fingerprint}, of a run of so many."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function, other in each process


def of(trainer: Trainer) -> Digest:
    """The fingerprint of a program, as far as its first updates need it.

    It is of the traced functions (primitives, shapes, every constant), the first and
    the last of these updates' batches, and the traces up to there. More updates of the
    same program have the same fingerprint of the former number; a schedule that
    depends on their number is a constant, and makes another.
    """
    rule = trainer.program.rule

    @functools.cache
    def functions():
        traced = trainer.traced()
        return {name: _hash(*_of_jaxpr(jaxpr)) for name, jaxpr in traced.items()}

    def parts(updates):
        batches = [trainer.batch(step) for step in sorted({0, updates - 1})]
        arrays = [leaf for batch in batches for leaf in jax.tree.leaves(batch)]
        return functions() | {
            "data": _hash(*map(_of_array, arrays)),
            "traces": _hash(
                *(part for t in rule.traces for part in _of_trace(t, updates))
            ),
        }

    return parts


def _of_jaxpr(closed: ClosedJaxpr) -> Iterator[bytes]:
    """The text of a traced function, and its constants, also those further inside."""
    yield _ADDRESS.sub("", str(closed)).encode()
    yield from map(_of_array, closed.consts)
    for inner in _inside(closed.jaxpr):
        yield from map(_of_array, inner.consts)


def _inside(jaxpr: Any) -> Iterator[ClosedJaxpr]:
    """The traced functions that a traced function calls."""
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: isinstance(x, ClosedJaxpr)
        ):
            if isinstance(value, ClosedJaxpr):
                yield value
                yield from _inside(value.jaxpr)
            elif hasattr(value, "eqns"):  # one without constants
                yield from _inside(value)


def _of_trace(trace: Any, updates: int) -> Iterator[bytes]:
    """The gradients of the first updates, and when they were done."""
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
