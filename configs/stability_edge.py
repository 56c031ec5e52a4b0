"""At which step size does delayed gradient descent diverge?

Full-batch gradient descent, no noise: every step size and every delay is one cell of
one program. Past the limit a logistic loss cycles, since its gradient is bounded. The
limit is not fitted: it is

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
from experiments import Effect, Experiment, configs, figures, percent, tasks
from experiments.tasks import Task

TASKS = {
    "breast_cancer": lambda: tasks.breast_cancer(batch_size=0, l2=0.1),
    "quadratic": lambda: tasks.quadratic((0.1, 0.3, 1.0)),
    "digits_mlp": lambda: tasks.digits_mlp(batch_size=0, width=16, test_fraction=0.8),
}


LIMITS = configs.at_least(0, "delay")
LIMITS |= configs.positive("learning_rate")


def get_config(task: str = "breast_cancer") -> ConfigDict:
    """The config: 60 step sizes and 33 delays, or 24 delays of the perceptron."""
    network = task == "digits_mlp"
    smallest, largest = (0.015, 2.0) if network else (0.03, 10.0)
    shown = (*range(17), 18, 20, 22, 24, 26, 28, 32) if network else range(33)
    return ConfigDict(
        dict(
            task=task,  # or my_module:make, a function without arguments
            delay=tuple(shown),  # updates
            learning_rate=tuple(np.geomspace(smallest, largest, 60).round(6).tolist()),
            updates=1000 if network else 4000,
            seeds=1 if network else 3,  # one seed has no interval
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: one program, and the limit of each delay."""
    task = task_of(config)
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    limit = limit_of(task)

    def theory(delay):
        return limit(delay) if delay in config.delay[::4] else None

    largest = figures.LargestStable(
        "learning_rate", below={"train_loss": level_of(task)}
    )
    return Experiment(
        question="At which step size does delayed gradient descent diverge?",
        task=task,
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        answer=Effect(
            metric=largest,
            against=theory,
            size=percent(20),
            name="largest stable step size",
        ),
        figures=[
            figures.over("delay", largest, theory=limit),
            # the other losses fall to rounding at most stable steps
            *[figures.best_step("delay", limit=limit)] * (config.task == "digits_mlp"),
        ],
    )


def task_of(config: ConfigDict) -> Task:
    """The task by its name."""
    return configs.named("task", config.task, TASKS)()


def limit_of(task: Task) -> Callable[[float], float]:
    """A function, delay -> the limit of the step, from the task's largest curvature."""
    sharpness = task.facts.get("sharpness")
    if sharpness is None:  # it is known only at the beginning, and changes
        (batch,) = jax.tree.map(lambda x: x[0], [task.batches(0, 0, 1)])
        params = task.init(jax.random.fold_in(jax.random.key(0), 0))
        sharpness = dj.stability.sharpness(task.loss, params, batch)
    return lambda delay: dj.stability.Dynamics(int(delay)).step_limit() / sharpness


def level_of(task: Task) -> float:
    """The loss below which a run has settled."""
    optimum = task.facts.get("optimum_loss")
    return 1.0 if optimum is None else optimum + 1e-4  # a guess of ten has 2.3
