"""Does it matter that a worker reads a model while others write it?

Without a lock a worker reads coordinates of different ages (Niu et al.,
arXiv:1106.5730; Mania et al., arXiv:1507.06970): each coordinate of its read is up to
`spread` of the gradient's staleness younger or older than the others. Asynchronous SGD
of 16 workers, logistic regression on breast cancer data, one example a gradient.

    python -m experiments.main --config=configs/hogwild.py --workdir=runs/hogwild
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, figures, tasks
from experiments.results.measures import mean, ratio, tuned


def get_config() -> ConfigDict:
    """Reads of one version, and of versions spread over their staleness."""
    return ConfigDict(
        dict(
            workers=(4, 16, 64),
            spread=(0.0, 0.5, 1.0),  # of a gradient's staleness, over which it is read
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            updates=4000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each number of workers and spread."""

    def arm(workers, spread):
        cluster = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        training = along(simulated, optax.sgd, read_spread=spread)
        return dict(workers=workers, spread=spread), training

    task = tasks.breast_cancer(batch_size=1, l2=config.l2)
    least = task.facts["optimum_loss"]

    def excess(workers, spread):
        loss = tuned("train_loss", workers=workers, spread=spread)
        return lambda found: loss(found) - least

    def spread_costs(workers):
        return Claim(
            f"Excess loss of reads spread over all versions over none, {workers}",
            ratio(excess(workers, 1.0), excess(workers, 0.0)),
            about=1.0,
            within=0.35,
        )

    return Experiment(
        question="Does it matter that a worker reads while others write?",
        task=task,
        arms=[
            arm(count, spread) for count in config.workers for spread in config.spread
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim(
                "Mean staleness of 16 workers",
                mean("staleness_mean", workers=16),
                about=15.0,
                within=0.3,
            ),
            *(spread_costs(workers) for workers in config.workers),
        ],
        figures=[
            figures.over("workers", "train_loss", color="spread"),
            figures.best_step("workers", color="spread"),
        ],
    )
