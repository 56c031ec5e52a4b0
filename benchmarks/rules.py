"""The cost of each rule for stale gradients per step, compared with plain delay.

    python -m benchmarks.rules --csv=experiments/comparison/stored/costs.csv

SGD with momentum on 10M float32 parameters, gradients 4 updates late from 5 workers;
medians of steps that take turns with plain `delayed`. Memory and traffic are XLA's own
numbers, minus the numbers of plain `delayed`, divided by the size of a gradient. Some
rules need the parameters at which a gradient was taken. They need a second history,
which holds 5 more copies; a step writes one of them and reads one.
"""

import argparse
import csv
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.side_by_side import Contender, heading, medians
from benchmarks.tables import Row, Table
from experiments.comparison import rules

DELAY = 4
SGD = rules.OPTIMIZERS["sgd"]
COLUMNS = {
    "rule": "{}",
    "needs old parameters": "{}",
    "step / delayed": "{:.2f}",
    "more memory": "{:.2f}",
    "more traffic": "{:.1f}",
    "temporary": "{:.2f}",
}


def late(rule: rules.Rule, keep_params: bool) -> optax.GradientTransformationExtraArgs:
    """A rule inside of `delayed`, with its numbers at the middle of their ranges."""
    space = rule.whole_space(SGD)
    trial = rules.Trial(
        optimizer=SGD,
        numbers={name: r.value(sum(r.ends) / 2) for name, r in space.items()},
        shape=lambda step: 1.0,
        mean=DELAY,
        most=DELAY + 1,
        updates=1000,
        loss=lambda params: 0.5 * jnp.vdot(params, params),
    )
    return dj.delayed(rule.make(trial), DELAY, keep_params=keep_params)


def step_of(tx: Any) -> Any:
    """The step that an Optax user writes, with gradients of five workers in turn."""

    def step(state, grads):
        params, opt_state, t = state
        updates, opt_state = tx.update(
            grads, opt_state, params, worker=t % (DELAY + 1), value=jnp.float32(1.0)
        )
        return optax.apply_updates(params, updates), opt_state, t + 1

    return step


def begun(tx: Any, size: int) -> Any:
    """The first state: parameters, the optimizer's state and the number of steps."""
    params = jnp.ones(size)
    return params, tx.init(params), jnp.zeros((), jnp.int32)


def needs_params(rule: rules.Rule) -> bool:
    """Whether a rule must know the parameters of the gradient."""
    tx = late(rule, keep_params=False)
    try:
        jax.eval_shape(step_of(tx), begun(tx, 8), jnp.ones(8))
    except TypeError:  # it says that it lacks `stale_params`
        return True
    return False


def contender(rule: rules.Rule, size: int, grads: jax.Array) -> Contender:
    """A rule's compiled step, its state donated."""
    tx = late(rule, needs_params(rule))
    return Contender(step_of(tx), begun(tx, size), grads)


def rows(size: int, rounds: int) -> Iterator[Row]:
    """A row for each rule, compared with plain delay."""
    grads, item = jnp.full(size, 1e-3), 4 * size
    for rule in rules.RULES:
        if rule in (rules.BASELINE, rules.AGAIN):
            continue
        pair = {
            "plain": contender(rules.BASELINE, size, grads),
            "rule": contender(rule, size, grads),
        }
        t = medians(pair, rounds=rounds)
        memory = {n: c.compiled.memory_analysis() for n, c in pair.items()}
        bytes_ = {
            n: c.compiled.cost_analysis()["bytes accessed"] for n, c in pair.items()
        }
        held = {n: usage.argument_size_in_bytes / item for n, usage in memory.items()}
        yield {
            "rule": rule.name,
            "needs old parameters": "yes" if needs_params(rule) else "",
            "step / delayed": t["rule"] / t["plain"],
            "more memory": held["rule"] - held["plain"],
            "more traffic": (bytes_["rule"] - bytes_["plain"]) / item,
            "temporary": memory["rule"].temp_size_in_bytes / item,
        }
        del pair


def main() -> None:
    """Prints the table, a row as soon as a rule is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000_000, help="parameters")
    parser.add_argument("--rounds", type=int, default=20, help="steps of each")
    parser.add_argument("--csv", metavar="FILE", help="keep the table there too")
    args = parser.parse_args()
    caption = f"{args.size:,} float32 parameters, a delay of {DELAY}."
    measured: list[Row] = []

    def kept():
        for row in rows(args.size, args.rounds):
            measured.append(row)
            yield row

    print(f"{heading()}; medians\n")
    Table(caption, COLUMNS, kept()).show()
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            file.write(f"# benchmarks.rules; {heading()}\n")
            writer = csv.DictWriter(file, [*COLUMNS], lineterminator="\n")
            writer.writeheader()
            for row in measured:
                cells = Table("", COLUMNS, []).cells(row)
                writer.writerow(dict(zip(COLUMNS, cells, strict=True)))


if __name__ == "__main__":
    main()
