"""Which optimizer tolerates late gradients best on a language model?

A decoder-only Transformer on the characters of the standard library's own manual,
SGD, Adam and Muon, gradients 0 to 8 updates late, the step tuned anew for each
optimizer and delay.

    python -m experiments.main --config=configs/char_lm.py --workdir=runs/char_lm
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Claim, Experiment, configs, figures, optimizer, tasks
from experiments.results.measures import difference, tuned


def get_config() -> ConfigDict:
    """A Transformer small enough for 300 of them to train on two cores."""
    return ConfigDict(
        dict(
            delay=(0, 1, 2, 4, 8),  # updates
            sgd_learning_rate=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
            adam_learning_rate=(0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064),
            muon_learning_rate=(0.004, 0.008, 0.016, 0.032, 0.064),
            momentum=0.9,  # of SGD
            warmup_updates=50,  # then a cosine to zero
            batch_size=8,  # windows an update
            context=32,  # characters
            width=32,
            depth=2,  # blocks
            updates=800,
            seeds=3,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """100 cells, a program for each optimizer."""
    max_delay = configs.check_delays("delay", config.delay, config.updates)
    cosine = optax.cosine_decay_schedule(1.0, config.updates)

    def schedule(rate):
        def of(count):
            return rate * jnp.minimum(1, (count + 1) / config.warmup_updates)

        return lambda count: of(count) * cosine(count)

    makes = {
        "sgd": lambda rate: optax.sgd(rate, config.momentum),
        "adam": optax.adam,
        "muon": lambda rate: optax.contrib.muon(rate, consistent_rms=0.2),
    }

    def arm(name):
        def late(learning_rate, delay):
            tx = makes[name](schedule(learning_rate))
            return dj.delayed(tx, delay, max_delay=max_delay)

        return Arm(
            training=optimizer(late),
            labels={"optimizer": name},
            grid={"learning_rate": config[f"{name}_learning_rate"]},
        )

    def loss(name, delay):
        return tuned("test_loss", optimizer=name, delay=delay)

    def undelayed(name, about):
        text = f"Test loss of {name} undelayed"
        return Claim(text, loss(name, 0), about=about, within=0.06)

    def cost(name, about):
        text = f"What a delay of 8 costs {name}, nats"
        measure = difference(loss(name, 8), loss(name, 0))
        return Claim(text, measure, about=about, within=0.1)

    return Experiment(
        question="Which optimizer tolerates late gradients best on a language model?",
        task=tasks.char_lm(
            batch_size=config.batch_size,
            context=config.context,
            width=config.width,
            depth=config.depth,
        ),
        arms=[arm(name) for name in makes],
        grid={"delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            undelayed("sgd", 2.19),
            undelayed("adam", 2.05),
            undelayed("muon", 1.92),
            cost("sgd", 0.7),
            cost("adam", 0.45),
            cost("muon", 0.38),
        ],
        figures=[
            figures.over("delay", "test_loss", color="optimizer"),
            figures.best_step("delay", panels="optimizer"),
            figures.curves("train_loss", panels="optimizer"),
        ],
        notes=(
            "A delay of 8 costs Muon 0.38 nats, Adam 0.45, SGD with momentum 0.71."
            " (Python 3.11.7; the text differs a little from Python to Python.)"
        ),
    )
