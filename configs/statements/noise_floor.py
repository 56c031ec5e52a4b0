"""Records of `configs/noise_floor.py`."""

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from experiments import statements
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio
from experiments.results.runs import Run

floor = statements.config_of(__file__).floor


def over_theory(run: Run, config: ConfigDict) -> pd.Series:
    """Measured loss over theory of each cell below the limit, means over seeds."""
    cells = run.results.groupby(["learning_rate", "delay"])["train_loss"].mean()
    theory = np.array([floor(config, *cell) for cell in cells.index])
    return (cells / theory)[np.isfinite(theory)]


def against_theory(run: Run, config: ConfigDict) -> int:
    """The number of cells that end higher below the limit, or not beyond it."""
    cells = run.results.groupby(["learning_rate", "delay"])["ended_higher"]
    beyond = np.array([np.isinf(floor(config, *cell)) for cell in cells.min().index])
    return int(np.where(beyond, cells.min() < 1, cells.max() > 0).sum())


def cost(learning_rate: float, delay: float) -> Measure:
    """The loss at a delay over the loss without delay, at one step."""
    late = mean("train_loss", learning_rate=learning_rate, delay=delay)
    return ratio(late, mean("train_loss", learning_rate=learning_rate, delay=0))


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: training over theory, and the cost of a delay."""

    def typical(run):
        return float(over_theory(run, config).mean())

    def wrong(run):
        return against_theory(run, config)

    return {
        "Mean of measured over theory": typical,
        "Cells that end higher below the limit, or do not beyond it": wrong,
        "Loss 16 late over fresh, step 0.03": cost(0.03, 16),
        "Loss 16 late over fresh, step 0.09": cost(0.09, 16),
    }
