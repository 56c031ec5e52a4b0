"""At which step size does delayed gradient descent diverge?

Full-batch gradient descent, no noise: every step size and every delay is one cell of
one program. Cells that end higher are black. Past the limit a logistic loss cycles,
since its gradient is bounded. The limit is not fitted: it is

    stability.Dynamics(tau).step_limit() / lambda = 2 sin(pi / (2 (2 tau + 1))) / lambda

with the largest Hessian eigenvalue lambda. By default the loss is breast-cancer
logistic regression, with lambda at its optimum; `:quadratic` is a quadratic of chosen
spectrum; `:digits_mlp` is a perceptron, with lambda measured before the first update.

    python -m experiments.main --config=configs/stability_edge.py --workdir=runs/edge
    python -m experiments.main --config=configs/stability_edge.py:quadratic \
        --workdir=runs/edge_quadratic
    python -m experiments.main --config=configs/stability_edge.py:digits_mlp \
        --workdir=runs/edge_mlp
"""

from collections.abc import Callable

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Record, analysis, configs, figures, tasks
from experiments.results.estimates import Measure
from experiments.results.measures import largest_stable, ratio, tuned
from experiments.results.tables import Found
from experiments.tasks import Task

TASKS = {
    "breast_cancer": lambda: tasks.breast_cancer(batch_size=0, l2=0.1),
    "quadratic": lambda: tasks.quadratic((0.1, 0.3, 1.0)),
    "digits_mlp": lambda: tasks.digits_mlp(batch_size=0, width=16, test_fraction=0.8),
}


LIMITS = configs.at_least(0, "delay")
LIMITS |= configs.positive("learning_rate")


def get_config(task: str = "breast_cancer") -> ConfigDict:
    """A map of 60 step sizes and 33 delays; 24 of the perceptron."""
    network = task == "digits_mlp"
    smallest, largest = (0.015, 2.0) if network else (0.03, 10.0)
    shown = (*range(17), 18, 20, 22, 24, 26, 28, 32) if network else range(33)
    return ConfigDict(
        dict(
            task=task,  # or my_module:make, a function without arguments
            delay=tuple(shown),  # updates
            learning_rate=tuple(np.geomspace(smallest, largest, 60).round(6).tolist()),
            updates=1000 if network else 4000,
            seeds=1,
        )
    )


Limit = Callable[[float], float]
"""Delay -> the computed limit of the step."""


def experiment(config: ConfigDict) -> Experiment:
    """One program, and the limit of each delay."""
    task = configs.named("task", config.task, TASKS)()
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    limit, optimum = limit_of(task), task.facts.get("optimum_loss")
    level = 1.0 if optimum is None else optimum + 1e-4  # a guess of ten has 2.3
    return Experiment(
        question="At which step size does delayed gradient descent diverge?",
        task=task,
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        answer=lambda found: answer(found, config, limit, level),
        records=records(config, limit, level),
        figures=[
            figures.stability_map("delay", "learning_rate", limit=limit),
            # the other losses fall to rounding at most stable steps
            *[figures.best_step("delay", limit=limit)] * (config.task == "digits_mlp"),
        ],
    )


def limit_of(task: Task) -> Limit:
    """The limit of a task's largest curvature."""
    sharpness = task.facts.get("sharpness")
    if sharpness is None:  # it is known at the beginning alone, and changes
        (batch,) = jax.tree.map(lambda x: x[0], [task.batches(0, 0, 1)])
        params = task.init(jax.random.fold_in(jax.random.key(0), 0))
        sharpness = dj.stability.sharpness(task.loss, params, batch)
    return lambda delay: dj.stability.Dynamics(int(delay)).step_limit() / sharpness


def settled(delay: float, level: float) -> Measure:
    """The largest step at which all seeds end below a loss; 0 if there is none."""

    def largest(found):
        cells = analysis.where(found.results, delay=delay)
        loss = cells["train_loss"].where(cells["diverged"] == 0, np.inf)
        worst = loss.fillna(np.inf).groupby(cells["learning_rate"]).max()
        return max(worst.index[worst < level], default=0.0)

    return largest


def records(config: ConfigDict, limit: Limit, level: float) -> list[Record]:
    """Steps over the limit. One seed has no spread; the perceptron's are ours."""

    def step(which, delay, measure, value, spread=0.0):
        over = ratio(measure, lambda found: limit(delay))
        return Record(f"{which}, {delay} late, over the limit", over, value, spread)

    def settles(delay, value):
        return step("Largest step that settles", delay, settled(delay, level), value)

    def best(delay, value):
        return step(
            "Best step", delay, tuned("learning_rate", delay=delay), value, 0.023
        )

    def loss(delay, *own):
        return Record(f"Loss {delay} late", tuned("train_loss", delay=delay), *own)

    match config.task:
        case "breast_cancer":
            bounded = largest_stable("learning_rate", delay=8)
            cycles = step("Largest step that stays bounded", 8, bounded, 1.434)
            return [settles(0, 0.9482), settles(8, 0.9674), settles(32, 0.9308), cycles]
        case "quadratic":
            return [settles(0, 0.9376), settles(8, 0.9566), settles(32, 0.9204)]
        case "digits_mlp":
            best_steps = best(0, 1.023), best(8, 1.001), best(16, 0.7175)
            return [*best_steps, loss(0, 0.001636, 0.0008), loss(8, 0.04891, 0.006)]
    return []


def answer(found: Found, config: ConfigDict, limit: Limit, level: float) -> str:
    """How far the largest steps that settle, and the best, are from the limit."""
    delays = sorted(found.results["delay"].unique())

    def over(measure):
        values = [measure(delay)(found) / limit(delay) for delay in delays]
        return f"{min(values):.2f} to {max(values):.2f} times the computed limit"

    steps = np.sort(found.results["learning_rate"].unique())
    text = (
        f"At delays of {delays[0]:g} to {delays[-1]:g} updates the largest step that"
        f" ends below a loss of {level:.4g} is {over(lambda own: settled(own, level))}."
        f" The steps that were tried are {100 * (steps[1:] / steps[:-1] - 1).max():.0f}"
        " % apart."
    )
    if config.task != "digits_mlp":
        return text
    best = over(lambda delay: tuned("learning_rate", delay=delay))
    return f"{text} The best step is {best}. This is one seed."
