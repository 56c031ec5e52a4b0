"""What a history of gradients costs a step, beside its limit and what users write.

    python -m benchmarks.history

SGD on 10M float32 parameters; medians of steps that take turns. "limit" is a donated
program that writes one slot, reads one slot and updates: no history can cost less.
"copy" is the bytes that the step has to move at the bandwidth that a plain copy on this
device reaches, measured beside it.
"""

import argparse

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.side_by_side import Contender, heading, medians

RATE = 0.01


def optax_step(
    tx: optax.GradientTransformation, size: int, grads: jax.Array
) -> Contender:
    """A step as Optax users write it."""

    def step(state, grads):
        params, opt_state = state
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = jnp.zeros(size)
    return Contender(step, (params, tx.init(params)), grads)


def plain(size: int, grads: jax.Array) -> Contender:
    """Without delay."""
    return optax_step(optax.sgd(RATE), size, grads)


def delayed(size: int, delay: int, grads: jax.Array) -> Contender:
    """The same under `dj.delayed`."""
    return optax_step(dj.delayed(optax.sgd(RATE), delay), size, grads)


def limit(size: int, delay: int, grads: jax.Array) -> Contender:
    """One slot written, one read, one update; nothing else."""

    def step(state, grads):
        params, slots, t = state
        slots = jax.lax.dynamic_update_index_in_dim(slots, grads, t, 0)
        t = jnp.where(t == delay, 0, t + 1)
        stale = jax.lax.dynamic_index_in_dim(slots, t, 0, keepdims=False)
        return params - RATE * stale, slots, t

    slots = jnp.zeros((delay + 1, size))
    return Contender(step, (jnp.zeros(size), slots, jnp.zeros((), jnp.int32)), grads)


def copy(size: int) -> Contender:
    """An array read and one written."""
    return Contender(jnp.negative, jnp.ones(size))


def tuple_fifo(size: int, delay: int, grads: jax.Array) -> Contender:
    """As users write it: a tuple of gradients in the state, shifted at each step."""

    def step(state, grads):
        params, queue = state
        queue = (*queue, grads)
        return params - RATE * queue[0], queue[1:]

    queue = tuple(jnp.zeros(size) for _ in range(delay))
    return Contender(step, (jnp.zeros(size), queue), grads)


def read_then_overwrite(size: int, delay: int, grads: jax.Array) -> Contender:
    """As users write it: a ring whose oldest slot is read, then overwritten."""

    def step(state, grads):
        params, slots, t = state
        stale = slots[t % delay]
        return params - RATE * stale, slots.at[t % delay].set(grads), t + 1

    slots = jnp.zeros((delay, size))
    return Contender(step, (jnp.zeros(size), slots, jnp.zeros((), jnp.int32)), grads)


def history_table(size: int, delays: list[int], rounds: int) -> None:
    """The delayed step beside the plain step and its limit, all taking turns."""
    grads = jnp.full(size, 1e-3)
    contenders = {"plain": plain(size, grads), "copy": copy(size)}
    for delay in delays:
        contenders[f"delayed {delay}"] = delayed(size, delay, grads)
        contenders[f"limit {delay}"] = limit(size, delay, grads)
    t = medians(contenders, rounds=rounds)
    analyses = {name: c.compiled.cost_analysis() for name, c in contenders.items()}
    accessed = {name: costs["bytes accessed"] for name, costs in analyses.items()}
    item = 4 * size  # bytes of one gradient

    bandwidth = 2 * item / t["copy"]  # bytes/s
    # gradient and parameters read, parameters written; a slot written and one read
    least = 5 * item / bandwidth

    print(f"A copy reaches {bandwidth / 1e9:.1f} GB/s.\n")
    print("| delay | plain ms | delayed ms | limit ms | delayed / limit |", end="")
    print(" delayed / copy | GB/s |", end="")
    print(" bytes / (plain + write + read) | temporary / gradient |")
    print("|---" * 9 + "|")
    for delay in delays:
        ours, bound = f"delayed {delay}", f"limit {delay}"
        memory = contenders[ours].compiled.memory_analysis()
        columns = (
            f"{delay}",
            f"{1e3 * t['plain']:.2f}",
            f"{1e3 * t[ours]:.2f}",
            f"{1e3 * t[bound]:.2f}",
            f"{t[ours] / t[bound]:.2f}",
            f"{t[ours] / least:.2f}",
            f"{accessed[ours] / t[ours] / 1e9:.1f}",
            f"{accessed[ours] / (accessed['plain'] + 2 * item):.3f}",
            f"{memory.temp_size_in_bytes / item:.3f}",
        )
        print("| " + " | ".join(columns) + " |")
    first, last = min(delays, key=lambda d: abs(d - 4)), max(delays)
    ratio = t[f"delayed {last}"] / t[f"delayed {first}"]
    print(f"\ndelayed({last}) / delayed({first}) = {ratio:.2f}\n")


def peers_table(size: int, delays: list[int], rounds: int) -> None:
    """The delayed step beside the histories that users write by hand."""
    grads = jnp.full(size, 1e-3)
    print("| delay | delayed ms | tuple FIFO | read, then overwrite |")
    print("|---" * 4 + "|")
    for delay in delays:
        contenders = {
            "delayed": delayed(size, delay, grads),
            "fifo": tuple_fifo(size, delay, grads),
            "overwrite": read_then_overwrite(size, delay, grads),
        }
        t = medians(contenders, rounds=rounds)
        print(
            f"| {delay} | {1e3 * t['delayed']:.2f} |"
            f" {t['fifo'] / t['delayed']:.1f} x |"
            f" {t['overwrite'] / t['delayed']:.1f} x |",
            flush=True,
        )
        del contenders


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000_000, help="parameters")
    parser.add_argument("--rounds", type=int, default=30, help="steps of each")
    parser.add_argument("--delays", type=int, nargs="+", default=[1, 4, 16, 64])
    args = parser.parse_args()
    print(f"{heading()}; {args.size:,} float32 parameters, SGD, medians\n")
    history_table(args.size, args.delays, args.rounds)
    peers_table(args.size, args.delays, args.rounds)


if __name__ == "__main__":
    main()
