"""Are two numbers a step enough to keep workers together?

A2SGD (Bhattacharya, Yu and Chowdhury, arXiv:2006.07405) sends the mean of the positive
and of the negative entries of a gradient in place of the gradient. Eight workers train
an MLP on scikit-learn's digits for the same simulated time: with all-reduce, local SGD,
A2SGD, and without any messages. Sending a gradient over a link takes at most as long as
computing it. The step of each is searched.

    python -m experiments.main --config=configs/a2sgd.py --workdir=runs/a2sgd
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    points,
    replicas,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.training import methods

LIMITS = at_least(1, "workers", "period")
LIMITS |= at_least(0, "transfer_seconds")
LIMITS |= positive("seconds", "tolerance")


def get_config() -> ConfigDict:
    """The config: four methods on links of three speeds."""
    return ConfigDict(
        dict(
            workers=8,
            transfer_seconds=(0.0, 0.1, 1.0),  # of a model over a link
            service_spread=0.1,  # standard deviation of a gradient's time, mean 1 s
            period=8,  # steps between two averages of local SGD
            seconds=1000.0,  # simulated
            batch_size=4,  # examples per gradient
            seeds=5,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method and link."""
    compared = {
        "all-reduce": methods.allreduce_sgd(),
        "local SGD": methods.local_sgd(config.period),
        "A2SGD": methods.a2sgd(),
        "nothing sent": methods.local_sgd(period=10**6),
    }

    def arm(name, seconds):
        cluster = dj.cluster.Cluster(
            config.workers,
            dj.cluster.lognormal(1.0, config.service_spread),
            communication=dj.cluster.Communication(
                message_bytes=seconds, bytes_per_second=1.0
            ),
        )
        training = replicas(compared[name], cluster, optax.sgd)
        return dict(method=name, transfer_seconds=seconds), training

    def against(other):
        return Effect(
            metric="test_accuracy",
            against={"method": other},
            size=points(1),
            where={"method": ("A2SGD", other)},
            name="test accuracy of A2SGD",
        )

    return Experiment(
        question="Are two numbers a step enough to keep workers together?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm(name, transfer)
            for transfer in config.transfer_seconds
            for name in compared
        ],
        grid={"learning_rate": Range(0.03, 3.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        answer=[against("all-reduce"), against("nothing sent")],
        figures=[
            figures.over(
                "transfer_seconds",
                color="method",
                fixed=False,
                x_label="time to transfer a gradient (s)",
                title="What does a slow link cost each method?",
            ),
            figures.curves("test_error", against="seconds", panels="transfer_seconds"),
            figures.update_times(),
        ],
    )
