"""Does asynchrony favor the data of fast workers?

A Dirichlet distribution divides the digits among eight workers. Worker i takes i times
as long as the first; in a control all take the same time. ASGD uses more gradients of
fast workers; Ringleader (Maranjyan and Richtarik, arXiv:2509.22860) has a table with a
gradient of each worker; Rennala waits for a batch. The step of each is searched. The
results are the training loss, and how much higher it is on the data of the slower half.

    python -m experiments.main --config=configs/heterogeneous_data.py --workdir=runs/het
"""

import dataclasses

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

LIMITS = at_least(1, "workers") | positive("seconds", "tolerance")


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
            seeds=8,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
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
                metric="train_loss",
                against={"method": "ASGD"},
                size=percent(10),
                where={"data": UNLIKE, "speeds": SLOW},
                name="training loss on unequal data",
            ),
        ],
        figures=[
            figures.bars("slow_data_excess_loss", color="method", title=_TITLE),
            figures.bars("train_loss", color="method"),
            figures.curves("train_loss", against="seconds", panels="data"),
        ],
    )


def task_of(config: ConfigDict, concentration: float) -> Task:
    """The task of workers' digits, with the excess loss on the slower half's data."""
    split = dict(workers=config.workers, concentration=concentration)
    task = digits_mlp(depth=0, batch_size=config.batch_size, **split)
    drawn = digits_mlp(batch_size=0).batches(0, 0, 1)
    whole = {name: np.array(leaf[0]) for name, leaf in drawn.items()}
    owner = batches.dirichlet(whole["label"], **split, seed=0)  # as the task does
    of_slow = owner >= config.workers // 2

    def loss(params, these):
        return task.loss(params, {name: leaf[these] for name, leaf in whole.items()})

    def evaluate(params):
        excess = loss(params, of_slow) - loss(params, ~of_slow)
        return task.evaluate(params) | {"slow_data_excess_loss": excess}

    return dataclasses.replace(task, evaluate=evaluate)
