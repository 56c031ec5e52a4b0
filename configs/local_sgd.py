"""How often must replicas average, and may the average be late?

Four workers train a one-block Transformer on the characters of Python's manual. Local
SGD with Adam averages every 1 to 32 steps; with DaSGD, LOSCAR and DGA the averages come
late, and workers train while they wait for them. DaSGD blends a late average with a
share of the worker's model; LOSCAR adds the worker's later steps to it. A gradient
takes 1 s (lognormal, a spread of 0.3), an all-reduce 2 s. Each method trains for 600
simulated seconds; its step is searched for the training loss.

    python -m experiments.main --config=configs/local_sgd.py --workdir=runs/local_sgd
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    amount,
    figures,
    replicas,
    tasks,
)
from experiments.configs import at_least, below_one, positive
from experiments.training import methods

SMALL = {"seconds": 60.0}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers", "period")
LIMITS |= at_least(0, "latency_seconds")
LIMITS |= positive("seconds", "tolerance") | below_one("share")


def get_config() -> ConfigDict:
    """The config: four periods of local SGD, and late averages."""
    return ConfigDict(
        dict(
            workers=4,
            period=(1, 4, 8, 32),  # steps between two averages of local SGD
            late_by=4,  # steps by which averages every 8 steps are late
            share=(0.25, 0.5, 0.75),  # of the worker's model in DaSGD's blend
            service_spread=0.3,  # standard deviation of a gradient's time, mean 1 s
            latency_seconds=0.5,  # of a message; an all-reduce of 4 workers has 4
            seconds=600.0,  # simulated
            batch_size=4,  # windows per gradient
            context=32,  # characters
            seeds=20,
            tolerance=0.01,  # tolerance of the search, nats
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method."""
    cluster = dj.cluster.Cluster(
        config.workers,
        dj.cluster.lognormal(1.0, config.service_spread),
        communication=dj.cluster.Communication(latency_seconds=config.latency_seconds),
    )

    def adam(learning_rate):
        return optax.adam(learning_rate)

    blends = {share: dasgd(share) for share in config.share}
    compared = [
        (dict(method="gradients"), methods.allreduce_sgd()),
        *(
            (dict(method="local SGD", period=period), methods.local_sgd(period))
            for period in config.period
        ),
        *(
            (dict(method=blend, period=8), methods.dasgd(8, config.late_by, share=each))
            for each, blend in blends.items()
        ),
        (
            dict(method="LOSCAR", period=8),
            methods.dasgd(8, config.late_by, "corrected"),
        ),
        (dict(method="DGA", period=1), methods.dga(delay=2)),
    ]

    def nats(of, against, **where):
        return Effect(
            metric="test_loss",
            against=against,
            size=amount(0.02, "nats"),
            where=where,
            name=f"test loss{of}",
        )

    return Experiment(
        question="How often must replicas average, and may the average be late?",
        task=tasks.char_lm(batch_size=config.batch_size, context=config.context),
        arms=[(labels, replicas(method, cluster, adam)) for labels, method in compared],
        grid={"learning_rate": Range(0.002, 0.032)},
        seeds=config.seeds,
        tuned_by="train_loss",
        search=Search(repeats=2, tolerance=config.tolerance),
        seconds=config.seconds,
        answer=[
            nats("", {"method": "gradients"}),
            nats(
                " of late averages",
                {"method": "local SGD"},
                method=("local SGD", *blends.values(), "LOSCAR"),
                period=8,
            ),
        ],
        figures=[
            figures.over("period", "test_loss", color="method", fixed=False),
            figures.curves("test_loss", against="seconds"),
            figures.update_times(),
        ],
    )


def dasgd(share: float) -> str:
    """The name of DaSGD that keeps this share of the worker's model."""
    return f"DaSGD, share {share:g}"
