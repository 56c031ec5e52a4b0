"""Does a constant delay cost accuracy, and does it change the train/test gap?

SGD trains an MLP on scikit-learn's digits, and logistic regression on breast cancer
data, with gradients 0 to 64 updates late: with the step searched for each delay, and
with one step for all. At one step the gap between training and test loss may fall with
the delay (Deng et al., arXiv:2308.09430, about convex tasks); the network also makes
less progress then. Of the cancer data each seed holds out other examples.

    python -m experiments.main --config=configs/constant_delay.py --workdir=runs/gap
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    amount,
    configs,
    figures,
    points,
    tasks,
)

LIMITS = configs.at_least(1, "width")
LIMITS |= configs.at_least(0, "delay")
LIMITS |= configs.positive("tolerance", "l2")


def get_config() -> ConfigDict:
    """The config: SGD, and longer delays than in the default config."""
    return ConfigDict(
        dict(
            delay=(0, 4, 8, 16, 32, 64),  # updates
            batch_size=32,  # examples per update
            width=32,  # hidden units of the network
            l2=1e-4,  # penalty (l2 / 2) |w|^2 of logistic regression
            updates=1500,
            seeds=20,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
        )
    )


NETWORK, CONVEX = "a network", "logistic regression"


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: six delays in a program for each task."""
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    batch = config.batch_size
    both = {
        NETWORK: tasks.digits_mlp(batch_size=batch, width=config.width),
        CONVEX: tasks.breast_cancer(batch_size=batch, l2=config.l2, split_by_seed=True),
    }
    return Experiment(
        question="Does a constant delay cost accuracy, or change the train/test gap?",
        task=both[NETWORK],
        arms=[
            Arm(training=late, labels={"task": name}, task=task)
            for name, task in both.items()
        ],
        grid={"learning_rate": Range(0.003, 3.0), "delay": config.delay},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        also_at=[{"delay": max(config.delay)}],
        updates=config.updates,
        answer=[
            Effect(metric="test_accuracy", against={"delay": 0}, size=points(1)),
            Effect(
                metric="gap",
                against={"delay": 0},
                size=amount(0.02, "nats"),
                kept={"delay": max(config.delay)},
                name="train/test gap",
            ),
        ],
        figures=[
            figures.over("delay", "test_error", color="task"),
            figures.over("delay", "gap", color="task"),
            figures.best_step("delay", "learning_rate", color="task"),
            figures.curves("train_loss", panels="task"),
        ],
    )
