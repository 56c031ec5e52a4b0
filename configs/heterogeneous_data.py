"""Does asynchrony favor the data of fast workers?

Eight workers with digits of their own, dealt out by a Dirichlet distribution. Worker i
takes i times as long as the first; as a control all take the same time. ASGD takes more
gradients from the fast; Ringleader (Maranjyan and Richtarik, arXiv:2509.22860) has a
table of all workers; Rennala waits for a batch of whoever is ready. Measured: the
training loss, and by how much the loss is higher on the data of the slower half.

    python -m experiments.main --config=configs/heterogeneous_data.py \
        --workdir=runs/heterogeneous_data
"""

import dataclasses

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, Simulation, along, figures
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, tuned
from experiments.results.tables import Found
from experiments.tasks import Task, batches, digits_mlp

_UNLIKE, _ALIKE = "unequal data", "equal data"
_METHODS = ("ASGD", "Rennala", "Ringleader")
_TITLE = "How much worse are the data of slow workers fitted?"
_SLOW, _SAME = "unequal speeds", "equal speeds"


LIMITS = at_least(1, "workers")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """Three methods, on data that differ more or less."""
    return ConfigDict(
        dict(
            workers=8,
            concentration=(0.05, 100.0),  # of the Dirichlet split; small: few classes
            power=1.0,  # worker i = 1, 2, ... takes i^power times as long
            batch=16,  # gradients in an update of Rennala
            seconds=1500.0,  # simulated; a gradient of the first takes 1 s
            learning_rate=(0.3, 1.0, 3.0, 10.0, 30.0),
            batch_size=8,  # examples a gradient
            seeds=8,
            tuning_seeds=3,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method, split and speeds."""
    protocols, workers = dj.cluster.protocols, config.workers
    ringleader = protocols.ringleader()
    slowdown = np.arange(1.0, workers + 1) ** config.power
    same = np.full(workers, workers / np.sum(1 / slowdown))  # as many gradients
    methods = {
        "ASGD": (protocols.k_async(1), {}),
        "Rennala": (protocols.rennala(config.batch), {}),
        "Ringleader": (ringleader, {"aggregation": ringleader.aggregation(workers)}),
    }

    def along_cluster(name, slow):
        times = dj.cluster.shifted_exponential(0.5, 0.5)
        cluster = dj.cluster.Cluster(workers, times, slowdown=slow.tolist())
        protocol, options = methods[name]
        return along(Simulation(cluster, protocol), optax.sgd, **options)

    data = {_UNLIKE: min(config.concentration), _ALIKE: max(config.concentration)}
    split = {name: task_of(config, own) for name, own in data.items()}
    compared = (_UNLIKE, _SLOW), (_UNLIKE, _SAME), (_ALIKE, _SLOW)
    return Experiment(
        question="Does asynchrony favor the data of fast workers?",
        task=split[_ALIKE],
        arms=[
            Arm(
                training=along_cluster(name, slowdown if speeds == _SLOW else same),
                labels=dict(method=name, data=own, speeds=speeds),
                task=split[own],
            )
            for own, speeds in compared
            for name in _METHODS
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=answer,
        published=published(),
        records=records(),
        figures=[
            figures.bars("slow_data_excess_loss", color="method", title=_TITLE),
            figures.bars("train_loss", color="method"),
            figures.curves("train_loss", against="seconds", panels="data"),
        ],
    )


def task_of(config: ConfigDict, concentration: float) -> Task:
    """Digits of workers, and how much higher the slower half's loss is."""
    split = dict(workers=config.workers, concentration=concentration)
    task = digits_mlp(depth=0, batch_size=config.batch_size, **split)
    whole = digits_mlp(batch_size=0).batches(0, 0, 1)
    whole = jax.tree.map(lambda x: np.array(x[0]), whole)
    owner = batches.dirichlet(whole["label"], **split, seed=0)  # as the task does
    slow, fast = (
        jax.tree.map(lambda x, own=own: x[own], whole)
        for own in (owner >= config.workers // 2, owner < config.workers // 2)
    )

    def evaluate(params):
        excess = task.loss(params, slow) - task.loss(params, fast)
        return task.evaluate(params) | {"slow_data_excess_loss": excess}

    return dataclasses.replace(task, evaluate=evaluate)


def loss(method: str, data: str = _UNLIKE, metric: str = "train_loss") -> Measure:
    """A loss of a method at its best step, with workers of unequal speeds."""
    return tuned(metric, method=method, data=data, speeds=_SLOW)


def favor(method: str) -> Measure:
    """What unequal speeds add to the loss on slow data less that on fast data."""
    alike = dict(method=method, data=_UNLIKE, speeds=_SAME)
    excess = tuned("slow_data_excess_loss", **alike)
    return difference(loss(method, metric="slow_data_excess_loss"), excess)


def cost(method: str) -> Measure:
    """What unequal data add to the training loss."""
    return difference(loss(method), loss(method, _ALIKE))


def published() -> list[Published]:
    """The paper's comparison."""
    return [
        Published(
            text="Where data differ, Ringleader is ahead of Malenia SGD and of IA2SGD",
            source="Maranjyan, Richtarik (2025), arXiv:2509.22860",
            said="smaller gradient norms at the same time",
            setting="MNIST and Fashion-MNIST, 100 clients, Dirichlet 0.1, an MLP",
            tried="Neither of the two is here; ASGD and Rennala stand beside it.",
        )
    ]


def records() -> list[Record]:
    """What slow data lose, what unequal data cost, and losses."""
    unlike, alike = (
        loss("ASGD", data, "slow_data_excess_loss") for data in (_UNLIKE, _ALIKE)
    )
    return [
        Record("What slow data lose where data differ, ASGD", unlike, 0.0666, 0.012),
        Record(
            "What slow data lose where data are alike, ASGD", alike, 0.05077, 0.0033
        ),
        Record("What unequal data cost ASGD", cost("ASGD"), 0.01364, 0.0021),
        Record("ASGD's training loss, unequal data", loss("ASGD"), 0.07001, 0.0042),
        Record("Ringleader's", loss("Ringleader"), 0.1085, 0.0041),
    ]


def answer(found: Found) -> str:
    """What unequal speeds do to slow data, and which method ends lowest."""

    def nats(measure):
        return between(measure, found, same=0.0, form="+.3f")

    alike = nats(loss("ASGD", _ALIKE, "slow_data_excess_loss"))
    ahead = nats(difference(loss("Ringleader"), loss("ASGD")))
    favored = [f"{name} {nats(favor(name))}" for name in _METHODS]
    return (
        "On unequal data, unequal speeds change the loss on the data of slow workers,"
        f" less that on fast ones, by this (nats): {', '.join(favored)}. Where data are"
        f" alike ASGD's is higher on slow workers' data by {alike}. Over all unequal"
        f" data Ringleader's loss less ASGD's is {ahead}, each with its own best step."
    )
