"""Are delays of one mean equally harmful, however they are spread?

Gradient descent on a quadratic, under delays that are constant, Poisson, uniform or
geometric, of the same mean. The lines of the map are delayjax.stability's limits in
mean square, of independent delays.

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
from experiments import Experiment, Record, analysis, configs, figures, tasks
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import ratio
from experiments.results.tables import Found

LIMITS = configs.at_least(0, "mean_delay", "max_delay")
LIMITS |= configs.positive("learning_rate")


def get_config() -> ConfigDict:
    """A map of 48 step sizes and 12 mean delays for each law."""
    return ConfigDict(
        dict(
            law=("constant", "poisson", "uniform", "geometric"),  # of the delays
            mean_delay=(0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24),  # updates
            max_delay=255,  # updates; a longer delay is as long as this
            learning_rate=tuple(np.geomspace(0.04, 4.0, 48).round(6).tolist()),
            eigenvalues=(0.1, 0.3, 1.0),  # curvatures of the quadratic
            updates=4000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """2304 cells under five seeds, a program for each law."""

    def late(learning_rate, mean_delay, law, key):
        delays = {
            "constant": lambda: mean_delay,
            "poisson": lambda: dj.delays.poisson(key, mean_delay),
            "uniform": lambda: dj.delays.uniform(key, 0, 2 * mean_delay),
            "geometric": lambda: dj.delays.geometric(key, mean_delay),
        }
        sgd = optax.sgd(learning_rate)
        return dj.delayed(sgd, delays[law](), max_delay=config.max_delay)

    configs.check_delays("mean_delay", config.mean_delay, config.updates)
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

    axes = ("law", "learning_rate", "mean_delay")
    return Experiment(
        question="Are delays of one mean equally harmful, however they are spread?",
        task=tasks.quadratic(config.eigenvalues),
        training=late,
        grid={axis: config[axis] for axis in axes},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        answer=lambda found: answer(found, limit),
        records=records(limit),
        figures=[figures.stability_map("mean_delay", "learning_rate", limit=limit)],
        tables=[
            figures.Table(
                "stable_steps",
                "Largest stable step of each law; in brackets the step of theory",
                lambda run: stable_steps(run.found, limit),
            )
        ],
    )


Limit = Callable[[str, float], float]
"""A law and a mean delay -> the largest stable step in theory."""


def stable_step(law: str, mean_delay: float) -> Measure:
    """The largest step up to which a seed ends no higher; mean over seeds."""

    def measure(found):
        rows = analysis.where(found.results, law=law, mean_delay=mean_delay)
        cells = rows.pivot(index="learning_rate", columns="seed", values="ended_higher")
        stable = (cells.sort_index().cummax() == 0).sum()
        return float(cells.index[stable - 1].to_numpy().mean())

    return measure


def stable_steps(found: Found, limit: Limit) -> pd.DataFrame:
    """A row for each mean delay, a column for each law."""
    cells = found.results[["mean_delay", "law"]].drop_duplicates()
    shown = [
        f"{stable_step(law, mean)(found):.3g} ({limit(law, mean):.3g})"
        for mean, law in cells.itertuples(index=False)
    ]
    table = cells.assign(shown=shown).pivot(index="mean_delay", columns="law")["shown"]
    return table[cells["law"].unique()].reset_index()


def records(limit: Limit) -> list[Record]:
    """Largest stable steps. Those of the grid are 10 % apart."""

    def over_theory(found):
        return stable_step("geometric", 4)(found) / limit("geometric", 4)

    return [
        Record(
            "Stable step, mean 16, constant", stable_step("constant", 16), 0.0876, 0.0
        ),
        Record(
            "Stable step, mean 16, Poisson", stable_step("poisson", 16), 0.09661, 0.0
        ),
        Record(
            "Stable step, mean 16, uniform", stable_step("uniform", 16), 0.1459, 0.0029
        ),
        Record(
            "Stable step, mean 16, geometric",
            stable_step("geometric", 16),
            0.4295,
            0.016,
        ),
        Record("Mean 4, geometric, over theory", over_theory, 1.457, 0.055),
    ]


def answer(found: Found, limit: Limit) -> str:
    """The largest stable step of each law at the longest mean, over the first's."""
    longest = found.results["mean_delay"].max()
    first, *others = (str(own) for own in found.results["law"].unique())
    base = stable_step(first, longest)

    def times(law):
        own = ratio(stable_step(law, longest), base)
        low, high = estimate(own, found).interval()
        theory = limit(law, longest) / limit(first, longest)
        shown = f"{low:.2f} to {high:.2f}" if high - low > 0.01 else f"{low:.2f}"
        return f"{law.replace('p', 'P', 1)} {shown} (in theory {theory:.2f})"

    return (
        f"At a mean delay of {longest:g} updates {first} delays have a largest stable"
        f" step of {base(found):.3g}. The other laws have this many times as much:"
        f" {'; '.join(times(law) for law in others)}. The steps of the grid are 10 %"
        " apart, so each factor may be off by as much."
    )
