"""The records of a run with arms, made by hand."""

import csv
import dataclasses
import itertools
import json
import math

from configs import default
from delayjax import cluster
from delayjax.cluster import protocols
from experiments import arms
from experiments.results import Evaluation, Row

ARMS = ("n_softsync(2)", "hardsync()", "k_async(1) workers=8")
LAWS, RATES, SEEDS = ("none", "inverse"), (0.03, 0.1, 0.3), (0, 1, 2)
STEPS, MOMENTS = 40, 4  # updates, and evaluations after the first
BEGIN = 2.5  # the loss of the initial parameters
RULES = (protocols.n_softsync(2), protocols.hardsync(), protocols.k_async(1))
WORKERS = (4, 4, 8)


def best(arm, law):
    """The best step is another one for each arm, and larger under a law."""
    return RATES[(ARMS.index(arm) + (law != "none")) % 3]


def loss(arm, law, rate, seed):
    """At the end."""
    worse = 0.1 * ARMS.index(arm) - 0.05 * (law != "none")
    return 0.5 + worse + 0.01 * seed**2 + abs(math.log10(rate / best(arm, law)))


def pace(arm):
    """Seconds of an update."""
    return 0.5 * (1 + ARMS.index(arm)) if arm in ARMS else 1.0


def of_seed(seed):
    """Clusters are not equally fast under all seeds."""
    return 1.0 + 0.1 * seed**2


def setting(arm, law, rate, seed, **changes):
    return {
        "task": "digits_mlp",
        "arm": arm,
        "optimizer": "sgd",
        "learning_rate": rate,
        "delay_law": "trace",
        "delay": 0.0,
        "modulation": law,
        "placement": "after",
        "compensation": "none",
        "strength": 0.0,
        "seed": seed,
    } | changes


def metrics(train_loss):
    return {
        "train_loss": train_loss,
        "test_loss": train_loss + 0.1,
        "train_accuracy": 1.0 - train_loss / 4,
        "test_accuracy": 1.0 - train_loss / 3,
        "gradient_norm": 2 * train_loss,
    }


def cells(names=ARMS, laws=LAWS, rates=RATES, seeds=SEEDS):
    return list(itertools.product(names, laws, rates, seeds))


def rows(loss=loss, seconds_to_target=lambda *cell: math.nan, over=None, **changes):
    return [
        Row(
            **setting(*cell, **changes),
            **metrics(loss(*cell)),
            steps=STEPS,
            updates=STEPS,
            seconds=STEPS * pace(cell[0]) * of_seed(cell[-1]),
            seconds_to_target=seconds_to_target(*cell),
            diverged=math.isnan(loss(*cell)),
            diverged_step=-1,
            staleness_mean=1.0,
            staleness_p99=2.0,
            staleness_max=3.0,
            clipped=0.0,
            dropped=0.0,
        )
        for cell in over or cells()
    ]


def at(arm, seed, step):
    """Where an arm was evaluated: seconds, examples."""
    return step * pace(arm) * of_seed(seed), step * 10 * (1 + ARMS.index(arm))


def on_the_way(end, step):
    """A loss that falls in a straight line."""
    return BEGIN + (end - BEGIN) * step / STEPS


def evaluations(loss=loss, at=at, over=None, **changes):
    found = []
    for cell in over or cells():
        arm, *_, seed = cell
        for step in range(0, STEPS + 1, STEPS // MOMENTS):
            seconds, examples = at(arm, seed, step)
            found.append(
                Evaluation(
                    **setting(*cell, **changes),
                    **metrics(on_the_way(loss(*cell), step)),
                    step=step,
                    seconds=seconds,
                    examples=examples,
                )
            )
    return found


def traces():
    """Of the arms, each of forty updates."""
    return {
        arm: cluster.simulate(
            cluster.Cluster(workers, cluster.exponential(1.0)), rule, STEPS, seed=0
        )
        for arm, rule, workers in zip(ARMS, RULES, WORKERS, strict=True)
    }


def reached(arm, law, rate, seed):
    """Seconds to the target; one arm does not get there under each seed."""
    if arm == ARMS[1] and law == "none" and seed == 2:
        return math.inf
    return 10.0 + seed + pace(arm) + abs(math.log10(rate / best(arm, law)))


def workdir(folder, *, figures, reached=reached, **changes):
    """A run's folder in the documented form."""
    (folder / "traces").mkdir(parents=True)
    _write(folder / "results.csv", rows(seconds_to_target=reached))
    _write(folder / "curves.csv", evaluations())
    for arm, trace in traces().items():
        trace.save(folder / "traces" / f"{arms.slug(arm)}-seed{SEEDS[0]}.npz")
    config = {
        "task": {"name": "digits_mlp"},
        "opt": {"sgd": {"momentum": 0.0}, "decay": "constant", "warmup_steps": 0},
        "cluster": default.get_config().cluster.to_dict()
        | {"arms": ARMS, "workers": WORKERS[0]},
        "target": {"metric": "train_loss", "value": 0.9},
        "over": {"option": "workers", "label": "", "panels": ""},
        "seeds": SEEDS,
        "params_seed": 11,
        "data_seed": 12,
        "delay_seed": 13,
        "cluster_seed": 14,
        "metric": "test_accuracy",
        "select_by": "train_loss",
        "figures": figures,
    } | changes
    record = {
        "config": config,
        "facts": {},
        "expected": {},
        "docstring": "Why?",
        "argv": ["main.py"],
        "versions": {},
        "git": "0123456789ab",
        "devices": "1 x cpu",
        "started": "2026-11-21T03:00:00+00:00",
        "wall_seconds": 1.0,
    }
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text(
        json.dumps(
            {
                "program": "sgd-none-after-hardsync",
                "step": 1,
                "train_loss": 1.0,
                "not_finite": 0,
            }
        )
        + "\n"
    )
    return folder


def _write(path, records):
    names = [field.name for field in dataclasses.fields(records[0])]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for record in records:
            values = dataclasses.asdict(record)
            if "diverged" in values:
                values["diverged"] = int(values["diverged"])
            writer.writerow(values)
