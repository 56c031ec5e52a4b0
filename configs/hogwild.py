"""Does it matter that a worker reads a model while others write it?

Without a lock a worker reads coordinates of different ages (Niu et al.,
arXiv:1106.5730): each coordinate of its read is up to `spread` of the gradient's
staleness younger or older than the others. Asynchronous SGD trains logistic regression
on breast cancer data, with one example per gradient. All coordinates of an example are
nonzero: the analysis of Niu et al. needs sparse examples, and the analysis of Lian et
al. (arXiv:1506.08272) does not. The excess loss is the training loss at the end minus
the smallest possible training loss.

    python -m experiments.main --config=configs/hogwild.py --workdir=runs/hogwild
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    figures,
    percent,
)
from experiments.configs import at_least, positive
from experiments.tasks import breast_cancer

LIMITS = at_least(2, "workers")
LIMITS |= at_least(0, "l2")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: reads of one version, and of versions of different ages."""
    return ConfigDict(
        dict(
            workers=(4, 16, 64),  # beside one worker
            spread=(0.0, 0.5, 1.0),  # of the ages in a read, over the staleness
            l2=0.1,  # penalty (l2 / 2) |w|^2
            updates=4096,  # the square of 64 workers
            seeds=10,
            tolerance=0.05,  # tolerance of the search, as a share of the excess loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each number of workers and spread."""

    def arm(workers, spread):
        cluster = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        training = along(simulated, optax.sgd, read_spread=spread)
        return dict(workers=workers, ages=ages_of(spread)), training

    task = breast_cancer(batch_size=1, l2=config.l2)

    def excess_loss(model, task):
        loss = task.evaluate(model.params)["train_loss"]
        return loss - task.facts["optimum_loss"]

    return Experiment(
        question="Does it matter that a worker reads while others write?",
        task=task,
        arms=[
            arm(1, 0.0),
            *(arm(count, part) for count in config.workers for part in config.spread),
        ],
        grid={"learning_rate": Range(0.002, 0.1)},
        seeds=config.seeds,
        tuned_by="excess_loss",
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        metrics={"excess_loss": excess_loss},
        answer=Effect(
            metric="excess_loss", against={"ages": ages_of(0.0)}, size=percent(10)
        ),
        figures=[figures.over("workers", "excess_loss", color="ages", fixed=False)],
    )


def ages_of(spread: float) -> str:
    """The label of reads with this spread of ages."""
    return f"ages ± {100 * spread:g} %" if spread else "one age"
