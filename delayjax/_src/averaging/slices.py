"""A fragment of the model under way, of which a slice is sent at each step."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.averaging import means
from delayjax._src.ground import axes, collectives, shardings

Box = dict[str, jax.Array]
"""The leaves of a tree by dtype, {"d x dtype": [d r, columns]}: d slices of r rows.

Each leaf begins in a new row, below the leaf before it.
"""

ROWS, COLUMNS = 8, 128
"""The smallest block of a TPU's memory. The rows and the columns of a slice are
multiples of these: otherwise XLA would copy the box at each step."""


class Flight(NamedTuple):
    """A fragment under way, which starts after step k and arrives after step k + d."""

    begun: Box  # x^i_(k), the worker's model at the start; {} if it is not needed
    outbox: Box  # the worker's compressed message; {} if nothing is compressed
    inbox: Box  # the mean of all messages, in the slices that were sent


def empty(parts: Iterable[Any], params: Any, slices: int) -> Any:
    """A box of zeros that is large enough for any of `parts`, arrays or shapes.

    If `params` are sharded over devices of one worker, each has some of the columns.
    """
    if not jax.tree.leaves(params):
        return jnp.zeros(())  # for Optax's placeholder: a leaf is a prefix of any box
    place, devices = _place(params)
    columns, even = COLUMNS * devices, ROWS * slices
    rows: dict[str, int] = {}
    for part in parts:
        for _, label, _, end in _rows(part, slices, columns):
            rows[label] = max(rows.get(label, 0), end)

    def zeros(label, count):
        kind = label.split()[-1]
        return jnp.zeros((even * math.ceil(count / even), columns), kind, device=place)

    return {label: zeros(label, count) for label, count in rows.items()}


def number_of(box: Box) -> int:
    """d, the number of slices; 0 for an empty box."""
    return max((int(label.split()[0]) for label in box), default=0)


def packed(tree: Any, box: Box) -> Box:
    """`tree` in a box. The rows below its leaves stay as they were."""
    for leaf, label, start, end in _rows_in(box, tree):
        held = box[label]
        flat = shardings.over_explicit(leaf, P()).ravel()
        flat = jnp.pad(flat, (0, (end - start) * held.shape[1] - leaf.size))
        rows = shardings.as_typed(flat.reshape(end - start, held.shape[1]), held)
        held = jax.lax.dynamic_update_slice_in_dim(held, rows, start, 0)
        box = box | {label: held}
    return box


def unpacked(box: Box, like: Any) -> Any:
    """The tree in a box; `like` has its shapes and dtypes."""

    def part(leaf, label, start, end):
        flat = shardings.over_explicit(box[label][start:end], P()).ravel()
        return shardings.as_typed(flat[: leaf.size].reshape(leaf.shape), leaf)

    leaves = [part(*place) for place in _rows_in(box, like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def send(
    flight: Flight,
    number: jax.Array,
    is_read: jax.Array | bool,
    meanwhile: Any,
    axis_name: axes.AxisName | None,
) -> tuple[Flight, Any]:
    """Sends slice `number` of a flight; writes the workers' mean into the inbox.

    If nothing is compressed, the message is x - x^i_(k), and the inbox holds x where no
    mean has taken its place. A mean that is not read is not written: its numbers would
    grow from step to step. Devices that share a worker's model, as the members of an
    island, each send an equal part, and then gather the means of all parts. Returns
    `meanwhile` too, which is computed during the exchange.
    """
    slices = number_of(flight.begun or flight.outbox)

    def slice_of(box):
        def cut(held):
            rows = len(held) // slices
            return jax.lax.dynamic_slice_in_dim(held, number * rows, rows)

        return jax.tree.map(cut, box)

    def write(held, before, mean):
        mean = jnp.where(is_read, mean, before)
        return jax.lax.dynamic_update_slice_in_dim(held, mean, number * len(mean), 0)

    message = slice_of(flight.outbox)
    if not message:
        boxes = flight.inbox, flight.begun
        message = jax.tree.map(jnp.subtract, *map(slice_of, boxes))
    if axis_name is not None:
        flight = flight._replace(
            begun=axes.vary(flight.begun, axis_name=axis_name),
            outbox=axes.vary(flight.outbox, axis_name=axis_name),
        )
        names = _sharing(message, axis_name)
        parts = jax.tree.map(lambda rows: _part(rows, names), message)
        parts, meanwhile = means.mean_beside(meanwhile, parts, axis_name)
        message = jax.tree.map(
            lambda part, rows: _whole(part, names)[: len(rows)], parts, message
        )
    inbox = jax.tree.map(write, flight.inbox, slice_of(flight.inbox), message)
    return flight._replace(inbox=inbox), meanwhile


def _sharing(message: Box, axis_name: axes.AxisName) -> tuple[str, ...]:
    """The axes of devices that have the same message."""
    varying = axes.varies_over(axes.vary(jnp.zeros(()), axis_name=axis_name))
    if not varying:  # the types do not show which devices have the same message
        return ()
    varying = varying.union(*map(axes.varies_over, message.values()))
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.manual_axes if name not in varying)


def _part(rows: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """The rows that this device sends, [rows / devices, columns], padded."""
    if not names:
        return rows
    devices = collectives.workers_of(names)
    each = ROWS * math.ceil(len(rows) / (ROWS * devices))
    rows = jnp.pad(rows, ((0, each * devices - len(rows)), (0, 0)))
    return jax.lax.dynamic_slice_in_dim(rows, each * jax.lax.axis_index(names), each)


def _whole(part: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """The parts of all devices."""
    for name in reversed(names):
        part = collectives.whole(part, name)
    return part


def _rows_in(box: Box, tree: Any) -> Iterator[tuple[Any, str, int, int]]:
    """Each leaf of a tree with its rows in a box, as `_rows`."""
    if not jax.tree.leaves(tree):
        return iter(())
    columns = next((held.shape[1] for held in box.values()), COLUMNS)
    return _rows(tree, number_of(box), columns)


def _rows(tree: Any, slices: int, columns: int) -> Iterator[tuple[Any, str, int, int]]:
    """Each leaf, the label of its dtype, its first row, and the row after its last."""
    ends: dict[str, int] = {}
    for leaf in jax.tree.leaves(tree):
        label = f"{slices} x {jnp.dtype(leaf.dtype).name}"
        start = ends.get(label, 0)
        ends[label] = start + math.ceil(leaf.size / columns)
        yield leaf, label, start, ends[label]


def _place(params: Any) -> tuple[NamedSharding | None, int]:
    """The sharding of a box, and the number of devices that share one worker's box."""
    names, mesh = {}, None
    for leaf in jax.tree.leaves(params):
        held = shardings.sharding_of(leaf)
        for name in shardings.names_of(held.spec):
            names[name], mesh = held.mesh.shape[name], held.mesh
    if mesh is None:
        return None, 1
    return NamedSharding(mesh, P(None, tuple(names))), math.prod(names.values())
