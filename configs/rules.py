"""Which rule helps with late gradients, where step and momentum are tuned as carefully?

The rules of the comparison, or a rule of yours, beside plain delay: the numbers of each
are searched on each cluster until the optimum is found.

    python -m experiments.main --config=configs/rules.py --workdir=runs/rules \
        --config.rules='("late updates",)'
"""

import dataclasses

import pandas as pd
from ml_collections import ConfigDict

from experiments import Effect, Experiment, Search, amount, configs, figures, percent
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
    tolerance, relative = config.tolerance, config.study == "convex"
    made = study(
        rows,
        tuple(config.optimizers),
        seeds=config.seeds,
        search=Search(repeats=config.repeats, tolerance=tolerance, relative=relative),
        figures=[figures.bars("train_loss", panels="cluster", color="optimizer")],
    )
    late = {cluster for arm in made.arms for cluster in arm.grid["cluster"]}
    answer = Effect(
        metric="train_loss",
        against={"rule": cures.BASELINE.name},
        size=percent(100 * tolerance) if relative else amount(tolerance, "nats"),
        where={"cluster": tuple(sorted(late - {NO_DELAY}))},
        mean_over=("cluster",),
    )
    return dataclasses.replace(made, answer=answer)


def late_gains(found: Found) -> pd.DataFrame:
    """Gains over plain delay, means over the clusters with late gradients."""
    late = [name for name in found.results["cluster"].unique() if name != NO_DELAY]
    return found.gains(cures.BASELINE.name, by=("optimizer",), cluster=late)
