"""Does asynchrony favor the data of fast workers?

A Dirichlet distribution divides the digits among eight workers. Worker i takes i times
as long as the first; in a control all take the same time. ASGD uses more gradients of
fast workers; Ringleader (Maranjyan and Richtarik, arXiv:2509.22860) has a table with a
gradient of each worker; Rennala waits for a batch. The step of each is searched. The
model is logistic regression. The objective is the mean over the workers of each one's
mean loss, with a penalty (l2 / 2) |w|^2: it is strongly convex, so that it has an
optimum. The results are the excess of this loss over the optimum, and how much higher
the loss is on the data of the slower half.

    python -m experiments.main --config=configs/heterogeneous_data.py --workdir=runs/het
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    amount,
    figures,
    percent,
)
from experiments.configs import at_least, positive
from experiments.tasks import Task, batches, digits_mlp

_TITLE = "How much worse are the data of slow workers fitted?"
UNLIKE, ALIKE = "unequal data", "equal data"
SLOW, SAME = "unequal speeds", "equal speeds"

LIMITS = at_least(1, "workers") | positive("seconds", "tolerance", "l2")


def get_config() -> ConfigDict:
    """The config: three methods, on data that differ more or less."""
    return ConfigDict(
        dict(
            workers=8,
            concentration=(0.05, 100.0),  # of the Dirichlet split; 0.05: few classes
            power=1.0,  # worker i = 1, 2, ... takes i^power times as long
            batch=16,  # gradients per update of Rennala
            seconds=1500.0,  # simulated; a gradient of the first worker takes 1 s
            batch_size=8,  # examples per gradient
            l2=0.01,  # penalty (l2 / 2) |w|^2
            seeds=8,
            tolerance=0.05,  # tolerance of the search, as a share of the excess loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method, split and speeds."""
    protocols, workers = dj.cluster.protocols, config.workers
    slowdown = np.arange(1.0, workers + 1) ** config.power
    same = np.full(workers, workers / np.sum(1 / slowdown))  # as many gradients
    table = protocols.ringleader()
    methods = {
        "ASGD": (protocols.k_async(1), {}),
        "Rennala": (protocols.rennala(config.batch), {}),
        "Ringleader": (table, {"aggregation": table.aggregation(workers)}),
    }

    def arm(name, data, speeds):
        times_slower = {SLOW: slowdown, SAME: same}[speeds].tolist()
        times = dj.cluster.shifted_exponential(0.5, 0.5)
        cluster = dj.cluster.Cluster(workers, times, slowdown=times_slower)
        protocol, options = methods[name]
        training = along(Simulation(cluster, protocol), optax.sgd, **options)
        labels = dict(method=name, data=data, speeds=speeds)
        return Arm(training=training, labels=labels, task=split[data])

    data = {UNLIKE: min(config.concentration), ALIKE: max(config.concentration)}
    split = {name: task_of(config, alpha) for name, alpha in data.items()}
    return Experiment(
        question="Does asynchrony favor the data of fast workers?",
        task=split[ALIKE],
        arms=[
            arm(name, data, speeds)
            for data, speeds in ((UNLIKE, SLOW), (UNLIKE, SAME), (ALIKE, SLOW))
            for name in methods
        ],
        grid={"learning_rate": Range(0.3, 30.0)},
        seeds=config.seeds,
        tuned_by="excess_loss",
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        answer=[
            Effect(
                metric="slow_data_excess_loss",
                against={"speeds": SAME},
                size=amount(0.02, "nats"),
                where={"data": UNLIKE},
                name="loss on slow workers' data less that on fast workers'",
            ),
            Effect(
                metric="excess_loss",
                against={"method": "ASGD"},
                size=percent(10),
                where={"data": UNLIKE, "speeds": SLOW},
                name="excess loss on unequal data",
            ),
        ],
        figures=[
            figures.bars("slow_data_excess_loss", color="method", title=_TITLE),
            figures.bars("excess_loss", color="method"),
            figures.curves("excess_loss", against="seconds", panels="data"),
        ],
    )


def task_of(config: ConfigDict, concentration: float) -> Task:
    """The task of workers' digits, with the excess loss, and on the slower half's data.

    Its loss has the penalty; `train_loss` and `test_loss` are without it.
    """
    split = dict(workers=config.workers, concentration=concentration)
    task = digits_mlp(depth=0, batch_size=config.batch_size, **split)
    drawn = digits_mlp(batch_size=0).batches(0, 0, 1)
    whole = {name: np.array(leaf[0]) for name, leaf in drawn.items()}
    owner = batches.dirichlet(whole["label"], **split, seed=0)  # as the task does
    of_slow = owner >= config.workers // 2
    least = optimum(whole, owner, config.l2)

    def loss(params, these):
        return task.loss(params, {name: leaf[these] for name, leaf in whole.items()})

    def penalty(params):
        return config.l2 / 2 * optax.tree.norm(params, squared=True)

    def evaluate(params):
        of_each = [loss(params, owner == worker) for worker in range(config.workers)]
        return task.evaluate(params) | {
            "excess_loss": sum(of_each) / config.workers + penalty(params) - least,
            "slow_data_excess_loss": loss(params, of_slow) - loss(params, ~of_slow),
        }

    return dataclasses.replace(
        task,
        loss=lambda params, batch: task.loss(params, batch) + penalty(params),
        evaluate=evaluate,
    )


def optimum(examples: Mapping[str, np.ndarray], owner: np.ndarray, l2: float) -> float:
    """The least mean over workers of their mean losses, with the penalty, in float64.

    A column of ones stands for the biases, so that they have the penalty too.
    """
    from sklearn import linear_model  # seconds to import

    counts = np.bincount(owner)
    weight = 1 / (len(counts) * counts[owner])
    pixels = examples["image"].reshape(len(owner), -1).astype(np.float64)
    inputs = np.column_stack([pixels, np.ones(len(owner))])
    fit = linear_model.LogisticRegression(
        C=1 / l2, fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(inputs, examples["label"], sample_weight=weight)
    chance = fit.predict_proba(inputs)[np.arange(len(owner)), examples["label"]]
    return float(-weight @ np.log(chance) + l2 / 2 * (fit.coef_**2).sum())
