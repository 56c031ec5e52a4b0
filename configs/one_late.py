"""What does one late update cost a language model, with Adam and with Muon?

A Transformer of 110,000 parameters trains on the characters of Python's manual. Every
gradient is one update late, as after an all-reduce that overlaps the next step. Step
and momentum of each optimizer are searched with and without delay, until the optimum is
found.

    python -m experiments.main --config=configs/one_late.py --workdir=runs/one_late

Most of the run is the search: 1,208 trainings of four series, which took 160 minutes on
two cores beside other jobs.
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, configs, figures, tasks
from experiments.results.sizes import amount

SMALL = {"updates": 60, "width": 8, "depth": 1, "context": 16}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "width", "depth", "warmup_updates")
LIMITS |= configs.at_least(0, "delay") | configs.positive("tolerance")


def get_config() -> ConfigDict:
    """The config: a model so small that two cores can finish the search."""
    return ConfigDict(
        dict(
            delay=(0, 1),  # updates
            width=64,  # of the Transformer
            depth=2,  # blocks
            batch_size=8,  # windows per update
            context=64,  # characters
            warmup_updates=40,  # then a cosine to zero
            updates=400,
            seeds=3,
            tolerance=0.02,  # of the search, nats a character
        )
    )


OPTIMIZERS = {
    "Adam": lambda rate, momentum: optax.adam(rate, b1=momentum),
    # Adam trains parameters that are no matrices
    "Muon": lambda rate, momentum: optax.contrib.muon(
        rate, beta=momentum, adam_b1=momentum, consistent_rms=0.2
    ),
}


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: Adam and Muon, with and without delay."""
    configs.check_warmup(config)
    configs.check_delays("delay", config.delay, config.updates)
    return Experiment(
        question="What does one late update cost a language model?",
        task=task(config),
        arms=[arm(name, config) for name in OPTIMIZERS],
        grid={
            "delay": config.delay,
            "learning_rate": Range(1e-3, 1e-1),
            "decay": Range(0.02, 1.0, off=1.0),  # 1 - momentum, 1 - beta_1
        },
        seeds=config.seeds,
        search=Search(seeds=3, repeats=2, tolerance=config.tolerance),
        updates=config.updates,
        answer=Effect(
            metric="test_loss", against={"delay": 0}, size=amount(0.02, "nats")
        ),
        figures=[
            figures.curves("test_loss", panels="optimizer", color="delay"),
            figures.over("delay", "test_loss", color="optimizer"),
        ],
    )


def task(config: ConfigDict):
    """The task of a Transformer that predicts characters."""
    return tasks.char_lm(
        batch_size=config.batch_size,
        context=config.context,
        width=config.width,
        depth=config.depth,
    )


def arm(name: str, config: ConfigDict, **end_and_grid) -> Arm:
    """The arm of an optimizer, whose schedule ends with its last update."""
    updates = end_and_grid.get("updates", config.updates)
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, config.warmup_updates, updates)

    def late(learning_rate, decay, delay):
        tx = OPTIMIZERS[name](lambda t: learning_rate * shape(t + 1), 1.0 - decay)
        return dj.delayed(tx, delay, max_delay=max(config.delay))

    return Arm(training=late, labels={"optimizer": name}, **end_and_grid)
