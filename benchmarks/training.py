"""What delay costs a real training step, and what a grid as one program saves.

    python -m benchmarks.training

First a 10M-parameter character language model, Adam, delay 16, beside the same step
without delay. Then a grid of 96 cells on scikit-learn's digits, compile included: as
one program, as one compiled scan after another, and as a Python loop that calls one
jitted step.
"""

import argparse
import functools
import itertools
import operator
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from benchmarks.side_by_side import Contender, heading, medians
from configs import default
from experiments import build, grid, train


def language_model(rounds: int) -> None:
    """The delayed step beside the undelayed one, taking turns."""
    config = default.get_config()
    config.task.update(
        name="char_lm", batch_size=8, width=320, depth=8, heads=8, context=64
    )
    config.metric = "test_loss"
    task = build.task(config)
    batch = jax.tree.map(lambda x: jnp.asarray(x[0]), task.batches(0, 0, 1))
    params = task.init(jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    def contender(tx):
        def step(state, batch):
            params, opt_state = state
            grads = jax.grad(task.loss)(params, batch)
            updates, opt_state = tx.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        own = jax.tree.map(jnp.copy, params)  # the step donates its state
        return Contender(step, (own, tx.init(params)), batch)

    t = medians(
        {
            "undelayed": contender(optax.adam(1e-3)),
            "delayed": contender(dj.delayed(optax.adam(1e-3), 16)),
        },
        rounds=rounds,
    )
    print("| parameters | undelayed ms | delayed by 16 ms | ratio |")
    print("|---" * 4 + "|")
    print(
        f"| {size:,} | {1e3 * t['undelayed']:.0f} | {1e3 * t['delayed']:.0f} |"
        f" {t['delayed'] / t['undelayed']:.3f} |\n"
    )


def digits_grid(updates: int) -> ConfigDict:
    """8 step sizes, 4 delays, 3 seeds."""
    config = default.get_config()
    config.opt.adam.learning_rate = tuple(1e-4 * 2**i for i in range(8))
    config.delay.value = (0, 4, 8, 16)
    config.steps = updates
    return config


def one_program(config: ConfigDict) -> None:
    """All cells in one vmapped, scanned program: the runner's own path."""
    task = build.task(config)
    (program,) = grid.programs(config)
    trainer = train.trainer(config, program, task)
    state = train.run(
        trainer,
        trainer.init(),
        save=lambda state: None,
        report=lambda *chunk: None,
        profile_dir="",
    )
    jax.block_until_ready(state)


def one_cell(config: ConfigDict):
    """`init` and `step` of one cell, written by hand, step size and delay traced."""
    task = build.task(config)
    depth = build.max_delay(config)

    def transformation(rate, delay):
        return dj.delayed(optax.adam(rate), delay, max_delay=depth)

    def init(seed, rate, delay):
        params = task.init(jax.random.key(seed))
        return params, transformation(rate, delay).init(params)

    def step(state, batch, rate, delay):
        params, opt_state = state
        loss, grads = jax.value_and_grad(task.loss)(params, batch)
        tx = transformation(rate, delay)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.jit(init), step


def scan_after_scan(config: ConfigDict, data: dict) -> None:
    """The same cells one after another, each a compiled scan; compiled once."""
    init, step = one_cell(config)

    @functools.partial(jax.jit, donate_argnums=0)
    def scan(state, batches, rate, delay):
        return jax.lax.scan(lambda s, b: step(s, b, rate, delay), state, batches)

    for seed, rate, delay in cells(config):
        state = init(seed, rate, delay)
        jax.block_until_ready(scan(state, data[seed], rate, delay))


def step_after_step(config: ConfigDict, data: dict) -> None:
    """The same cells one after another, a Python loop around one jitted step."""
    init, step = one_cell(config)
    step = jax.jit(step, donate_argnums=0)
    for seed, rate, delay in cells(config):
        state = init(seed, rate, delay)
        for t in range(config.steps):
            batch = jax.tree.map(operator.itemgetter(t), data[seed])
            state, loss = step(state, batch, rate, delay)
        jax.block_until_ready(loss)


def cells(config: ConfigDict):
    """Seed, step size and delay of every cell."""
    return itertools.product(
        config.seeds, config.opt.adam.learning_rate, config.delay.value
    )


def grid_of_cells(updates: int, rounds: int) -> None:
    """The three ways to train the same 96 cells, taking turns."""
    config = digits_grid(updates)
    task = build.task(config)
    data = {seed: task.batches(seed, 0, config.steps) for seed in config.seeds}
    ways: dict[str, Callable[[], None]] = {
        "one program": lambda: one_program(config),
        "scan after scan": lambda: scan_after_scan(config, data),
        "step after step": lambda: step_after_step(config, data),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            jax.clear_caches()  # compiling is part of the cost
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    t = {name: statistics.median(values) for name, values in seconds.items()}
    one = t["one program"]
    columns = [f"{value:.1f} s ({value / one:.1f} x)" for value in t.values()]
    print(f"| {updates:,} | " + " | ".join(columns) + " |", flush=True)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="steps of each model")
    parser.add_argument("--grids", type=int, default=3, help="trainings of each grid")
    parser.add_argument("--updates", type=int, nargs="+", default=[1000, 10000])
    args = parser.parse_args()
    print(f"{heading()}\n")
    language_model(args.rounds)
    print("| updates | one program | scan after scan | step after step |")
    print("|---" * 4 + "|")
    for updates in args.updates:
        grid_of_cells(updates, args.grids)


if __name__ == "__main__":
    main()
