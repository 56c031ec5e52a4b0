"""Does it matter that a worker reads a model while others write it?

Without a lock a worker reads coordinates of different ages (Niu et al.,
arXiv:1106.5730): each coordinate of its read is up to `spread` of the gradient's
staleness younger or older than the others. Asynchronous SGD, logistic regression on
breast cancer data, one example a gradient. All coordinates of an example are nonzero:
the analysis of Niu et al. needs sparse ones, and the one of Lian et al.
(arXiv:1506.08272) does not. The excess loss is the training loss at the end less the
smallest one that there is.

    python -m experiments.main --config=configs/hogwild.py --workdir=runs/hogwild
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Experiment,
    Published,
    Record,
    Simulation,
    along,
    figures,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import mean, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "l2")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """Reads of one version, and of versions spread over their staleness."""
    return ConfigDict(
        dict(
            workers=(4, 16, 64),  # beside one
            spread=(0.0, 0.5, 1.0),  # of a gradient's staleness, over which it is read
            learning_rate=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            updates=4096,  # 64 workers are its square root
            seeds=10,
            tuning_seeds=5,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each number of workers and spread."""

    def arm(workers, spread):
        cluster = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        training = along(simulated, optax.sgd, read_spread=spread)
        return dict(workers=workers, ages=_ages(spread)), training

    task = tasks.breast_cancer(batch_size=1, l2=config.l2)

    def excess_loss(model, task):
        loss = task.evaluate(model.params)["train_loss"]
        return loss - task.facts["optimum_loss"]

    return Experiment(
        question="Does it matter that a worker reads while others write?",
        task=task,
        arms=[
            arm(1, 0.0),
            *(arm(count, own) for count in config.workers for own in config.spread),
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        measure={"excess_loss": excess_loss},
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("workers", "excess_loss", color="ages", fixed=False),
            figures.over(
                "learning_rate",
                "excess_loss",
                color="ages",
                panels="workers",
                only={"workers": config.workers[-2:]},
                fixed=False,
                title="At which step sizes does it matter?",
            ),
        ],
    )


def _ages(spread: float) -> str:
    return f"ages ± {100 * spread:g} %" if spread else "one age"


def excess(workers: int, spread: float) -> Measure:
    """The excess loss at the best step."""
    return tuned("excess_loss", workers=workers, ages=_ages(spread))


def mixed(workers: int) -> Measure:
    """Excess loss of reads of all ages over reads of one age."""
    return ratio(excess(workers, 1.0), excess(workers, 0.0))


def published(config: ConfigDict) -> list[Published]:
    """The number of workers that costs nothing, and what a lock costs."""
    most = config.workers[-1]
    return [
        Published(
            text="With up to sqrt(updates) workers and no lock the excess loss is at"
            " most twice one worker's",
            source="Lian, Huang, Li, Liu (2015), arXiv:1506.08272, abstract",
            said="a linear speed-up while there are at most sqrt(updates) workers",
            setting="theory, of nonconvex losses",
            measure=ratio(excess(most, 1.0), excess(1, 0.0)),
            at_most=2.0,
            bound_is_ours=True,
        ),
        Published(
            text="Ten cores without a lock need less time than ten that take turns",
            source="Niu, Recht, Re, Wright (2011), arXiv:1106.5730",
            said="9.5 s and 61.8 s (RCV1)",
            setting="a sparse support vector machine, ten cores",
            tried="A simulated worker pays nothing for a lock.",
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Excess losses, what mixed ages change, and a mean staleness, P - 1."""
    del config
    return [
        Record("Excess loss of one worker", excess(1, 0.0), 0.0005032, 7.6e-05),
        Record("Excess loss, 16 workers, one age", excess(16, 0.0), 0.0004986, 7.3e-05),
        Record("All ages over one, 16 workers", mixed(16), 1.026, 0.054),
        Record("All ages over one, 64 workers", mixed(64), 0.9098, 0.027),
        Record("Staleness, 16", mean("staleness_mean", workers=16), 14.94, 0.0038),
    ]


def answer(found: Found) -> str:
    """What reads of all ages change, at each number of workers."""
    several = sorted(found.results["workers"].unique())[1:]
    intervals = {n: estimate(mixed(n), found).interval() for n in several}
    parts = {
        "costs": [f"{n}" for n, (low, _) in intervals.items() if low > 1],
        "saves": [f"{n}" for n, (_, high) in intervals.items() if high < 1],
    }
    said = [
        f"{does} loss on {' and '.join(n)} workers" for does, n in parts.items() if n
    ]
    each = ", ".join(f"{a:.2f} to {b:.2f} on {n}" for n, (a, b) in intervals.items())
    return (
        "With the step tuned, reading while others write"
        f" {' and '.join(said) or 'changes nothing'} beyond what seeds do: the excess"
        f" loss of reads of all ages over reads of one age is {each} workers."
    )
