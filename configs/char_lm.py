"""Which optimizer tolerates late gradients best on a language model?

A decoder-only Transformer trains on the characters of Python's manual, with gradients 0
to 8 updates late. Step and momentum are tuned for each optimizer and delay. Momentum is
beta_1 of Adam, and both momenta of Muon (of matrices, and of the rest). SGD takes steps
along the moving average of the gradients.

    python -m experiments.main --config=configs/char_lm.py --workdir=runs/char_lm
"""

import jax.numpy as jnp
import optax
import pandas as pd
from ml_collections import ConfigDict
from optax.contrib import muon

import delayjax as dj
from experiments import Arm, Effect, Experiment, configs, figures, optimizer, tasks
from experiments.results.runs import Run
from experiments.results.sizes import amount

LIMITS = configs.at_least(1, "width", "depth")
LIMITS |= configs.at_least(0, "delay", "warmup_updates")
LIMITS |= configs.positive(
    "sgd_learning_rate", "adam_learning_rate", "muon_learning_rate"
)
LIMITS |= configs.below_one("momentum", "muon_momentum")


def get_config() -> ConfigDict:
    """The config: a Transformer so small that one core can train 648 of them."""
    return ConfigDict(
        dict(
            delay=(0, 1, 8),  # updates
            sgd_learning_rate=(0.5, 1.0, 2.0),  # without delay; see FALL
            adam_learning_rate=(0.005, 0.01, 0.02),
            muon_learning_rate=(0.015, 0.03, 0.06),
            momentum=(0.0, 0.5, 0.9),
            muon_momentum=(0.5, 0.9, 0.97),
            warmup_updates=50,  # then a cosine to zero
            batch_size=4,  # windows per update
            context=32,  # characters
            width=32,
            depth=1,  # blocks
            updates=800,
            seeds=5,
            tuning_seeds=3,  # seeds that choose step and momentum; not reported
        )
    )


OPTIMIZERS = {
    "SGD": lambda rate, m: optax.chain(optax.ema(m, False), optax.sgd(rate)),
    "Adam": optax.adam,
    "Muon": lambda rate, m: muon(rate, beta=m, adam_b1=m, consistent_rms=0.2),
}
SIZES = ("batch_size", "context", "width", "depth")
FALL = {"SGD": 1.5, "Adam": 0.3, "Muon": 0.3}
"""At a delay of d, the steps without delay are divided by 1 + FALL d."""


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each optimizer and delay, as their steps differ."""
    configs.check_warmup(config)
    max_delay = configs.check_delays("delay", config.delay, config.updates)
    cosine = optax.cosine_decay_schedule(1.0, config.updates)

    def schedule(rate):
        first = config.warmup_updates
        return lambda now: rate * jnp.minimum(1, (now + 1) / first) * cosine(now)

    def arm(name, tau):
        def late(learning_rate, momentum, delay):
            tx = OPTIMIZERS[name](schedule(learning_rate), momentum)
            return dj.delayed(tx, delay, max_delay=max_delay)

        rates, fall = config[f"{name.lower()}_learning_rate"], 1 + FALL[name] * tau
        grid = {
            "delay": (tau,),
            "learning_rate": [float(f"{rate / fall:.3g}") for rate in rates],
            "momentum": config.muon_momentum if name == "Muon" else config.momentum,
        }
        return Arm(training=optimizer(late), labels={"optimizer": name}, grid=grid)

    def beside(other, tau, *delays):
        return Effect(
            metric="test_loss",
            against=other,
            size=amount(0.02, "nats"),
            where={"delay": (tau, *delays)},
            name=f"held-out loss {tau} updates late",
        )

    return Experiment(
        question="Which optimizer tolerates late gradients best on a language model?",
        task=tasks.char_lm(**{key: config[key] for key in SIZES}),
        arms=[arm(name, tau) for name in OPTIMIZERS for tau in config.delay],
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=4,
        answer=[
            *(beside({"delay": 0}, tau, 0) for tau in config.delay if tau),
            beside({"optimizer": "Adam"}, max(config.delay)),
        ],
        figures=[
            figures.over("delay", "test_loss", color="optimizer", fixed=False),
            figures.best_step("delay", color="optimizer"),
            figures.curves("train_loss", panels="optimizer"),
        ],
        tables=[figures.Table("staleness", "Delay and measured staleness", measured)],
    )


def measured(run: Run) -> pd.DataFrame:
    """A table of the staleness of each best cell, beside the delay of the config."""
    keys = ["optimizer", "delay", "learning_rate", "momentum"]
    cells = run.best.groupby(keys, as_index=False, sort=False)
    return cells[["staleness_mean", "staleness_max"]].mean()
