"""The cost of a history of gradients, beside its limit and histories that users write.

    python -m benchmarks.history

SGD on float32 parameters, 10M on a CPU and up to 50M elsewhere; medians of steps that
take turns. "limit" is a donated program that writes one slot, reads one slot and
updates: no history can cost less. "copy" is the time to move the step's bytes at the
bandwidth of a plain copy on this device, measured in the same rounds. On an
accelerator a program is a loop of 50 steps: a call may take longer than a step.
"""

import argparse
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.side_by_side import (
    Contender,
    copy,
    heading,
    medians,
    steps_a_program,
)
from benchmarks.tables import Row, Table

RATE = 0.01
DELAYS = 1, 4, 16, 64
ROUNDS = 30
ON_CPU, AT_MOST = 10_000_000, 50_000_000  # parameters
SPARE = 1.25  # factor of the counted memory that must be free

HISTORY = {
    "delay": "{}",
    "plain ms": "{:.3f}",
    "delayed ms": "{:.3f}",
    "limit ms": "{:.3f}",
    "delayed / limit": "{:.2f}",
    "delayed / copy": "{:.2f}",
    "GB/s": "{:.1f}",
    "bytes / (plain + write + read)": "{:.3f}",
    "temporary / gradient": "{:.3f}",
}
PEERS = {
    "delay": "{}",
    "delayed ms": "{:.3f}",
    "tuple FIFO": "{:.1f} x",
    "read, then overwrite": "{:.1f} x",
}


def size_that_fits(delays: Sequence[int]) -> int:
    """The number of parameters whose histories fit into the memory of the device."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    if device.platform == "cpu" or memory is None:
        return ON_CPU
    # two histories and the parameters of both for each delay, all at once; later three
    # histories of the longest delay, and copies of the two that users write
    at_once = sum(2 * (delay + 2) for delay in delays), 5 * (max(delays) + 2)
    return min(AT_MOST, int(memory / (4 * SPARE * (max(at_once) + 3))))


def optax_step(
    tx: optax.GradientTransformation, grads: jax.Array, steps: int
) -> Contender:
    """A step as Optax users write it."""

    def step(state, grads):
        params, opt_state = state
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = jnp.zeros(grads.size)
    return Contender(step, (params, tx.init(params)), grads, steps=steps)


def plain(grads: jax.Array, steps: int) -> Contender:
    """The step of SGD without delay."""
    return optax_step(optax.sgd(RATE), grads, steps)


def delayed(delay: int, grads: jax.Array, steps: int) -> Contender:
    """The step of SGD under `dj.delayed`."""
    return optax_step(dj.delayed(optax.sgd(RATE), delay), grads, steps)


def limit(delay: int, grads: jax.Array, steps: int) -> Contender:
    """A step that writes one slot, reads one slot and updates, and nothing else."""

    def step(state, grads):
        params, slots, t = state
        slots = jax.lax.dynamic_update_index_in_dim(slots, grads, t, 0)
        t = jnp.where(t == delay, 0, t + 1)
        stale = jax.lax.dynamic_index_in_dim(slots, t, 0, keepdims=False)
        return params - RATE * stale, slots, t

    slots = jnp.zeros((delay + 1, grads.size))
    state = jnp.zeros(grads.size), slots, jnp.zeros((), jnp.int32)
    return Contender(step, state, grads, steps=steps)


def tuple_fifo(delay: int, grads: jax.Array, steps: int) -> Contender:
    """A step that users write: a tuple of gradients in the state moves at each step."""

    def step(state, grads):
        params, queue = state
        queue = (*queue, grads)
        return params - RATE * queue[0], queue[1:]

    queue = tuple(jnp.zeros(grads.size) for _ in range(delay))
    return Contender(step, (jnp.zeros(grads.size), queue), grads, steps=steps)


def read_then_overwrite(delay: int, grads: jax.Array, steps: int) -> Contender:
    """A step that users write: a ring whose oldest slot is read, then overwritten."""

    def step(state, grads):
        params, slots, t = state
        stale = slots[t % delay]
        return params - RATE * stale, slots.at[t % delay].set(grads), t + 1

    slots = jnp.zeros((delay, grads.size))
    state = jnp.zeros(grads.size), slots, jnp.zeros((), jnp.int32)
    return Contender(step, state, grads, steps=steps)


def history_rows(
    size: int, delays: Sequence[int], rounds: int, steps: int
) -> list[Row]:
    """Rows of the delayed step beside the plain step, its limit and a copy."""
    grads = jnp.full(size, 1e-3)
    contenders = {"plain": plain(grads, steps), "copy": copy(size, steps)}
    for delay in delays:
        contenders[f"delayed {delay}"] = delayed(delay, grads, steps)
        contenders[f"limit {delay}"] = limit(delay, grads, steps)
    t = medians(contenders, rounds=rounds)
    analyses = {name: c.compiled.cost_analysis() for name, c in contenders.items()}
    accessed = {name: costs["bytes accessed"] for name, costs in analyses.items()}
    item = 4 * size  # bytes of one gradient

    bandwidth = 2 * item / t["copy"]  # bytes/s
    # reads gradient and parameters, writes parameters; writes a slot, and reads one
    least = 5 * item / bandwidth

    rows: list[Row] = []
    for delay in delays:
        ours, bound = f"delayed {delay}", f"limit {delay}"
        memory = contenders[ours].compiled.memory_analysis()
        rows.append(
            {
                "delay": delay,
                "plain ms": 1e3 * t["plain"],
                "delayed ms": 1e3 * t[ours],
                "limit ms": 1e3 * t[bound],
                "delayed / limit": t[ours] / t[bound],
                "delayed / copy": t[ours] / least,
                "GB/s": accessed[ours] / t[ours] / 1e9,
                "bytes / (plain + write + read)": accessed[ours]
                / (accessed["plain"] + 2 * item),
                "temporary / gradient": memory.temp_size_in_bytes / item,
                "copy GB/s": bandwidth / 1e9,
            }
        )
    return rows


def peers_rows(
    size: int, delays: Sequence[int], rounds: int, steps: int
) -> Iterator[Row]:
    """Rows of the delayed step beside the histories that users write by hand."""
    grads = jnp.full(size, 1e-3)
    for delay in delays:
        contenders = {
            "delayed": delayed(delay, grads, steps),
            "fifo": tuple_fifo(delay, grads, steps),
            "overwrite": read_then_overwrite(delay, grads, steps),
        }
        t = medians(contenders, rounds=rounds)
        del contenders  # before the next ones are made
        yield {
            "delay": delay,
            "delayed ms": 1e3 * t["delayed"],
            "tuple FIFO": t["fifo"] / t["delayed"],
            "read, then overwrite": t["overwrite"] / t["delayed"],
        }


def tables(size: int, delays: Sequence[int], rounds: int) -> Iterator[Table]:
    """Both tables; each is measured when it is read."""
    steps = steps_a_program()
    rows = history_rows(size, delays, rounds, steps)
    took = {row["delay"]: row["delayed ms"] for row in rows}
    first, last = min(delays, key=lambda delay: abs(delay - 4)), max(delays)
    caption = (
        f"{size:,} float32 parameters, SGD; steps in a program: {steps}. A copy reaches"
        f" {rows[0]['copy GB/s']:.1f} GB/s; delayed({last}) / delayed({first}) ="
        f" {took[last] / took[first]:.2f}."
    )
    yield Table(caption, HISTORY, rows)
    caption = "Histories as users write them, times the delayed step."
    yield Table(caption, PEERS, peers_rows(size, delays, rounds, steps))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, help="parameters (default: what fits)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="programs of each")
    parser.add_argument("--delays", type=int, nargs="+", default=DELAYS)
    args = parser.parse_args()
    size = size_that_fits(args.delays) if args.size is None else args.size
    print(f"{heading()}; medians\n")
    for table in tables(size, args.delays, args.rounds):
        table.show()


if __name__ == "__main__":
    main()
