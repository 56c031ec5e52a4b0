"""Compares our history of gradients in a step with two that are written by hand."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.peers.common import RATE, checkout, difference
from benchmarks.side_by_side import Contender, medians
from benchmarks.tables import Row, not_measured

COLUMNS = {
    "history": "{}",
    "delay": "{}",
    "ms": "{:.2f}",
    "/ ours": "{:.1f}",
    "memory / gradient": "{:.0f}",
    "difference": "{:.1g}",
}


def tuple_fifo(
    inner: optax.GradientTransformation, delay: int
) -> optax.GradientTransformation:
    """A wrapper that people write: a tuple of gradients that moves at each step."""

    def init_fn(params):
        zeros = optax.tree.zeros_like(params)
        return inner.init(params), tuple(
            jax.tree.map(jnp.copy, zeros) for _ in range(delay)
        )

    def update_fn(updates, state, params=None):
        inner_state, queue = state
        queue = (*queue, updates)
        updates, inner_state = inner.update(queue[0], inner_state, params)
        return updates, (inner_state, queue[1:])

    return optax.GradientTransformation(init_fn, update_fn)


def learned_delayed_optim(
    inner: optax.GradientTransformation, delay: int, source: Path
) -> optax.GradientTransformation:
    """The peer's `delayed_gradients`, in front of an optimizer."""
    spec = importlib.util.spec_from_file_location("delay_utils", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    history = module.delayed_gradients(delay)

    def init_fn(params):
        kept = history.init(params)  # its `update` is a Python bool
        return inner.init(params), kept._replace(update=jnp.asarray(False))

    def update_fn(updates, state, params=None):
        inner_state, kept = state
        kept, updates = history.update(kept, updates)
        updates, inner_state = inner.update(updates, inner_state, params)
        return updates, (inner_state, kept)

    return optax.GradientTransformation(init_fn, update_fn)


def of_history(tx: optax.GradientTransformation, size: int) -> Contender:
    """A contender whose gradient differs from step to step."""

    def step(state):
        params, opt_state, t = state
        grads = jnp.cos(params + t)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, t + 1

    params = jnp.linspace(0.0, 1.0, size)
    return Contender(step, (params, tx.init(params), jnp.zeros(())))


def rows(
    size: int, delays: Sequence[int], rounds: int, source: str | None
) -> Iterator[Row]:
    """The rows of each delay, with our history first."""
    for delay in delays:
        makers: dict[str, Callable[[], optax.GradientTransformation]] = {
            "ours": lambda delay=delay: dj.delayed(
                optax.sgd(RATE), delay, warmup="zeros"
            ),
            "tuple FIFO, Optax": lambda delay=delay: tuple_fifo(optax.sgd(RATE), delay),
            "learned_delayed_optim": lambda delay=delay: learned_delayed_optim(
                optax.sgd(RATE),
                delay,
                checkout(source, "learned_delayed_optim", "src/delay_utils.py"),
            ),
        }
        made, lacking = {}, []
        for name, make in makers.items():
            try:
                made[name] = of_history(make(), size)
            except Exception as error:  # a peer that is absent, or fails
                lacking.append(
                    {"history": name, "delay": delay, "ms": not_measured(error)}
                )
        # all have made the same number of steps, so their parameters should be equal
        t = medians(made, rounds=rounds)
        ends = {name: contender.state[0] for name, contender in made.items()}
        for name, contender in made.items():
            memory = contender.compiled.memory_analysis()
            needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
            yield {
                "history": name,
                "delay": delay,
                "ms": 1e3 * t[name],
                "/ ours": t[name] / t["ours"],
                "memory / gradient": needed / (4 * size),
                "difference": difference(ends[name], ends["ours"]),
            }
        yield from lacking
        del made
