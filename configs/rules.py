"""Which rule helps with late gradients, where step and momentum are tuned as carefully?

The rules of the comparison, or a rule of yours, beside plain delay: the numbers of each
are searched on each cluster until the optimum is found.

    python -m experiments.main --config=configs/rules.py --workdir=runs/rules \
        --config.rules='("late updates",)'
"""

import functools

import pandas as pd
from ml_collections import ConfigDict

from experiments import Experiment, Record, Search, configs, figures
from experiments.comparison import cures, studies
from experiments.comparison.clusters import NO_DELAY
from experiments.results.tables import Found

LIMITS = configs.at_least(1, "repeats") | configs.positive("tolerance")


def get_config() -> ConfigDict:
    """The values that the command line may change."""
    return ConfigDict(
        dict(
            study="digits",  # one of `experiments.comparison.studies`
            optimizers=("adam",),  # among sgd, adam, muon
            rules=("late updates",),  # or my_module:rule; () is all
            seeds=20,  # that are reported
            repeats=3,  # independent searches of each row on each cluster
            tolerance=0.02,  # nats; of the convex study a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A row a rule on each cluster, at its optimum there."""
    known = {cure.name: cure for cure in cures.CURES}
    names = tuple(config.rules) or tuple(known)
    rows = [configs.named("rules", name, known) for name in names]
    study = configs.named("study", config.study, studies.STUDIES)
    for name in config.optimizers:
        configs.named("optimizers", name, cures.OPTIMIZERS)
    made = study(
        rows,
        tuple(config.optimizers),
        seeds=config.seeds,
        search=Search(
            repeats=config.repeats,
            tolerance=config.tolerance,
            relative=config.study == "convex",
        ),
        answer=functools.partial(answer, tolerance=config.tolerance),
        records=[
            Record("Nats that late updates gain over plain delay", gain, 0.0961, 0.0067)
        ],
        figures=[figures.bars("train_loss", panels="cluster", color="optimizer")],
    )
    return made


def gain(found: Found) -> float:
    """The gain of late updates with the first optimizer."""
    table = _late(found)
    return float(table[table["rule"] == "late updates"]["gain"].iloc[0])


def _late(found: Found) -> pd.DataFrame:
    """Gains over plain delay, means over the clusters with late gradients."""
    late = [name for name in found.results["cluster"].unique() if name != NO_DELAY]
    return found.gains(cures.BASELINE.name, by=("optimizer",), cluster=late)


def answer(found: Found, *, tolerance: float) -> str:
    """The gains that are larger than a search may miss, and how many are."""
    table = _late(found)
    helps = table[(table["low"] > tolerance) & table["found"]]
    said = [
        f"{row['rule']} gains {row['low']:.3f} to {row['high']:.3f} with"
        f" {row['optimizer']}"
        for row in helps.sort_values("gain", ascending=False).to_dict("records")
    ]
    rest = f"of {len(table)} rows {len(helps)} gain more than {tolerance:g}"
    return f"{'; '.join(said)}: {rest}, in nats." if said else f"None gains: {rest}."
