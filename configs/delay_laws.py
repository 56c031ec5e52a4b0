"""Are delays of one mean equally harmful, however they are spread?

Gradient descent minimizes a quadratic. Its delays are constant, Poisson, uniform or
geometric, and have the same mean. The lines of the figure are the limits in mean square
that `delayjax.stability` computes for independent delays.

    python -m experiments.main --config=configs/delay_laws.py --workdir=runs/laws
"""

import functools
from collections.abc import Callable

import numpy as np
import optax
import pandas as pd
from ml_collections import ConfigDict
from scipy import stats

import delayjax as dj
from experiments import Effect, Experiment, configs, figures, percent, tasks
from experiments.results.runs import Run

LIMITS = configs.at_least(0, "mean_delay", "max_delay")
LIMITS |= configs.positive("learning_rate")

STABLE_STEP = figures.LargestStable("learning_rate")


def get_config() -> ConfigDict:
    """The config: 48 step sizes and 12 mean delays for each law."""
    return ConfigDict(
        dict(
            law=("constant", "poisson", "uniform", "geometric"),  # of the delays
            mean_delay=(0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24),  # updates
            max_delay=255,  # updates; longer delays are cut to this
            learning_rate=tuple(np.geomspace(0.04, 4.0, 48).round(6).tolist()),
            eigenvalues=(0.1, 0.3, 1.0),  # curvatures of the quadratic
            updates=4000,
            seeds=5,
        )
    )


def limits(config: ConfigDict) -> Callable[[str, float], float]:
    """The theory, as a function: law, mean delay -> the largest stable step."""
    ages = np.arange(config.max_delay + 1)
    chances = {
        "constant": lambda mean: ages == mean,
        "poisson": lambda mean: stats.poisson.pmf(ages, mean),
        "uniform": lambda mean: (ages <= 2 * mean) / (2 * mean + 1),
        "geometric": lambda mean: stats.geom.pmf(ages + 1, 1 / (1 + mean)),
    }

    @functools.cache
    def limit(law, mean_delay):
        pmf = np.asarray(chances[law](mean_delay), float)
        pmf[-1] += max(0.0, 1 - pmf.sum())
        return dj.stability.learning_rate_limit(
            max(config.eigenvalues), dj.stability.Dynamics(pmf)
        )

    return limit


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: 2304 cells under five seeds, a program for each law."""

    def late(learning_rate, mean_delay, law, key):
        delays = {
            "constant": lambda: mean_delay,
            "poisson": lambda: dj.delays.poisson(key, mean_delay),
            "uniform": lambda: dj.delays.uniform(key, 0, 2 * mean_delay),
            "geometric": lambda: dj.delays.geometric(key, mean_delay),
        }
        sgd = optax.sgd(learning_rate)
        return dj.delayed(sgd, delays[law](), max_delay=config.max_delay)

    least = configs.cut_after("mean_delay", config.mean_delay, config.updates)
    if config.max_delay < least:
        raise ValueError(
            f"config.max_delay must be at least {least}, six times the largest"
            f" mean delay, got {config.max_delay}: longer delays are cut to it, and"
            " their mean would fall."
        )
    limit = limits(config)
    axes = ("law", "learning_rate", "mean_delay")

    def stable(against):
        return Effect(
            metric=STABLE_STEP,
            against=against,
            size=percent(20),  # two steps of the grid
            where={"mean_delay": max(config.mean_delay)},
            name=f"largest stable step at a mean delay of {max(config.mean_delay)}",
        )

    return Experiment(
        question="Are delays of one mean equally harmful, however they are spread?",
        task=tasks.quadratic(config.eigenvalues),
        training=late,
        grid={axis: config[axis] for axis in axes},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        answer=[stable(against={"law": "constant"}), stable(against=limit)],
        figures=[figures.over("mean_delay", STABLE_STEP, theory=limit)],
        tables=[
            figures.Table(
                "stable_steps",
                "Largest stable step of each law; in brackets the step of theory",
                lambda run: stable_steps(run, limit),
            )
        ],
    )


def stable_steps(result: Run, limit: Callable[[str, float], float]) -> pd.DataFrame:
    """A table of stable steps, a row for each mean delay, a column for each law."""
    table = STABLE_STEP.with_column(result.results, result.curves).pivot_table(
        STABLE_STEP.name, "mean_delay", "law", sort=False
    )
    for law, each in table.items():
        table[law] = [
            f"{step:.3g} ({limit(law, mean):.3g})" for mean, step in each.items()
        ]
    return table.reset_index()
