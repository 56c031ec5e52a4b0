"""Does delay compensation undo the harm of a stale gradient?

An MLP on scikit-learn's digits, SGD: plain, DC-ASGD in both forms (Zheng et al.,
arXiv:1609.08326), and Gap-Aware (Barkai et al., arXiv:1909.10802). At each delay, each
has its own step, and DC-ASGD its own strength.

    python -m experiments.main --config=configs/compensation.py --workdir=runs/dc
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, figures, optimizer, tasks
from experiments.configs import at_least, check_delays, positive
from experiments.results.sizes import percent, points

LIMITS = at_least(0, "delay")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """Three compensations and none."""
    return ConfigDict(
        dict(
            learning_rate=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            delay=(0, 4, 16, 32),  # updates
            strength=(0.0, 0.04, 0.4, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0),
            batch_size=32,  # examples an update
            updates=1000,
            seeds=16,
            tuning_seeds=6,  # that choose step and strength, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each compensation."""
    max_delay = check_delays("delay", config.delay, config.updates)

    def of_late(compensate, learning_rate, delay):
        return dj.delayed(
            optax.chain(compensate, optax.sgd(learning_rate)),
            delay,
            max_delay=max_delay,
            keep_params=True,
        )

    def none(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    def dc(learning_rate, delay, strength):
        return of_late(dj.compensate_delay(strength), learning_rate, delay)

    def dc_adaptive(learning_rate, delay, strength):
        rule = dj.compensate_delay(strength, adaptive=True, decay=0.95)
        return of_late(rule, learning_rate, delay)

    def gap_aware(learning_rate, delay):
        return of_late(dj.gap_aware(learning_rate), learning_rate, delay)

    def arm(name, make, **grid):
        return Arm(training=optimizer(make), labels=dict(compensation=name), grid=grid)

    plain = {"compensation": "none"}
    late = {"delay": [delay for delay in config.delay if delay]}
    return Experiment(
        question="Does delay compensation undo the harm of a stale gradient?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm("none", none),
            arm("Gap-Aware", gap_aware),
            arm("DC-ASGD-c", dc, strength=config.strength),
            arm("DC-ASGD-a", dc_adaptive, strength=config.strength),
        ],
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned=("learning_rate", "strength"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=[
            Effect(metric="train_loss", against=plain, size=percent(10), where=late),
            Effect(
                metric="test_error",
                against=plain | {"delay": 0},
                size=points(1),
                where={"delay": (0, 4, 16)},
            ),
        ],
        figures=[
            figures.over("delay", "train_loss", color="compensation", fixed=False),
            figures.over("delay", "test_error", color="compensation", fixed=False),
            figures.best_step("delay", "learning_rate", color="compensation"),
        ],
    )
