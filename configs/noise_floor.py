"""Where does gradient noise leave the loss, and how much higher if gradients are late?

A quadratic of 1024 equal curvatures with noise of standard deviation 0.2, plain SGD.
Step sizes times delays are one program; the steps 0.587, 0.33, 0.175 and 0.09 are 95 %
of the limit at delays of 2, 4, 8 and 16. The training loss after 4000 updates, against

    1/2 sum_i lambda_i Var x_i

with the variances of `Dynamics.stationary_variance`. Eight seeds of 1024 directions
are 8192 samples of a variance: its standard error is sqrt(2/8192) = 1.6 %, and all
cells of a seed share their noise.

    python -m experiments.main --config=configs/noise_floor.py \
        --workdir=runs/noise_floor
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, configs, figures, tasks
from experiments.results.measures import largest_stable


def get_config() -> ConfigDict:
    """45 cells, of which theory says that 12 diverge."""
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
    """One program, and the theory of each of its cells."""
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    def limit(delay):
        return dj.stability.Dynamics(int(delay)).step_limit() / config.curvature

    def floor(learning_rate, delay):
        if learning_rate >= limit(delay):
            return np.inf
        variance = dj.stability.Dynamics(int(delay)).stationary_variance(
            learning_rate * config.curvature, noise=learning_rate * config.noise
        )
        return 0.5 * config.curvature * config.directions * variance

    def over_theory(found):
        """Measured over theory of all cells below the limit, means over seeds."""
        cells = found.results.groupby(["learning_rate", "delay"]).train_loss.mean()
        theory = np.array([floor(*cell) for cell in cells.index])
        return (cells / theory)[np.isfinite(theory)]

    def stable_step(delay, step):
        return Claim(
            f"Largest stable step of those tried, {delay} late",
            largest_stable("learning_rate", delay=delay),
            about=step,
            within=1e-6,
        )

    return Experiment(
        question="Where does gradient noise leave the loss if gradients are late?",
        task=tasks.quadratic(
            (config.curvature,) * config.directions, noise=config.noise
        ),
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim(
                "Largest distance from theory, as a share of it",
                lambda found: float(abs(over_theory(found) - 1).max()),
                at_most=0.05,
            ),
            Claim(
                "Mean of measured over theory",
                lambda found: float(over_theory(found).mean()),
                about=1.0,
                within=0.016,
            ),
            stable_step(2, 0.587),
            stable_step(4, 0.33),
            stable_step(8, 0.175),
            stable_step(16, 0.09),
        ],
        figures=[
            figures.noise_floor("delay", "learning_rate", theory=floor, limit=limit)
        ],
        notes=(
            "All 33 cells below the limit are within 3.5 % of theory, 0.8 % below it in"
            " the mean, with a standard deviation of 1.6 %, as samples alone would"
            " have; there is no trend towards the limit. The 12 cells beyond it"
            " diverge. At a step of 0.03 a delay of 16 costs a factor of 1.65; at 0.09,"
            " 95 % of the limit, a factor of 23."
        ),
    )
