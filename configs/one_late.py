"""What does one late update cost a language model, with Adam and with Muon?

A Transformer of 110,000 parameters on the characters of Python's own manual. Every
gradient is one update late, as a late all-reduce makes it. Step and momentum of each
optimizer are searched with and without delay, until the optimum is found.

    python -m experiments.main --config=configs/one_late.py --workdir=runs/one_late

Most of it is the search: 1,208 trainings of four series, which took 160 minutes of two
cores beside other jobs.
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, configs, figures, tasks
from experiments.results.sizes import amount

SMALL = {"updates": 60, "width": 8, "depth": 1, "context": 16}
"""What the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "width", "depth", "warmup_updates")
LIMITS |= configs.at_least(0, "delay") | configs.positive("tolerance")


def get_config() -> ConfigDict:
    """A model whose search two cores finish."""
    return ConfigDict(
        dict(
            delay=(0, 1),  # updates
            width=64,  # of the Transformer
            depth=2,  # blocks
            batch_size=8,  # windows an update
            context=64,  # characters
            warmup_updates=40,  # then a cosine to zero
            updates=400,
            seeds=3,
            tolerance=0.02,  # of the search, nats a character
        )
    )


OPTIMIZERS = {
    "Adam": lambda rate, momentum: optax.adam(rate, b1=momentum),
    # Adam trains what is no matrix
    "Muon": lambda rate, momentum: optax.contrib.muon(
        rate, beta=momentum, adam_b1=momentum, consistent_rms=0.2
    ),
}


def experiment(config: ConfigDict) -> Experiment:
    """Adam and Muon, with and without delay."""
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
    """The characters, and the Transformer that predicts them."""
    return tasks.char_lm(
        batch_size=config.batch_size,
        context=config.context,
        width=config.width,
        depth=config.depth,
    )


def arm(name: str, config: ConfigDict, **end_and_grid) -> Arm:
    """One optimizer; its schedule ends with the run, or after `updates` of the arm."""
    updates = end_and_grid.get("updates", config.updates)
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, config.warmup_updates, updates)

    def late(learning_rate, decay, delay):
        tx = OPTIMIZERS[name](lambda t: learning_rate * shape(t + 1), 1.0 - decay)
        return dj.delayed(tx, delay, max_delay=max(config.delay))

    return Arm(training=late, labels={"optimizer": name}, **end_and_grid)
