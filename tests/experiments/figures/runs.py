"""Runs that are made by hand, from formulas."""

import itertools
import json
import math

import numpy as np
import pandas as pd

from delayjax import cluster
from delayjax.cluster import protocols
from experiments.results import analysis
from experiments.results.runs import Run
from experiments.results.selection import Selection

RATES, DELAYS, SEEDS = (0.03, 0.1, 0.3, 1.0, 3.0), (0, 1, 4), (0, 1, 2)
OPTIMUM = 0.05


def limit(delay):
    """The largest stable step size at a curvature of 1.5."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / 1.5


def valley(learning_rate, delay, seed, **labels):
    """The best step size falls with the delay; beyond the limit it diverges."""
    if learning_rate > limit(delay):
        return math.nan
    return 0.1 + 0.02 * delay + 0.01 * seed + math.log(learning_rate * (1 + delay)) ** 2


def made(folder, loss=valley, *, seeds=SEEDS, curve=None, info=None, **grid):
    """A run over a grid: the loss of each cell, and its curve in 5 evaluations."""
    grid = grid or {"learning_rate": RATES, "delay": DELAYS}
    results, curves = [], []
    for *values, seed in itertools.product(*grid.values(), seeds):
        cell = dict(zip(grid, values, strict=True))
        end = loss(**cell, seed=seed)
        diverged = int(math.isnan(end))
        measured = {
            "train_loss": 9.0 if diverged else end,
            "test_loss": 9.0 if diverged else end + 0.1,
            "test_accuracy": 0.1 if diverged else math.exp(-end),
        }
        results.append(
            {**cell, "seed": seed, "updates": 40, "diverged": diverged, **measured}
        )
        for update in range(0, 50, 10):
            now = {name: value + 40 - update for name, value in measured.items()}
            now |= {} if curve is None else {"train_loss": curve(update, cell, seed)}
            times = {"update": update, "examples": 8 * update, "seconds": update / 2}
            curves.append({**cell, "seed": seed, **times, **now})
    frames = [analysis.derived(pd.DataFrame(rows)) for rows in (results, curves)]
    record = {"question": "Why?", "notes": "Seen before.", "config": {}, "changed": {}}
    record |= {"programs": [{"name": "all", "cells": [], "updates": 40, "facts": {}}]}
    info = record | {"tuned": [*{"learning_rate"} & {*grid}]} | (info or {})
    selection = Selection(tuple(info["tuned"]))
    return Run(*frames, selection, info["question"], folder=folder, info=info)


def step_at(run, delay):
    """The step size with the least mean loss."""
    rows = analysis.where(run.results, delay=delay)
    losses = rows.train_loss.where(rows.diverged == 0, np.inf)
    return losses.groupby(rows.learning_rate).mean().idxmin()


def written(run):
    """The same run, read from its files."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "run.json").write_text(json.dumps(run.info))
    run.results.to_csv(run.folder / "results.csv", index=False)
    run.curves.to_csv(run.folder / "curves.csv", index=False)
    return Run.read(run.folder)


def traced(folder, **rules):
    """A run with the traces of three workers under some protocols."""
    rules = rules or {"hardsync": protocols.hardsync(), "ssp": protocols.ssp(1)}
    saved = []
    (folder / "traces").mkdir(parents=True, exist_ok=True)
    for name, rule in rules.items():
        machine = cluster.Cluster(3, cluster.exponential(1.0))
        trace = cluster.simulate(machine, rule, 60, seed=0)
        trace.save(folder / f"traces/{name}.npz")
        labels = {"protocol": name, "workers": 3}
        saved.append({"file": f"traces/{name}.npz", "labels": labels})
    return made(folder, info={"traces": saved})


def timed(seconds, ages=None):
    """A trace of one worker: an update at each of these seconds, of one gradient.

    All are fresh, or as stale as the `ages` say; the first ones must be fresh.
    """
    steps = np.arange(len(seconds), dtype=np.int32)
    clock = np.asarray(seconds, float)
    return cluster.Trace(
        num_workers=1,
        seconds=clock,
        update=steps,
        worker=np.zeros(len(clock), np.int32),
        read_version=steps if ages is None else steps - np.asarray(ages, np.int32),
        begun=clock,
        arrived=clock,
        divisor=np.ones(len(clock)),
        busy_seconds=np.zeros(1),
    )
