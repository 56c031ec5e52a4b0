"""The memory of a history: by its formula, by the compiler, and by the device.

    python -m benchmarks.memory

The step is donated SGD on float32 parameters. A history of delay d holds d + 1
gradients, of 4 bytes a number and of 2 in `ring.cast(bfloat16)`, on the device or on
its host. "compiled" is the memory of the compiled step beyond the same step without
delay, as XLA counts it; "temporary" is further memory while it runs. "in use" is the
growth of the device's memory in use, from before the history is made to after a step.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.side_by_side import heading
from benchmarks.tables import Row, Table, not_measured

SIZE = 2**23  # parameters: whole rows of a history on the host
DELAYS = 1, 4, 16, 64
MIB = 2**20

MEMORY = {
    "history": "{}",
    "delay": "{}",
    "formula MiB": "{:.2f}",
    "compiled, device MiB": "{:.2f}",
    "compiled, host MiB": "{:.2f}",
    "temporary MiB": "{:.2f}",
    "in use MiB": "{:.2f}",
}


class Kind(NamedTuple):
    """A way to keep a history."""

    storage: Callable[[], Any]  # for `history=`
    item_bytes: int  # of a number


KINDS: Mapping[str, Kind] = {
    "float32": Kind(lambda: None, 4),
    "ring.cast(bfloat16)": Kind(lambda: dj.ring.cast(jnp.bfloat16), 2),
    "ring.on_host": Kind(dj.ring.on_host, 4),
}


def history_bytes(size: int, delay: int, item_bytes: int) -> int:
    """The bytes of delay + 1 gradients."""
    return (delay + 1) * size * item_bytes


def in_use() -> int | None:
    """The bytes in use on the device; None if it does not count them."""
    return (jax.devices()[0].memory_stats() or {}).get("bytes_in_use")


def stepped(tx: optax.GradientTransformation, size: int) -> tuple[Any, int | None]:
    """The memory analysis of a donated step, and the growth of the memory in use."""

    def step(params, opt_state, grads):
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params, grads = jnp.zeros(size), jnp.ones(size)
    before = in_use()
    opt_state = tx.init(params)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, opt_state, grads)
    compiled = compiled.compile()
    params, opt_state = jax.block_until_ready(compiled(params, opt_state, grads))
    after = in_use()
    grown = None if before is None or after is None else after - before
    return compiled.memory_analysis(), grown


def measured(kind: Kind, delay: int, size: int, plain_bytes: int) -> Row:
    """The MiB that a history needs beyond the arguments of a step without delay."""
    tx = dj.delayed(optax.sgd(0.01), delay, history=kind.storage())
    memory, grown = stepped(tx, size)
    device = memory.argument_size_in_bytes - plain_bytes
    return {
        "compiled, device MiB": device / MIB,
        "compiled, host MiB": memory.host_argument_size_in_bytes / MIB,
        "temporary MiB": memory.temp_size_in_bytes / MIB,
        "in use MiB": "not measured" if grown is None else grown / MIB,
    }


def rows(size: int, delays: Sequence[int]) -> Iterator[Row]:
    """A row for every kind of history at every delay."""
    plain, _ = stepped(optax.sgd(0.01), size)
    for name, kind in KINDS.items():
        for delay in delays:
            formula = history_bytes(size, delay, kind.item_bytes) / MIB
            row: Row = {"history": name, "delay": delay, "formula MiB": formula}
            try:
                row |= measured(kind, delay, size, plain.argument_size_in_bytes)
            except Exception as error:  # such as a backend without pinned memory
                row["compiled, device MiB"] = not_measured(error)
            yield row


def tables(size: int, delays: Sequence[int]) -> Iterator[Table]:
    """The table, which is measured when it is read."""
    caption = f"{size:,} float32 parameters, SGD."
    if jax.default_backend() == "cpu":
        caption += " XLA counts a CPU's host memory as its device's."
    yield Table(caption, MEMORY, rows(size, delays))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE, help="parameters")
    parser.add_argument("--delays", type=int, nargs="+", default=DELAYS)
    args = parser.parse_args()
    print(f"{heading()}\n")
    for table in tables(args.size, args.delays):
        table.show()


if __name__ == "__main__":
    main()
