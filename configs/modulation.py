"""Does a learning rate that falls with staleness help, and where must it stand?

An MLP on scikit-learn's digits under geometric delays (the staleness of many workers
with memoryless service times), SGD and Adam. Each law stands after the optimizer, where
it scales the step, and before it, where it weights gradients. The step is tuned for
each law, optimizer and delay.

    python -m experiments.main --config=configs/modulation.py --workdir=runs/modulation
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, optimizer, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import between, difference, kept, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(0, "mean_delay", "max_delay")
LIMITS |= positive("sgd_learning_rate", "adam_learning_rate")


def get_config() -> ConfigDict:
    """None and two laws on both sides of two optimizers."""
    return ConfigDict(
        dict(
            mean_delay=(0, 4, 16),  # of geometric delays, updates
            max_delay=96,  # updates; a longer delay is as long as this
            sgd_learning_rate=(0.03, 0.1, 0.3, 1.0, 3.0),
            adam_learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1),
            power=0.5,  # of the milder law, 1 / tau^power
            batch_size=32,  # examples an update
            updates=1000,
            seeds=8,
            tuning_seeds=3,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each optimizer; the law and its place are an axis."""
    optimizers = {
        "sgd": (optax.sgd, config.sgd_learning_rate),
        "adam": (optax.adam, config.adam_learning_rate),
    }

    def scaled(power):
        return dj.scale_by_staleness(lambda tau: dj.modulation.inverse(tau) ** power)

    def arm(name):
        make, rates = optimizers[name]

        def late(learning_rate, mean_delay, law, key):
            """The law is a power of the staleness, negative before the optimizer."""
            before, after = scaled(jnp.maximum(-law, 0)), scaled(jnp.maximum(law, 0))
            return dj.delayed(
                optax.chain(before, make(learning_rate), after),
                dj.delays.geometric(key, mean_delay),
                max_delay=config.max_delay,
            )

        return Arm(
            training=optimizer(late),
            labels={"optimizer": name},
            grid={"learning_rate": rates},
        )

    return Experiment(
        question="Does a learning rate that falls with staleness help, and where?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(name) for name in optimizers],
        grid={
            "mean_delay": config.mean_delay,
            "law": {
                "none": 0.0,
                "root before": -config.power,
                "root after": config.power,
                "inverse before": -1.0,
                "inverse after": 1.0,
            },
        },
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                "mean_delay", "train_loss", panels="optimizer", color="law", fixed=False
            ),
            figures.best_step("mean_delay", panels="optimizer", color="law"),
        ],
    )


PLACES = "after", "before"  # the optimizer


def loss(optimizer: str, law: str) -> Measure:
    """Training loss at a mean delay of 16, with the step tuned."""
    return tuned("train_loss", optimizer=optimizer, law=law, mean_delay=16)


def over_none(optimizer: str, law: str) -> Measure:
    """The same over the loss without a law."""
    return ratio(loss(optimizer, law), loss(optimizer, "none"))


def fixed(law: str) -> Measure:
    """Accuracy of SGD at 16, the step best without delay; a guess if it ends higher."""
    fresh = dict(optimizer="sgd", law="none", mean_delay=0)
    late = dict(optimizer="sgd", law=law, mean_delay=16)
    return kept("test_accuracy", best_at=fresh, lost=0.1, **late)


def published(config: ConfigDict) -> list[Published]:
    """At the step that is best without delay; no source tunes it for each law."""
    del config
    return [
        Published(
            text="At a mean delay of 16, and at the step that is best without delay,"
            " SGD with rates divided by staleness learns; SGD without a law does not",
            source="Zhang, Gupta, Lian, Liu (2016), arXiv:1511.05950, Section 5.1",
            said="an error of 90 % without, and about that of 1-softsync with",
            setting="a convolutional network on CIFAR-10, 30 learners, momentum 0.9",
            measure=difference(fixed("inverse after"), fixed("none")),
            at_least=0.4,
            bound_is_ours=True,
        )
    ]


def records(config: ConfigDict) -> list[Record]:
    """Training losses at a mean delay of 16; for SGD the two places are the same."""
    del config
    places = ratio(loss("sgd", "root before"), loss("sgd", "root after"))
    return [
        Record("Loss of Adam, no law", loss("adam", "none"), 0.1067, 0.0050),
        Record(
            "Loss of Adam, inverse after", loss("adam", "inverse after"), 0.1248, 0.031
        ),
        Record(
            "Loss of Adam, inverse before",
            loss("adam", "inverse before"),
            0.09822,
            0.0085,
        ),
        Record("Loss of SGD, no law", loss("sgd", "none"), 0.11, 0.0033),
        Record("Loss of SGD, root before over root after", places, 1.0, 0.0),
    ]


def answer(found: Found) -> str:
    """Which laws lower the training loss, and the losses over those without a law."""
    laws = [f"{law} {place}" for law in ("root", "inverse") for place in PLACES]
    tried = {"Adam": laws, "SGD": [law for law in laws if law.endswith("after")]}
    lower = [
        f"{law} with {name}"
        for name, own in tried.items()
        for law in own
        if estimate(over_none(name.lower(), law), found).interval()[1] < 1.0
    ]
    helps = f"{', '.join(lower)} surely lowers" if lower else "No law surely lowers"

    def times(name):
        return ", ".join(
            f"{law} {between(over_none(name.lower(), law), found)}"
            for law in tried[name]
        )

    return (
        f"{helps} the training loss, at a mean delay of 16 and each with its best step."
        f" As a multiple of the loss without a law it is, with Adam: {times('Adam')};"
        f" with SGD, where the place does not matter: {times('SGD')}."
    )
