"""What does the staleness of a real cluster cost?

An MLP on scikit-learn's digits is trained along a log, a .csv with the columns

    update,time_s,worker,read_version

and a row for each gradient that was applied, or a .npz that `Trace.save` wrote. Without
a log, the config simulates eight asynchronous workers, one of them four times as slow;
then the answer is not about a real cluster. Late gradients, plain and under three laws
of staleness, are compared with the same updates from fresh gradients. The step of each
is searched.

    python -m experiments.main --config=configs/real_trace.py \
        --config.trace=trace.csv --workdir=runs/real_trace
"""

import dataclasses

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    along,
    configs,
    figures,
    tasks,
)
from experiments.results.sizes import percent, points

LIMITS = configs.positive("tolerance")


def get_config() -> ConfigDict:
    """The config: the whole log, or the first 10 000 updates of it."""
    return ConfigDict(
        dict(
            trace="",  # a .csv or a .npz; empty: a simulated log
            updates=10_000,  # at most
            power=0.5,  # of the polynomial law
            batch_size=32,  # examples per gradient
            seeds=5,
            tolerance=0.1,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: fresh gradients, and late ones under each law."""
    trace = dj.cluster.load_trace(config.trace) if config.trace else simulated()
    fresh = dataclasses.replace(trace, read_version=trace.update)
    laws = {
        "none": lambda tau: 1.0,
        "inverse": dj.modulation.inverse,
        "polynomial": dj.modulation.polynomial(config.power),
        "capped": dj.modulation.capped(trace.num_workers),
    }

    def weighted(law):
        return dj.scale_by_staleness(laws[law])

    fresh_ones = {"gradients": "fresh"}
    return Experiment(
        question="What does the staleness of a real cluster cost?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (dict(gradients="fresh"), along(fresh, optax.sgd)),
            (dict(gradients="late"), along(trace, optax.sgd, each=weighted)),
        ],
        grid={"learning_rate": Range(0.05, 2.4), "law": tuple(laws)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=min(config.updates, trace.num_updates),
        answer=[
            Effect(metric="train_loss", against=fresh_ones, size=percent(10)),
            Effect(metric="test_error", against=fresh_ones, size=points(1)),
        ],
        figures=[
            figures.bars("test_error"),
            figures.curves("train_loss", against="update"),
            figures.staleness(),
        ],
    )


def simulated() -> dj.cluster.Trace:
    """The trace of eight simulated workers, of which one is four times as slow."""
    times = dj.cluster.lognormal(1.0, 0.5)
    cluster = dj.cluster.Cluster(8, times, slowdown=[1.0] * 7 + [4.0])
    return dj.cluster.simulate(cluster, dj.cluster.protocols.k_async(1), 4_000, seed=0)
