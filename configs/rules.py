"""Which rule helps with late gradients, where step and momentum are tuned as carefully?

The rules of the comparison, or your rule, are compared with plain delay. The numbers of
each rule are searched on each cluster until the optimum is found. A rule that reads the
delay has a twin that receives the mean delay, as "late updates, delay-blind twin".

    python -m experiments.main --config=configs/rules.py --workdir=runs/rules \
        --config.rules='("late updates",)'

First all rows at the short stage, then the rows that may gain:

    python -m experiments.main --config=configs/rules.py --workdir=runs/digits_short \
        --config.stage=short --config.rules='("all",)'
    python -m experiments.comparison.page runs/digits_short
    python -m experiments.main --config=configs/rules.py --workdir=runs/digits_full \
        --config.stage=full --config.rules='("all",)'
"""

import dataclasses

import pandas as pd
from ml_collections import ConfigDict

from experiments import Effect, Experiment, amount, configs, figures, percent
from experiments.comparison import rules, studies
from experiments.comparison.clusters import NO_DELAY
from experiments.results.runs import Run

LIMITS = configs.at_least(0, "seeds")


def get_config() -> ConfigDict:
    """The values that the command line may change."""
    return ConfigDict(
        dict(
            study="digits",  # one of `experiments.comparison.studies`
            stage="full",  # short, full, or long with four times the updates
            optimizers=("adam",),  # among sgd, adam, muon
            rules=("late updates",),  # or my_module:rule; "all": all of the stage
            seeds=0,  # the number of reported seeds; 0: as many as the stage has
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: each rule on each cluster, at its optimum there."""
    study = configs.named("study", config.study, studies.STUDIES)
    stage = configs.named("stage", config.stage, studies.STAGES)
    if tuple(config.rules) == ("all",):
        rows = studies.rows_of(config.study, config.stage)
    else:
        read = [rule for rule in rules.RULES if rule.reads_delay]
        rows = [*rules.RULES, *map(rules.delay_blind_twin, read)]
        known = {rule.name: rule for rule in rows}
        rows = [configs.named("rules", name, known) for name in config.rules]
    made = studies.experiment(
        study,
        stage,
        rows,
        tuple(config.optimizers),
        seeds=config.seeds or stage.seeds,
        figures=[figures.bars("train_loss", panels="cluster", color="optimizer")],
    )
    late = {cluster for arm in made.arms for cluster in arm.grid["cluster"]}
    tolerance = made.effort.tolerance
    answer = Effect(
        metric="train_loss",
        against={"rule": rules.BASELINE.name},
        size=percent(100 * tolerance) if study.relative else amount(tolerance, "nats"),
        where={"cluster": tuple(sorted(late - {NO_DELAY}))},
        mean_over=("cluster",),
    )
    return dataclasses.replace(made, answer=answer)


def late_gains(run: Run) -> pd.DataFrame:
    """A table of gains over plain delay, means over clusters with late gradients."""
    late = [name for name in run.results["cluster"].unique() if name != NO_DELAY]
    return run.gains(rules.BASELINE.name, by=("optimizer",), cluster=late)
