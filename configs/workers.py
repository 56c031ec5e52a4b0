"""How many asynchronous workers are fastest at one step size, and how many too many?

Plain SGD minimizes a quadratic of curvature 1 without noise. Each gradient makes an
update, with a step of 0.05 for any number of workers. A gradient takes 1 s in the mean,
with a coefficient of variation of 1/4, 0.71 and 1. The figure compares the rate at
which the error dies out, the slope of each run, with `stability.workers_decay_rate`,
which follows from the delay equation of Yu, Chen and Poor (arXiv:2406.11159).
`:spectrum` adds a curvature of 1/5, and leaves out the memoryless times, which have no
limit.

    python -m experiments.main --config=configs/workers.py --workdir=runs/workers
    python -m experiments.main --config=configs/workers.py:spectrum --workdir=runs/two
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Simulation, along, figures, percent
from experiments.configs import at_least, compared, positive
from experiments.tasks import quadratic

LAWS = {
    "gamma 16": dj.cluster.gamma(1.0, 16),
    "gamma 2": dj.cluster.gamma(1.0, 2),
    "exponential": dj.cluster.exponential(1.0),
}


LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "least_seconds", "target")
LIMITS |= positive("learning_rate")


def get_config(question: str = "curvature") -> ConfigDict:
    """The config: laws and numbers of workers, at least 60 s and 640 gradients."""
    spectrum = question == "spectrum"
    return ConfigDict(
        dict(
            law=("gamma 16", "gamma 2") if spectrum else tuple(LAWS),
            workers=(1, 2, 4, 8, 16, 24, 32, 64, 96),
            eigenvalues=(0.2, 1.0) if spectrum else (1.0,),  # curvatures
            learning_rate=0.05,
            least_seconds=60.0,  # simulated
            least_gradients=640,
            target=1e-6 if spectrum else 1e-12,  # the loss to reach
            seeds=8,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each law and number of workers."""

    def arm(law, workers):
        cluster = dj.cluster.Cluster(workers, LAWS[law])
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        options = dict(labels=dict(law=law, workers=workers))
        options["seconds"] = max(config.least_seconds, config.least_gradients / workers)
        return Arm(
            training=along(simulated, optax.sgd(config.learning_rate)), **options
        )

    def rate(law, workers):
        """The rate of the slowest direction, 1 / seconds."""
        steps = config.learning_rate * np.asarray(config.eigenvalues)
        return dj.stability.workers_decay_rate(steps, int(workers), LAWS[law]).min()

    most = np.inf if len(config.law) < 3 else 32  # fewer of many laws
    return Experiment(
        question="How many asynchronous workers are fastest, and how many too many?",
        task=quadratic(config.eigenvalues),
        arms=[arm(law, workers) for law in config.law for workers in config.workers],
        seeds=config.seeds,
        seconds=config.least_seconds,
        evaluations=60,
        answer=Effect(
            metric=figures.TimeTo("train_loss", config.target),
            against={"workers": 8},
            size=percent(10),
            where=compared("workers", config.workers, 4, most, against=8),
        ),
        figures=[
            figures.over(
                "workers",
                figures.DecayRate(),
                theory=rate,
                title="How fast does the error die out?",
                name="decay_rate",
            )
        ],
    )
