"""What do 1 to 8 late updates cost SGD, Adam and Muon, at three sizes of a model?

A Transformer of one block, 8, 16 or 32 wide, on the characters of Python's own manual.
All gradients are equally late; the first ones wait in the history. Step and momentum
are tuned for each optimizer, size and delay. `learning_rate` is the rate without
delay and without momentum: the step is divided by sqrt(1 + delay), and for SGD
with momentum m it is multiplied by 1 - m, so that all optima lie within one grid.

    python -m experiments.main --config=configs/muon_delay.py --workdir=runs/muon_delay

The runs are short: 200 updates of 128 characters. On an H200 it takes 5 minutes, on two
cores about three hours.
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Experiment,
    Published,
    Record,
    configs,
    figures,
    optimizer,
    tasks,
)
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, ratio, tuned
from experiments.results.tables import Found

SMALL = {"updates": 60, "momentum": (0.0, 0.5), "muon_momentum": (0.5, 0.8)}
"""What the small size of the book changes, beside the numbers of seeds."""


LIMITS = configs.at_least(1, "width")
LIMITS |= configs.at_least(0, "delay", "warmup_updates")
LIMITS |= configs.positive("sgd_rate", "adam_rate", "muon_rate")
LIMITS |= configs.below_one("momentum", "muon_momentum")


def get_config() -> ConfigDict:
    """Three sizes, three optimizers."""
    return ConfigDict(
        dict(
            delay=(0, 1, 2, 8),  # updates
            width=(8, 16, 32),  # of the Transformer
            sgd_rate=(0.2, 0.4, 0.8, 1.6, 3.2),  # over sqrt(1 + delay), as all rates
            adam_rate=(0.005, 0.01, 0.02, 0.04, 0.08),
            muon_rate=(0.02, 0.04, 0.08, 0.16, 0.32),
            momentum=(0.0, 0.5, 0.9),  # of SGD, and beta_1 of Adam
            muon_momentum=(0.0, 0.5, 0.8, 0.95),
            warmup_updates=20,  # then a cosine to zero
            batch_size=8,  # windows an update
            context=16,  # characters
            updates=200,
            seeds=32,
            tuning_seeds=8,  # that choose step and momentum, and are not reported
        )
    )


OPTIMIZERS = {
    "SGD": lambda rate, m: optax.sgd(lambda step: rate(step) * (1.0 - m), m),
    "Adam": lambda rate, m: optax.adam(rate, b1=m),
    # Adam trains what is no matrix
    "Muon": lambda rate, m: optax.contrib.muon(
        rate, beta=m, adam_b1=m, consistent_rms=0.2
    ),
}


def experiment(config: ConfigDict) -> Experiment:
    """A program for each optimizer and size."""
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
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("delay", "test_loss", fixed=False, **panels),
            figures.best_step("delay", **panels),
            figures.best_step("delay", "momentum", **panels),
        ],
    )


def gap(name: str, width: int, delay: int) -> Measure:
    """What a delay costs: the test loss with it less the loss without it, nats."""
    late, fresh = (
        tuned("test_loss", optimizer=name, width=width, delay=tau) for tau in (delay, 0)
    )
    return difference(late, fresh)


def against_adam(width: int, delay: int) -> Measure:
    """What a delay costs Muon, over what it costs Adam."""
    return ratio(gap("Muon", width, delay), gap("Adam", width, delay))


_MARIN = "Marin project, issue marin#6431 (runs of a program, not a paper)"
_MOE = "mixture of experts, width 512, a uniform delay; Muon's step is not tuned"


def published(config: ConfigDict) -> list[Published]:
    """At the largest size here. Losses of other models compare by ratios alone."""
    del config
    return [
        Published(
            text="At a width of 32 one late update costs Muon less than Adam (direction"
            " alone)",
            source="Zmushko et al. (2026), arXiv:2606.30634, recalled",
            said="a loss gap of 0.012 for Muon, and above 0.2 for AdamW",
            setting="language models, PipeDream-2BW",
            measure=against_adam(32, 1),
            at_most=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="At a width of 32 eight late updates cost Muon less than Adam",
            source=_MARIN,
            said="a loss gap of 0.850 for Muon, and of 2.213 for AdamH",
            setting=_MOE,
            measure=against_adam(32, 8),
            at_most=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="At a width of 32 eight late updates cost Muon several times what two"
            " cost",
            source=_MARIN,
            said="loss gaps of 0.140 at 2, 0.850 at 8 and 1.500 at 16",
            setting=_MOE,
            measure=ratio(gap("Muon", 32, 8), gap("Muon", 32, 2)),
            at_least=3.0,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """What a delay of 8 costs at the largest size, and one update Muon over Adam."""
    del config
    return [
        Record("Cost of 8, SGD", gap("SGD", 32, 8), 0.4949, 0.016),
        Record("Cost of 8, Adam", gap("Adam", 32, 8), 0.4949, 0.0069),
        Record("Cost of 8, Muon", gap("Muon", 32, 8), 0.404, 0.0064),
        Record("Cost of 1, Adam", gap("Adam", 32, 1), 0.1013, 0.0045),
        Record("Cost of 1, Muon", gap("Muon", 32, 1), 0.06145, 0.0019),
    ]


def answer(found: Found) -> str:
    """What 1 and 8 late updates cost at the largest size, and Muon over Adam at all."""

    def costs(delay):
        return ", ".join(
            f"{name} {between(gap(name, 32, delay), found, same=0.0)}"
            for name in OPTIMIZERS
        )

    ratios = [between(against_adam(width, 8), found) for width in (8, 16, 32)]
    return (
        f"At a width of 32 one late update costs, in nats: {costs(1)}; eight cost"
        f" {costs(8)}. What eight cost Muon, over what they cost Adam, at widths of 8,"
        f" 16 and 32: {'; '.join(ratios)}."
    )
