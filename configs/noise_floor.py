"""Where does gradient noise leave the loss, and how much higher if gradients are late?

A quadratic of 1024 equal curvatures with noise of standard deviation 0.2, plain SGD.
All step sizes and delays are one program; the steps 0.587, 0.33, 0.175 and 0.09 are
95 % of the limit at delays of 2, 4, 8 and 16. The training loss after 4000 updates is
compared with the theory

    1/2 sum_i lambda_i Var x_i

with the variances of `Dynamics.stationary_variance`. Eight seeds of 1024 directions
are 8192 samples of a variance, whose standard error is sqrt(2/8192) = 1.6 %. All cells
of a seed share their noise.

    python -m experiments.main --config=configs/noise_floor.py \
        --workdir=runs/noise_floor
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, configs, figures, percent, tasks

LIMITS = configs.at_least(0, "delay", "noise")
LIMITS |= configs.positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: 45 cells, of which theory says that 12 diverge."""
    return ConfigDict(
        dict(
            learning_rate=(0.03, 0.09, 0.175, 0.33, 0.587),
            delay=(0, 1, 2, 3, 4, 6, 8, 12, 16),  # updates
            curvature=1.0,  # of every direction
            directions=1024,
            noise=0.2,  # standard deviation of a gradient's noise, in each direction
            updates=4000,
            seeds=8,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: one program, and the theory of each of its cells."""
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    def theory(learning_rate, delay):
        level = floor(config, learning_rate, delay)
        return level if np.isfinite(level) else None  # None: it diverges

    latest = max(config.delay)
    judged = [delay for delay in config.delay if delay in (0, 4, latest)]
    below = [step for step in config.learning_rate if step < limit(config, latest)]
    stable = below or [min(config.learning_rate)]
    beside = dict(color="learning_rate", theory=theory)
    return Experiment(
        question="Where does gradient noise leave the loss if gradients are late?",
        task=tasks.quadratic(
            (config.curvature,) * config.directions, noise=config.noise
        ),
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        updates=config.updates,
        answer=[
            Effect(
                metric="train_loss",
                against=theory,
                size=percent(10),
                where={"delay": judged},
            ),
            Effect(
                metric="train_loss",
                against={"delay": 0},
                size=percent(10),
                where={"learning_rate": stable, "delay": judged},
            ),
        ],
        figures=[
            figures.over(
                "delay",
                "train_loss",
                **beside,
                title="Where does gradient noise leave the loss?",
                name="noise_floor",
            ),
        ],
    )


def limit(config: ConfigDict, delay: float) -> float:
    """The largest stable step at a delay, in theory."""
    return dj.stability.Dynamics(int(delay)).step_limit() / config.curvature


def floor(config: ConfigDict, learning_rate: float, delay: float) -> float:
    """The loss that noise leaves at the end, in theory; inf beyond the limit."""
    if learning_rate >= limit(config, delay):
        return np.inf
    variance = dj.stability.Dynamics(int(delay)).stationary_variance(
        learning_rate * config.curvature, noise=learning_rate * config.noise
    )
    return 0.5 * config.curvature * config.directions * variance
