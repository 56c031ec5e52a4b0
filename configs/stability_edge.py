"""At which step size does delayed gradient descent diverge?

Full-batch gradient descent, no noise: every step size and every delay is one cell of
one program. Cells that diverge are black. The line is not fitted: it is

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

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, configs, figures, tasks
from experiments.results.measures import largest_stable, tuned

TASKS = {
    "breast_cancer": lambda: tasks.breast_cancer(batch_size=0, l2=0.1),
    "quadratic": lambda: tasks.quadratic((0.1, 0.3, 1.0)),
    "digits_mlp": lambda: tasks.digits_mlp(batch_size=0, width=16, test_fraction=0.8),
}


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


def experiment(config: ConfigDict) -> Experiment:
    """One program, and the limit of each delay."""
    task = configs.named("task", config.task, TASKS)()
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    sharpness = task.facts.get("sharpness")
    if sharpness is None:  # it is known at the beginning alone, and changes
        (batch,) = jax.tree.map(lambda x: x[0], [task.batches(0, 0, 1)])
        params = task.init(jax.random.fold_in(jax.random.key(0), 0))
        sharpness = dj.stability.sharpness(task.loss, params, batch)

    def limit(delay):
        return dj.stability.Dynamics(int(delay)).step_limit() / sharpness

    def stable(delay, low, high):
        text = f"Largest stable step {delay} late, over the line"
        measure = largest_stable("learning_rate", delay=delay)
        return Claim(
            text,
            lambda found: measure(found) / limit(delay),
            at_least=low,
            at_most=high,
        )

    def best(delay, low, high):
        measure = tuned("learning_rate", delay=delay)
        return Claim(
            f"Best step {delay} late, over the line",
            lambda found: measure(found) / limit(delay),
            at_least=low,
            at_most=high,
        )

    claims = {
        # its gradient is bounded: just past the line it cycles
        "breast_cancer": [stable(delay, 0.97, 1.62) for delay in (0, 8, 32)],
        # the grid's step below the line
        "quadratic": [stable(delay, 0.9, 1.0) for delay in (0, 8)],
        "digits_mlp": [
            *(best(delay, 0.55, 1.35) for delay in (0, 8, 16)),
            Claim("Loss undelayed", tuned("train_loss", delay=0), at_most=0.005),
            Claim(
                "Training loss 8 late",
                tuned("train_loss", delay=8),
                about=0.055,
                within=0.025,
            ),
        ],
    }
    return Experiment(
        question="At which step size does delayed gradient descent diverge?",
        task=task,
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=claims.get(config.task, []),
        figures=[
            figures.stability_map("delay", "learning_rate", limit=limit),
            # the other losses fall to rounding at most stable steps
            *[figures.best_step("delay", limit=limit)] * (config.task == "digits_mlp"),
        ],
        notes=(
            "Past the line no cell settles. Just past it the logistic loss cycles,"
            " since its gradient is bounded, and only from 1.6 times the line on does"
            " it end above where it began, which counts as divergence. Of the"
            " perceptron the best step at each delay is 0.6 to 1.05 times the line,"
            " which is known beforehand; much beyond it the units die, at the loss of"
            " a guess."
        ),
    )
