"""Are delays of one mean equally harmful, however they are spread?

Gradient descent on a quadratic, under delays that are constant, Poisson, uniform or
geometric, of the same mean. The lines of the map are delayjax.stability's limits in
mean square, of independent delays.

    python -m experiments.main --config=configs/delay_laws.py --workdir=runs/laws
"""

import numpy as np
import optax
from ml_collections import ConfigDict
from scipy import stats

import delayjax as dj
from experiments import Claim, Experiment, configs, figures, tasks
from experiments.results.measures import largest_stable


def get_config() -> ConfigDict:
    """A map of 48 step sizes and 12 mean delays for each law."""
    return ConfigDict(
        dict(
            law=("constant", "poisson", "uniform", "geometric"),  # of the delays
            mean=(0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24),  # of the delays, updates
            max_delay=255,  # updates; a longer delay is as long as this
            learning_rate=tuple(np.geomspace(0.04, 4.0, 48).round(6).tolist()),
            eigenvalues=(0.1, 0.3, 1.0),  # curvatures of the quadratic
            updates=4000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """2304 cells, a program for each law."""

    def late(learning_rate, mean, law, key):
        delays = {
            "constant": lambda: mean,
            "poisson": lambda: dj.delays.poisson(key, mean),
            "uniform": lambda: dj.delays.uniform(key, 0, 2 * mean),
            "geometric": lambda: dj.delays.geometric(key, mean),
        }
        sgd = optax.sgd(learning_rate)
        return dj.delayed(sgd, delays[law](), max_delay=config.max_delay)

    configs.check_delays("mean", config.mean, config.updates)
    ages = np.arange(config.max_delay + 1)
    chances = {
        "constant": lambda mean: ages == mean,
        "poisson": lambda mean: stats.poisson.pmf(ages, mean),
        "uniform": lambda mean: (ages <= 2 * mean) / (2 * mean + 1),
        "geometric": lambda mean: stats.geom.pmf(ages + 1, 1 / (1 + mean)),
    }

    def limit(law, mean):
        pmf = np.asarray(chances[law](mean), float)
        pmf[-1] += max(0.0, 1 - pmf.sum())
        return dj.stability.learning_rate_limit(
            max(config.eigenvalues), dj.stability.Dynamics(pmf)
        )

    def stable_step(law, low, high):
        """The steps of the grid are 10 % apart."""
        return Claim(
            f"Largest stable step at a mean of 16, {law} delays",
            largest_stable("learning_rate", law=law, mean=16),
            at_least=low,
            at_most=high,
        )

    return Experiment(
        question="Are delays of one mean equally harmful, however they are spread?",
        task=tasks.quadratic(config.eigenvalues),
        training=late,
        grid={axis: config[axis] for axis in ("law", "learning_rate", "mean")},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim(
                "Largest stable step undelayed",
                largest_stable("learning_rate", law="geometric", mean=0),
                at_least=1.8,
                at_most=2.0,
            ),
            stable_step("constant", 0.086, 0.096),
            stable_step("poisson", 0.09, 0.12),
            stable_step("uniform", 0.12, 0.17),
            stable_step("geometric", 0.31, 0.46),
        ],
        figures=[figures.stability_map("mean", "learning_rate", limit=limit)],
        notes=(
            "From a mean of 4 on, the wider the spread the larger the stable step: at a"
            " mean of 16 it is 0.088 if all are 16, 0.097 if they are Poisson, 0.14"
            " uniform and 0.38 geometric, as of memoryless workers. The lines are"
            " 0.095, 0.102, 0.138 and 0.347: single runs bear up to 1.3 times the limit"
            " of the mean square, since few runs among many make it grow."
        ),
    )
