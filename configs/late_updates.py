"""Does error feedback on updates undo a delay of one step?

An MLP trains on scikit-learn's digits. A pipeline with two buffers of weights
(PipeDream-2BW) has gradients that are one step late; `correct_late_updates` then
applies 2 u_t - u_{t-1} for the updates u of the optimizer. Its authors (Zmushko et al.,
arXiv:2606.30634) call this error feedback; the formula is our reading. For each
optimizer step and momentum are tuned without the delay, with it, and with the
correction.

    python -m experiments.main --config=configs/late_updates.py \
        --workdir=runs/late_updates
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, figures, optimizer, percent, tasks
from experiments.configs import at_least, below_one, positive

LIMITS = at_least(0, "delay")
LIMITS |= positive("sgd_rate", "momentum_rate", "adam_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """The config: three optimizers, and a delay of one update."""
    return ConfigDict(
        dict(
            delay=1,  # updates
            sgd_rate=(0.3, 0.48, 0.76, 1.2, 1.9),
            momentum_rate=(0.04, 0.063, 0.1, 0.16, 0.25),  # of heavy ball
            adam_rate=(0.012, 0.019, 0.03, 0.048, 0.076),
            batch_size=32,  # examples per update
            updates=500,
            momentum=(0.5, 0.7, 0.8, 0.9),  # of heavy ball, and beta_1 of Adam
            seeds=20,  # the losses differ much from seed to seed
            tuning_seeds=20,  # seeds that choose step and momentum; not reported
        )
    )


OPTIMIZERS = {
    "SGD": lambda rate, _: optax.sgd(rate),
    "heavy ball": optax.sgd,
    "Adam": optax.adam,
}
GRADIENTS = ("fresh", "late", "corrected")


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: each optimizer with fresh, late and corrected gradients."""
    adam = {"learning_rate": config.adam_rate, "momentum": config.momentum}
    heavy = {"learning_rate": config.momentum_rate, "momentum": config.momentum}
    sgd = {"learning_rate": config.sgd_rate, "momentum": (0.0,)}
    grids = {"SGD": sgd, "heavy ball": heavy, "Adam": adam}

    def arm(name, gradients):
        make = OPTIMIZERS[name]

        def training(learning_rate, momentum):
            match gradients:
                case "fresh":
                    return make(learning_rate, momentum)
                case "late":
                    return dj.delayed(make(learning_rate, momentum), config.delay)
            undone = dj.correct_late_updates()
            corrected = optax.chain(make(learning_rate, momentum), undone)
            return dj.delayed(corrected, config.delay)

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
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=Effect(
            metric="train_loss", against={"gradients": "fresh"}, size=percent(10)
        ),
        figures=[
            figures.over(
                *("learning_rate", "train_loss"),
                **dict(fixed=False, panels="optimizer", color="gradients"),
            )
        ],
    )
