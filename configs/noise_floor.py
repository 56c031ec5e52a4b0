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
import pandas as pd
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Record, configs, figures, tasks
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import mean, ratio
from experiments.results.tables import Found

LIMITS = configs.at_least(0, "delay", "noise")
LIMITS |= configs.positive("learning_rate")


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

    beside = dict(
        color="learning_rate",
        theory=lambda learning_rate, delay: floor(config, learning_rate, delay),
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
        answer=lambda found: answer(found, config),
        records=records(config),
        figures=[
            figures.over(
                "delay",
                "train_loss",
                **beside,
                title="Where does gradient noise leave the loss?",
                name="noise_floor",
            ),
            figures.over(
                "delay",
                "train_loss",
                **beside,
                relative=True,
                name="over_theory",
            ),
        ],
    )


def limit(config: ConfigDict, delay: float) -> float:
    """The largest stable step at a delay, in theory."""
    return dj.stability.Dynamics(int(delay)).step_limit() / config.curvature


def floor(config: ConfigDict, learning_rate: float, delay: float) -> float:
    """The loss where noise leaves it, in theory; inf beyond the limit."""
    if learning_rate >= limit(config, delay):
        return np.inf
    variance = dj.stability.Dynamics(int(delay)).stationary_variance(
        learning_rate * config.curvature, noise=learning_rate * config.noise
    )
    return 0.5 * config.curvature * config.directions * variance


def over_theory(found: Found, config: ConfigDict) -> pd.Series:
    """Measured over theory of all cells below the limit, means over seeds."""
    cells = found.results.groupby(["learning_rate", "delay"])["train_loss"].mean()
    theory = np.array([floor(config, *cell) for cell in cells.index])
    return (cells / theory)[np.isfinite(theory)]


def against_theory(found: Found, config: ConfigDict) -> int:
    """How many cells end higher below the limit, or do not beyond it."""
    cells = found.results.groupby(["learning_rate", "delay"])["ended_higher"]
    beyond = np.array([np.isinf(floor(config, *cell)) for cell in cells.min().index])
    return int(np.where(beyond, cells.min() < 1, cells.max() > 0).sum())


def cost(learning_rate: float, delay: float) -> Measure:
    """The loss at a delay over the loss without delay, at one step."""
    late = mean("train_loss", learning_rate=learning_rate, delay=delay)
    return ratio(late, mean("train_loss", learning_rate=learning_rate, delay=0))


def records(config: ConfigDict) -> list[Record]:
    """How far training is from theory, and what a delay costs."""

    def furthest(found):
        return float(abs(over_theory(found, config) - 1).max())

    return [
        Record(
            "Largest distance from theory, as a share of it", furthest, 0.03427, 0.0074
        ),
        Record(
            "Mean of measured over theory",
            lambda found: float(over_theory(found, config).mean()),
            *(0.9918, 0.0078),
        ),
        Record(
            "Cells that end higher below the limit, or do not beyond it",
            lambda found: against_theory(found, config),
            *(0.0, 0.0),
        ),
        Record("Loss 16 late over fresh, step 0.03", cost(0.03, 16), 1.651, 0.029),
        Record("Loss 16 late over fresh, step 0.09", cost(0.09, 16), 23.5, 0.64),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """Whether theory holds, and what the longest delay costs."""
    shares, longest = over_theory(found, config), max(config.delay)
    stable = [r for r in sorted(config.learning_rate) if r < limit(config, longest)]
    costs = []
    for rate in stable:
        low, high = estimate(cost(rate, longest), found).interval()
        part = rate / limit(config, longest)
        costs.append(
            f"{low:.3g} to {high:.3g} at a step of {rate:g}, {part:.0%} of the limit"
        )
    text = (
        f"Where theory says: the losses of the {len(shares)} cells below the limit are"
        f" {shares.min():.3f} to {shares.max():.3f} times as large as in theory, and"
        f" {against_theory(found, config)} of all {len(config.delay)} x"
        f" {len(config.learning_rate)} cells are on the wrong side of the limit."
    )
    if not costs:
        return text
    factors = "; ".join(costs)
    return f"{text} A delay of {longest:g} updates multiplies the loss by {factors}."
