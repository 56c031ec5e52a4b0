"""Does a learning rate that falls with staleness help, and where must it stand?

An MLP on scikit-learn's digits under geometric delays (the staleness of many workers
with memoryless service times), SGD and Adam. Each law stands after the optimizer, where
it scales the step, and before it, where it weights gradients. Steps are tuned for each
law, optimizer and delay: a law that only makes steps smaller gains nothing then.

    python -m experiments.main --config=configs/modulation.py --workdir=runs/modulation
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Claim, Experiment, figures, optimizer, tasks
from experiments.results.measures import ratio, tuned


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
            seeds=5,
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

    def loss(optimizer, law):
        return tuned("train_loss", optimizer=optimizer, law=law, mean_delay=16)

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
        updates=config.updates,
        claims=[
            Claim(
                "Training loss of Adam at a mean delay of 16, no law",
                loss("adam", "none"),
                about=0.103,
                within=0.03,
            ),
            Claim(
                "The same with the inverse law after Adam",
                loss("adam", "inverse after"),
                about=0.092,
                within=0.03,
            ),
            Claim(
                "The same with the inverse law before Adam",
                loss("adam", "inverse before"),
                about=0.095,
                within=0.03,
            ),
            Claim(
                "Training loss of SGD, no law",
                loss("sgd", "none"),
                about=0.113,
                within=0.03,
            ),
            Claim(
                "SGD cannot tell the two places apart: before over after",
                ratio(loss("sgd", "root before"), loss("sgd", "root after")),
                about=1.0,
                within=0.001,
            ),
        ],
        figures=[
            figures.over(
                "mean_delay", "train_loss", panels="optimizer", color="law", fixed=False
            ),
            figures.best_step("mean_delay", panels="optimizer", color="law"),
        ],
        notes=(
            "Once the step is tuned a law changes little: Adam's training loss at a"
            " mean delay of 16 is 0.103 without a law, 0.092 with 1/tau behind it and"
            " 0.095 with 1/tau before it, and the intervals overlap. SGD cannot tell"
            " the two places apart; Adam can."
        ),
    )
