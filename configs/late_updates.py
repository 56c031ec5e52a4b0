"""Does error feedback on updates undo a delay of one step?

An MLP on scikit-learn's digits. A pipeline with two buffers of weights (PipeDream-2BW)
has gradients that are one step late; `correct_late_updates` then applies 2 u_t -
u_{t-1} for the updates u of the optimizer. Its authors (Zmushko et al.,
arXiv:2606.30634) call this error feedback; the formula is our reading. Step and
momentum are tuned for each optimizer, without the delay, with it, and corrected.

    python -m experiments.main --config=configs/late_updates.py \
        --workdir=runs/late_updates
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, optimizer, tasks
from experiments.configs import at_least, below_one, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(0, "delay")
LIMITS |= positive("sgd_rate", "momentum_rate", "adam_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """Three optimizers, fresh, late and corrected."""
    return ConfigDict(
        dict(
            delay=1,  # updates
            sgd_rate=(0.03, 0.1, 0.3, 1.0, 3.0),
            momentum_rate=(0.01, 0.03, 0.1, 0.3, 1.0),  # of heavy ball
            adam_rate=(0.003, 0.01, 0.03, 0.1, 0.3),
            batch_size=32,  # examples an update
            updates=500,
            momentum=(0.5, 0.9),  # of heavy ball, and beta_1 of Adam
            seeds=20,  # the losses differ much from seed to seed
            tuning_seeds=5,  # that choose step and momentum, and are not reported
        )
    )


OPTIMIZERS = {
    "SGD": lambda rate, _: optax.sgd(rate),
    "heavy ball": optax.sgd,
    "Adam": optax.adam,
}
GRADIENTS = ("fresh", "late", "corrected")
LATE, FIXED = ("late", "fresh"), ("corrected", "fresh")


def experiment(config: ConfigDict) -> Experiment:
    """Nine arms."""
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
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                "learning_rate",
                "train_loss",
                fixed=False,
                panels="optimizer",
                color="gradients",
            ),
        ],
    )


def loss(name: str, gradients: str) -> Measure:
    """Training loss at the best step and momentum."""
    return tuned("train_loss", optimizer=name, gradients=gradients)


def over(name: str, one: str, other: str) -> Measure:
    """The loss with one kind of gradients over that with another."""
    return ratio(loss(name, one), loss(name, other))


def recovered(name: str) -> Measure:
    """The share of what the delay costs that the correction takes back."""

    def share(found):
        fresh, late, corrected = (loss(name, g)(found) for g in GRADIENTS)
        return (late - corrected) / (late - fresh)

    return share


def published(config: ConfigDict) -> list[Published]:
    """Of a delay of one update."""
    del config
    return [
        Published(
            text="Error feedback recovers half of what the delay costs Adam",
            source="Zmushko et al. (2026), arXiv:2606.30634",
            said="it recovers 50 to 90 % of the gap",
            setting="language models, PipeDream-2BW; AdamW and Muon",
            measure=recovered("Adam"),
            at_least=0.5,
        )
    ]


def records(config: ConfigDict) -> list[Record]:
    """Training losses over each other."""
    del config
    return [
        Record("Heavy ball, late / fresh", over("heavy ball", *LATE), 1.794, 0.26),
        Record(
            "Heavy ball, corrected / fresh", over("heavy ball", *FIXED), 0.9369, 0.079
        ),
        Record("Adam, late / fresh", over("Adam", *LATE), 1.806, 0.52),
        Record("Adam, corrected / fresh", over("Adam", *FIXED), 1.753, 0.29),
        Record("SGD, corrected / late", over("SGD", "corrected", "late"), 1.184, 0.17),
    ]


def answer(found: Found) -> str:
    """Training losses of late and corrected gradients over the loss of fresh ones."""
    parts = [
        f"{name} {between(over(name, *LATE), found)} times late and"
        f" {between(over(name, *FIXED), found)} times corrected"
        for name in OPTIMIZERS
    ]
    return (
        "Training loss over that without the delay, each with its own step and"
        f" momentum: {'; '.join(parts)}."
    )
