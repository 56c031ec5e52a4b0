"""Does error feedback on updates undo a delay of one step?

An MLP trains on scikit-learn's digits. A pipeline with two buffers of weights
(PipeDream-2BW) has gradients that are one step late; `correct_late_updates` then
applies 2 u_t - u_{t-1} for the updates u of the optimizer. Its authors (Zmushko et al.,
arXiv:2606.30634) call this error feedback; the formula is our reading. For each
optimizer step and momentum are searched without the delay, with it, and with the
correction.

    python -m experiments.main --config=configs/late_updates.py \
        --workdir=runs/late_updates
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
    figures,
    optimizer,
    percent,
    tasks,
)
from experiments.configs import at_least, positive

LIMITS = at_least(0, "delay") | positive("tolerance")


def get_config() -> ConfigDict:
    """The config: three optimizers, and a delay of one update."""
    return ConfigDict(
        dict(
            delay=1,  # updates
            batch_size=32,  # examples per update
            updates=500,
            seeds=20,  # the losses differ much from seed to seed
            tolerance=0.1,  # tolerance of the search, as a share of the loss
        )
    )


# decay = 1 - momentum of heavy ball, and 1 - beta_1 of Adam
OPTIMIZERS = {
    "SGD": lambda rate, _: optax.sgd(rate),
    "heavy ball": lambda rate, decay: optax.sgd(rate, 1.0 - decay),
    "Adam": lambda rate, decay: optax.adam(rate, 1.0 - decay),
}
GRADIENTS = ("fresh", "late", "corrected")


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: each optimizer with fresh, late and corrected gradients."""
    decay = Range(0.05, 1.0, off=1.0)
    grids = {
        "SGD": {"learning_rate": Range(0.3, 1.9), "decay": (1.0,)},
        "heavy ball": {"learning_rate": Range(0.04, 0.25), "decay": decay},
        "Adam": {"learning_rate": Range(0.012, 0.076), "decay": decay},
    }

    def arm(name, gradients):
        def training(learning_rate, decay):
            tx = OPTIMIZERS[name](learning_rate, decay)
            if gradients == "corrected":
                tx = optax.chain(tx, dj.correct_late_updates())
            return tx if gradients == "fresh" else dj.delayed(tx, config.delay)

        return Arm(
            training=optimizer(training),
            labels={"optimizer": name, "gradients": gradients},
            grid=grids[name],
        )

    return Experiment(
        question="Does error feedback on updates undo a delay of one step?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(name, gradients) for name in OPTIMIZERS for gradients in GRADIENTS],
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        answer=Effect(
            metric="train_loss", against={"gradients": "fresh"}, size=percent(10)
        ),
        figures=[figures.bars("train_loss", panels="optimizer", color="gradients")],
    )
