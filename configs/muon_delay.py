"""What do 1 to 8 late updates cost SGD, Adam and Muon, at three sizes of a model?

A Transformer of one block, 8, 16 or 32 wide, trains on the characters of Python's
manual. All gradients are equally late; the first ones wait in the history. Step and
momentum are tuned for each optimizer, size and delay. `learning_rate` is the rate
without delay and without momentum: the step is divided by sqrt(1 + delay), and for SGD
with momentum m it is multiplied by 1 - m, so that all optima lie within one grid.

    python -m experiments.main --config=configs/muon_delay.py --workdir=runs/muon_delay

The runs are short: 200 updates of 128 characters. On an H200 it takes 5 minutes, on two
cores about three hours.
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, configs, figures, optimizer, tasks
from experiments.results.sizes import amount

SMALL = {"updates": 60, "momentum": (0.0, 0.5), "muon_momentum": (0.5, 0.8)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "width")
LIMITS |= configs.at_least(0, "delay", "warmup_updates")
LIMITS |= configs.positive("sgd_rate", "adam_rate", "muon_rate")
LIMITS |= configs.below_one("momentum", "muon_momentum")


def get_config() -> ConfigDict:
    """The config: three sizes of a model, and rates of three optimizers."""
    return ConfigDict(
        dict(
            delay=(0, 1, 2, 8),  # updates
            width=(8, 16, 32),  # of the Transformer
            sgd_rate=(0.2, 0.4, 0.8, 1.6, 3.2),  # over sqrt(1 + delay), like all rates
            adam_rate=(0.005, 0.01, 0.02, 0.04, 0.08),
            muon_rate=(0.02, 0.04, 0.08, 0.16, 0.32),
            momentum=(0.0, 0.5, 0.9),  # of SGD, and beta_1 of Adam
            muon_momentum=(0.0, 0.5, 0.8, 0.95),
            warmup_updates=20,  # then a cosine to zero
            batch_size=8,  # windows per update
            context=16,  # characters
            updates=200,
            seeds=32,
            tuning_seeds=8,  # seeds that choose step and momentum; not reported
        )
    )


OPTIMIZERS = {
    "SGD": lambda rate, m: optax.sgd(lambda step: rate(step) * (1.0 - m), m),
    "Adam": lambda rate, m: optax.adam(rate, b1=m),
    # Adam trains parameters that are no matrices
    "Muon": lambda rate, m: optax.contrib.muon(
        rate, beta=m, adam_b1=m, consistent_rms=0.2
    ),
}


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each optimizer and size."""
    configs.check_warmup(config)
    max_delay = configs.check_delays("delay", config.delay, config.updates)
    cosine = optax.cosine_decay_schedule(1.0, config.updates)
    grids = {
        "SGD": (config.sgd_rate, config.momentum),
        "Adam": (config.adam_rate, config.momentum),
        "Muon": (config.muon_rate, config.muon_momentum),
    }

    def arm(name, width):
        def late(learning_rate, momentum, delay):
            def rate(step):
                warm = jnp.minimum(1.0, (step + 1) / config.warmup_updates)
                return learning_rate / jnp.sqrt(1.0 + delay) * warm * cosine(step)

            tx = OPTIMIZERS[name](rate, momentum)
            return dj.delayed(tx, delay, max_delay=max_delay)

        rates, momenta = grids[name]
        return Arm(
            training=optimizer(late),
            labels={"optimizer": name, "width": width},
            grid={"learning_rate": rates, "momentum": momenta},
            task=tasks.char_lm(
                batch_size=config.batch_size, context=config.context, width=width
            ),
        )

    def cost(said, **where):
        return Effect(
            metric="test_loss",
            against={"delay": 0},
            size=amount(0.02, "nats"),
            where=where,
            name=f"test loss {said}",
        )

    widest, longest = max(config.width), max(config.delay)
    arms = [arm(name, width) for width in config.width for name in OPTIMIZERS]
    panels = dict(panels="width", color="optimizer")
    return Experiment(
        question="What do late updates cost SGD, Adam and Muon at three sizes?",
        task=arms[0].task,
        arms=arms,
        grid={"delay": config.delay},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=10,
        answer=[
            cost(f"at a width of {widest}", width=widest),
            cost(f"{longest} updates late", delay=(0, longest)),
        ],
        figures=[
            figures.over("delay", "test_loss", fixed=False, **panels),
            figures.best_step("delay", **panels),
            figures.best_step("delay", "momentum", **panels),
        ],
    )
