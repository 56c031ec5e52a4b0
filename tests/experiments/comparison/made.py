"""A run of the comparison whose losses are made by hand."""

import numpy as np
import pandas as pd

from experiments.comparison import tables
from experiments.comparison.clusters import NO_DELAY
from experiments.results.runs import Run
from experiments.results.selection import Selection

LATE = ("memoryless, 4", "constant, 4")
SEEDS = 8
COST = 0.4  # the loss of plain delay is 0.1 without delay and 0.5 with it

GAINS = {  # over plain delay: a mean, and how much it varies from seed to seed
    "plain": (0.0, 0.0),
    "plain, searched again": (0.001, 0.0),
    "no momentum": (-0.2, 0.0),
    "helps": (0.1, 0.01),
    "does nothing": (0.0, 0.01),
    "varies": (0.0, 0.2),
    "just below": (0.0399, 0.0),
    "just above": (0.0401, 0.0),
    "not found": (-0.3, 0.0),
}
TOLERANCES = {"sgd": 0.0001}
SIGNS = np.array([1, -1] * (SEEDS // 2))


def by_hand(**changed):
    """A run of rows with these gains, as `run` returns it."""
    results, optima = [], []
    for rule, (gain, spread) in (GAINS | changed).items():
        for cluster in (NO_DELAY, *LATE):
            late = cluster != NO_DELAY
            if not late and rule != "plain":
                continue
            losses = 0.1 + (COST - gain) * late + spread * SIGNS + 0.001 * SIGNS
            numbers = {"learning_rate": 0.5, "decay": 1.0 if late else 0.25}
            keys = {"optimizer": "sgd", "rule": rule, "cluster": cluster}
            optima.append(
                keys
                | numbers
                | {"found": rule != "not found", "why": "", "trainings": 7}
                | {"score": losses.mean() - 0.01}
            )
            results += [
                {**keys, **numbers, "seed": seed, "diverged": 0}
                | {"test_loss": 2 * loss, "train_loss": loss}
                for seed, loss in enumerate(losses)
            ]
    selection = Selection(("learning_rate", "decay"), optima=pd.DataFrame(optima))
    return Run(pd.DataFrame(results), pd.DataFrame(), selection)


def kept(tmp_path, result, tolerances=TOLERANCES):
    """The run as its stored table has it."""
    tables.write(result, tmp_path / "made_short.csv", "by hand", tolerances)
    return tables.read(tmp_path / "made_short.csv")
