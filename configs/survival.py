"""How many asynchronous workers are fastest on a network, and how many kill it?

At a fixed step size more workers compute more gradients per second, but each is later.
The delay equation of Yu, Chen and Poor (arXiv:2406.11159) says how many workers are
fastest for one curvature, as in `workers.py`. Here plain SGD trains a perceptron on
scikit-learn's digits, with an update for each gradient. Times are regular, memoryless,
heavy-tailed (Pareto stragglers, whose times have no variance), or the recorded times of
a real job, from which all workers draw the same steps. Fewer than 32 workers have the
times of the job's first replicas; more than 32 repeat them.

    python -m experiments.main --config=configs/survival.py --workdir=runs/survival
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Simulation, along, figures, percent
from experiments.configs import above, at_least, compared, positive
from experiments.tasks import digits_mlp
from experiments.training.recorded_job import recorded_job

LAWS = ("regular", "memoryless", "heavy tails", "recorded")

LIMITS = at_least(1, "workers")
LIMITS |= positive("learning_rate", "target")
LIMITS |= above(1, "tail")  # a mean time of 1 s


def get_config() -> ConfigDict:
    """The config: four laws of times, and workers beyond the limit of regular ones."""
    return ConfigDict(
        dict(
            workers=(1, 2, 4, 8, 16, 32, 64, 128),
            learning_rate=0.1,
            shape=16,  # of the gamma law of the regular times, mean 1 s
            tail=1.5,  # shape of the Pareto law, mean 1 s; at most 2: no variance
            target=0.3,  # the training loss to reach, nats
            batch_size=32,  # examples per gradient
            updates=1500,  # of each arm
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each law and number of workers."""
    laws = {
        "regular": regular(config),
        "memoryless": dj.cluster.exponential(1.0),
        "heavy tails": dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail),
    }

    def service(law, workers):
        if law == "recorded":
            return recorded_job(workers).service("steps")
        return laws[law]

    def arm(law, workers):
        cluster = dj.cluster.Cluster(workers, service(law, workers))
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        return Arm(
            training=along(simulated, optax.sgd(config.learning_rate)),
            labels=dict(law=law, workers=workers),
            seconds=config.updates / workers,
        )

    time = figures.TimeTo("train_loss", config.target)
    with_eight = {
        "against": {"workers": 8},
        "size": percent(10),
        "where": compared("workers", config.workers, 8, 64, against=8),
    }
    return Experiment(
        question="How many asynchronous workers kill the training of a network?",
        task=digits_mlp(batch_size=config.batch_size),
        arms=[arm(law, workers) for law in LAWS for workers in config.workers],
        seeds=config.seeds,
        seconds=float(config.updates),
        evaluations=50,
        answer=[
            Effect(metric=time, **with_eight),
            Effect(metric="train_loss", **with_eight),
        ],
        figures=[
            figures.over("workers", time, color="law", fixed=False),
            figures.curves("train_loss", against="seconds", panels="law"),
        ],
    )


def regular(config: ConfigDict) -> dj.cluster.ServiceTime:
    """The law of the times of regular workers."""
    return dj.cluster.gamma(1.0, config.shape)
