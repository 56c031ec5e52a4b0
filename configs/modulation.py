"""Does a learning rate that falls with staleness help, before or after the optimizer?

SGD and Adam train an MLP on scikit-learn's digits under geometric delays (the staleness
of many workers with memoryless service times). Each law is applied after the optimizer,
where it scales the step, and before it, where it weights gradients. To SGD both are the
same. The step, and the momentum of SGD, are searched for each law, optimizer and delay:
the mean of the losses decides, since close to instability a few seeds end with a much
larger loss.

    python -m experiments.main --config=configs/modulation.py --workdir=runs/modulation
"""

from collections.abc import Callable
from typing import Any

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    optimizer,
    percent,
    tasks,
)
from experiments.configs import at_least, cut_after, positive

SMALL = {"updates": 100}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(0, "mean_delay")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: no law and two laws, before and after two optimizers."""
    return ConfigDict(
        dict(
            mean_delay=(4, 16),  # of geometric delays, updates
            power=0.5,  # of the milder law, 1 / tau^power
            batch_size=32,  # examples per update
            updates=1000,
            seeds=20,  # the losses differ much from seed to seed
            tolerance=0.01,  # of the search, nats: a tenth of the losses
        )
    )


def placed(power: float) -> dict[str, Callable[[Any], Any]]:
    """{law and place: optimizer -> the optimizer in a chain with the law}."""
    root = dj.scale_by_staleness(lambda tau: dj.modulation.inverse(tau) ** power)
    inverse = dj.scale_by_staleness(dj.modulation.inverse)
    return {
        "none": lambda tx: tx,
        "root before": lambda tx: optax.chain(root, tx),
        "root after": lambda tx: optax.chain(tx, root),
        "inverse before": lambda tx: optax.chain(inverse, tx),
        "inverse after": lambda tx: optax.chain(tx, inverse),
    }


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each optimizer, law and place."""
    laws = placed(config.power)
    max_delay = cut_after("mean_delay", config.mean_delay, config.updates)
    of_sgd = dict(learning_rate=Range(0.03, 3.0), decay=Range(0.1, 1.0, off=1.0))
    optimizers = {
        "sgd": (("none", "root after", "inverse after"), of_sgd),
        "adam": (tuple(laws), dict(learning_rate=Range(0.001, 0.1))),
    }

    def arm(name):
        names, searched = optimizers[name]

        def late(learning_rate, mean_delay, law, key, decay=None):
            if name == "sgd":
                tx = optax.sgd(learning_rate, 1.0 - decay)
            else:
                tx = optax.adam(learning_rate)
            return dj.delayed(
                laws[law](tx),
                dj.delays.geometric(key, mean_delay),
                max_delay=max_delay,
            )

        return Arm(
            training=optimizer(late),
            labels={"optimizer": name},
            grid={"law": names, **searched},
        )

    return Experiment(
        question="Does a learning rate that falls with staleness help, and where?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(name) for name in optimizers],
        grid={"mean_delay": config.mean_delay},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance),
        updates=config.updates,
        answer=Effect(
            metric="train_loss",
            against={"law": "none"},
            size=percent(10),
            where={"mean_delay": max(config.mean_delay)},
            name=f"training loss at a mean delay of {max(config.mean_delay)}",
        ),
        figures=[
            figures.over(
                "mean_delay", "train_loss", panels="optimizer", color="law", fixed=False
            ),
            figures.best_step("mean_delay", panels="optimizer", color="law"),
        ],
    )
