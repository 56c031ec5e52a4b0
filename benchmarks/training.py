"""The cost of delay in a real training step, and the gain of a grid as one program.

    python -m benchmarks.training

First a character language model of 10M parameters with Adam and a delay of 16, beside
the same step without delay; on an accelerator a program is a loop of 50 steps. Then a
grid of 96 cells on scikit-learn's digits, with the time to compile: as one program, as
one compiled scan after another, and as a Python loop that calls one jitted step.
"""

import argparse
import functools
import itertools
import operator
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.side_by_side import Contender, heading, medians, steps_a_program
from benchmarks.tables import Row, Table
from experiments import Experiment, tasks
from experiments.running import loop
from experiments.running.programs import programs
from experiments.running.trainer import Trainer

RATES = tuple(1e-4 * 2**i for i in range(8))
DELAYS = (0, 4, 8, 16)
SEEDS = (0, 1, 2)
MODEL = {"batch_size": 8, "width": 320, "depth": 8, "heads": 8, "context": 64}
ROUNDS, GRIDS, UPDATES = 20, 3, (1_000, 10_000)

STEP = {
    "parameters": "{:,}",
    "undelayed ms": "{:.3f}",
    "delayed by 16 ms": "{:.3f}",
    "ratio": "{:.3f}",
}
WAYS = {
    "updates": "{:,}",
    "one program s": "{:.1f}",
    "scan after scan s": "{:.1f}",
    "scan after scan / one program": "{:.1f}",
    "step after step s": "{:.1f}",
    "step after step / one program": "{:.1f}",
}


def language_model(model: Mapping[str, int], rounds: int) -> Row:
    """The row of the delayed step and the undelayed step, which take turns."""
    task = tasks.char_lm(**model)
    steps = steps_a_program()
    batch = jax.tree.map(lambda x: jnp.asarray(x[0]), task.batches(0, 0, 1))
    params = task.init(jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    def contender(tx):
        def step(state, batch):
            params, opt_state = state
            grads = jax.grad(task.loss)(params, batch)
            updates, opt_state = tx.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        copied = jax.tree.map(jnp.copy, params)  # the step donates its state
        return Contender(step, (copied, tx.init(params)), batch, steps=steps)

    t = medians(
        {
            "undelayed": contender(optax.adam(1e-3)),
            "delayed": contender(dj.delayed(optax.adam(1e-3), 16)),
        },
        rounds=rounds,
    )
    return {
        "parameters": size,
        "undelayed ms": 1e3 * t["undelayed"],
        "delayed by 16 ms": 1e3 * t["delayed"],
        "ratio": t["delayed"] / t["undelayed"],
    }


def late_adam(learning_rate, delay):
    """The optimizer of a cell; both numbers are traced."""
    return dj.delayed(optax.adam(learning_rate), delay, max_delay=max(DELAYS))


def one_program(task: tasks.Task, updates: int) -> None:
    """Trains all cells in one vmapped, scanned program, as the runner does."""
    (program,) = programs(
        Experiment(
            question="What does a grid as one program save?",
            task=task,
            training=late_adam,
            grid={"learning_rate": RATES, "delay": DELAYS},
            seeds=SEEDS,
            updates=updates,
            evaluations=1,  # as in the other ways
        )
    )
    trainer = Trainer(program)
    state = loop.run(
        trainer,
        trainer.init(),
        save=lambda step, state: None,
        report=lambda *chunk: None,
        checkpoint_every=updates,
    )
    jax.block_until_ready(state)


def one_cell(task: tasks.Task):
    """The functions `init` and `step` of a cell, with traced step size and delay."""

    def init(seed, rate, delay):
        params = task.init(jax.random.key(seed))
        return params, late_adam(rate, delay).init(params)

    def step(state, batch, rate, delay):
        params, opt_state = state
        loss, grads = jax.value_and_grad(task.loss)(params, batch)
        updates, opt_state = late_adam(rate, delay).update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.jit(init), step


def scan_after_scan(task: tasks.Task, data: dict) -> None:
    """Trains the cells one after another by one scan, which is compiled once."""
    init, step = one_cell(task)

    @functools.partial(jax.jit, donate_argnums=0)
    def scan(state, batches, rate, delay):
        return jax.lax.scan(lambda s, b: step(s, b, rate, delay), state, batches)

    for seed, rate, delay in cells():
        state = init(seed, rate, delay)
        jax.block_until_ready(scan(state, data[seed], rate, delay))


def step_after_step(task: tasks.Task, data: dict, updates: int) -> None:
    """Trains the cells one after another by a Python loop around one jitted step."""
    init, step = one_cell(task)
    step = jax.jit(step, donate_argnums=0)
    for seed, rate, delay in cells():
        state = init(seed, rate, delay)
        for t in range(updates):
            batch = jax.tree.map(operator.itemgetter(t), data[seed])
            state, loss = step(state, batch, rate, delay)
        jax.block_until_ready(loss)


def cells():
    """The seed, step size and delay of every cell: 3 x 8 x 4 cells."""
    return itertools.product(SEEDS, RATES, DELAYS)


def grid_of_cells(updates: int, rounds: int) -> Row:
    """The row of three ways to train the same 96 cells, which take turns."""
    task = tasks.digits_mlp()
    data = {seed: task.batches(seed, 0, updates) for seed in SEEDS}
    ways: dict[str, Callable[[], None]] = {
        "one program": lambda: one_program(task, updates),
        "scan after scan": lambda: scan_after_scan(task, data),
        "step after step": lambda: step_after_step(task, data, updates),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            jax.clear_caches()  # compiling is part of the cost
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    t = {name: statistics.median(values) for name, values in seconds.items()}
    row: dict[str, float] = {"updates": updates}
    for name, value in t.items():
        row[f"{name} s"] = value
        row[f"{name} / one program"] = value / t["one program"]
    return row


def tables(
    model: Mapping[str, int], rounds: int, updates: Sequence[int], grids: int
) -> Iterator[Table]:
    """Both tables; each is measured when it is read."""
    caption = "A character language model, Adam."
    yield Table(caption, STEP, [language_model(model, rounds)])
    caption = "96 digits MLPs, compile included."
    yield Table(caption, WAYS, (grid_of_cells(count, grids) for count in updates))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="programs of each")
    parser.add_argument("--grids", type=int, default=GRIDS, help="trainings of each")
    parser.add_argument("--updates", type=int, nargs="+", default=UPDATES)
    args = parser.parse_args()
    print(f"{heading()}; medians\n")
    for table in tables(MODEL, args.rounds, args.updates, args.grids):
        table.show()


if __name__ == "__main__":
    main()
