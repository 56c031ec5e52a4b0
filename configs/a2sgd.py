"""Are two numbers a step enough to keep workers together?

A2SGD (Bhattacharya, Yu and Chowdhury, arXiv:2006.07405) sends the mean of the positive
and of the negative entries of a gradient in place of the gradient. Eight workers whose
link needs as long for a gradient as a worker does; all-reduce, local SGD, A2SGD and
workers that send nothing, for the same simulated time, an MLP on scikit-learn's digits.

    python -m experiments.main --config=configs/a2sgd.py --workdir=runs/a2sgd
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, figures, replicas, tasks
from experiments.results.measures import mean, ratio, tuned
from experiments.training import methods


def get_config() -> ConfigDict:
    """Four methods on links of three speeds."""
    return ConfigDict(
        dict(
            workers=8,
            transfer_seconds=(0.0, 0.1, 1.0),  # of a model over a link
            service_spread=0.1,  # of a gradient's time of 1 s, standard deviation
            period=8,  # steps between two averages of local SGD
            seconds=200.0,  # simulated
            learning_rate=(0.03, 0.1, 0.3, 1.0),
            batch_size=4,  # examples a gradient
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method and link."""
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

    def updates(name, seconds):
        return mean("updates", method=name, transfer_seconds=seconds)

    def accuracy(name, seconds):
        return tuned("test_accuracy", method=name, transfer_seconds=seconds)

    slowest = max(config.transfer_seconds)
    return Experiment(
        question="Are two numbers a step enough to keep workers together?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm(name, seconds)
            for seconds in config.transfer_seconds
            for name in compared
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        seconds=config.seconds,
        claims=[
            Claim(
                "Steps of A2SGD on the slowest link over those on the fastest",
                ratio(updates("A2SGD", slowest), updates("A2SGD", 0.0)),
                about=1.0,
                within=0.001,
            ),
            Claim(
                "Accuracy of A2SGD / accuracy of an all-reduce, slowest link",
                ratio(accuracy("A2SGD", slowest), accuracy("all-reduce", slowest)),
                about=0.936,
                within=0.04,
            ),
            Claim(
                "Accuracy of A2SGD / accuracy of an all-reduce, free link",
                ratio(accuracy("A2SGD", 0.0), accuracy("all-reduce", 0.0)),
                about=0.86,
                within=0.05,
            ),
            Claim(
                "Accuracy of A2SGD / accuracy of silent workers, free link",
                ratio(accuracy("A2SGD", 0.0), accuracy("nothing sent", 0.0)),
                about=0.89,
                within=0.05,
            ),
        ],
        figures=[
            figures.over("transfer_seconds", "test_error", color="method", fixed=False),
            figures.curves("test_error", against="seconds", panels="transfer_seconds"),
            figures.update_times(),
        ],
        notes=(
            "They are not: after as many steps the mean of A2SGD's models has 0.86 of"
            " the all-reduce's accuracy, since signs and residuals stay apart. Where a"
            " transfer takes as long as a gradient its steps cost nothing more, and it"
            " is still behind, at 0.94. Workers that send nothing do better: the mean"
            " of their models errs on 9.6 % of the test set, the mean of A2SGD on 20 %."
        ),
    )
