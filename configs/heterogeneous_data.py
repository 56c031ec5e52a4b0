"""Does asynchrony favor the data of fast workers?

A Dirichlet distribution divides the digits among eight workers. Worker i takes i times
as long as the first; in a control all take the same time. ASGD uses more gradients of
fast workers, and Rennala waits for a batch, from any workers. All workers count equally
in Ringleader (Maranjyan and Richtarik, arXiv:2509.22860) and in its rivals: Malenia
SGD, with two sizes of a round, and IA2SGD. The step of each is searched. The model is
logistic regression. The objective is the mean over the workers of each one's mean loss,
with a penalty (l2 / 2) |w|^2: it is strongly convex, so that it has an optimum. The
results are the excess of this loss over the optimum, and how much higher the loss is on
the data of the slower half.

    python -m experiments.main --config=configs/heterogeneous_data.py --workdir=runs/het
"""

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
from experiments.tasks.unequal_digits import unequal_digits

_TITLE = "How much worse are the data of slow workers fitted?"
UNLIKE, ALIKE = "unequal data", "equal data"
SLOW, SAME = "unequal speeds", "equal speeds"

LIMITS = at_least(1, "workers")
LIMITS |= positive("harmonic_mean", "seconds", "tolerance", "l2")


def get_config() -> ConfigDict:
    """The config: six methods, on data that differ more or less."""
    return ConfigDict(
        dict(
            workers=8,
            concentration=(0.05, 100.0),  # of the Dirichlet split; 0.05: few classes
            power=1.0,  # worker i = 1, 2, ... takes i^power times as long
            batch=16,  # gradients per update of Rennala
            harmonic_mean=(1.0, 2.0),  # of the workers' numbers of gradients, Malenia
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
    equal = {"Ringleader": protocols.ringleader(), "IA2SGD": protocols.ia2sgd()}
    equal |= {f"Malenia {h:g}": protocols.malenia(h) for h in config.harmonic_mean}
    methods = {
        "ASGD": (protocols.k_async(1), None),
        "Rennala": (protocols.rennala(config.batch), None),
        **{name: (one, one.aggregation(workers)) for name, one in equal.items()},
    }

    def arm(name, data, speeds):
        times_slower = {SLOW: slowdown, SAME: same}[speeds].tolist()
        times = dj.cluster.shifted_exponential(0.5, 0.5)
        cluster = dj.cluster.Cluster(workers, times, slowdown=times_slower)
        protocol, rule = methods[name]
        training = along(Simulation(cluster, protocol), optax.sgd, aggregation=rule)
        labels = dict(method=name, data=data, speeds=speeds)
        return Arm(training=training, labels=labels, task=split[data])

    data = {UNLIKE: min(config.concentration), ALIKE: max(config.concentration)}
    of_task = dict(batch_size=config.batch_size, workers=workers, l2=config.l2)
    split = {
        name: unequal_digits(concentration=alpha, **of_task)
        for name, alpha in data.items()
    }
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
