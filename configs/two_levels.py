"""Do more cores and more workers save time in proportion to both?

In DPSGD (Mohamad, Alamri and Bouchachia, arXiv:2210.02882) the threads of a worker
write its model without a lock, and a worker that is ready pushes its change to a center
and pulls the center's model. One of c threads reads a model without the c - 1 gradients
of the others. The paper proves that after N gradients the error is as small as with one
thread, if cores <= N^(1/4) and workers <= N^(1/2). The c cores of a worker take c
gradients in the time of one. The task is logistic regression on breast cancer data, one
example for each gradient. One core needs about N = 2,700 gradients to the target, so
that the bounds are 7 cores and 52 workers; 8 and 64 are the nearest powers of two.

    python -m experiments.main --config=configs/two_levels.py --workdir=runs/two_levels
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    configs,
    figures,
    percent,
    replicas,
    tasks,
)
from experiments.results.metrics import Computed, TimeTo
from experiments.training import methods

SMALL = {"workers": (1, 16), "cores": (1, 8, 32), "examples": 8_000, "target": 0.02}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "workers", "period", "examples")
LIMITS |= configs.at_least(0, "l2")
LIMITS |= configs.positive("tolerance", "target")


def get_config() -> ConfigDict:
    """The config: workers times cores, within both bounds and beyond the first."""
    return ConfigDict(
        dict(
            workers=(1, 4, 16, 64),
            cores=(1, 4, 8, 32),  # of each worker
            period=4,  # gradients of a worker between two visits to the center
            service_spread=0.3,  # of a gradient's time: standard deviation over mean
            examples=40_000,  # one per gradient
            l2=0.1,  # penalty (l2 / 2) |w|^2
            target=0.0004,  # the loss to reach, in nats over the optimum
            seeds=12,
            tolerance=0.05,  # tolerance of the search, as a share of the time
        )
    )


def seconds(config: ConfigDict) -> TimeTo:
    """A metric: the time to the target, which the cores of a worker divide."""
    share = Computed("seconds_of_all_cores", lambda cores: 1 / cores)
    return TimeTo("excess_loss", config.target, along="seconds", cost=share)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each number of workers."""
    delays = [cores - 1 for cores in config.cores]
    most = max(config.workers)
    max_delay = configs.check_delays("cores", delays, config.examples // most)
    service = dj.cluster.lognormal(1.0, config.service_spread)

    def threads(learning_rate, cores):
        """The step of one thread of a worker, as late as the worker has others."""
        return dj.delayed(optax.sgd(learning_rate), cores - 1, max_delay=max_delay)

    def arm(workers):
        cluster = dj.cluster.Cluster(workers, service)
        training = replicas(methods.async_sgd(config.period), cluster, threads)
        return dict(workers=workers), training

    task = tasks.breast_cancer(batch_size=1, l2=config.l2)

    def over_optimum(model, task):
        return task.evaluate(*model[:1])["train_loss"] - task.facts["optimum_loss"]

    return Experiment(
        question="Do more cores and more workers save time in proportion to both?",
        task=task,
        arms=[arm(workers) for workers in config.workers],
        grid={"learning_rate": Range(0.0001, 0.1), "cores": config.cores},
        seeds=config.seeds,
        tuned_by=seconds(config)._replace(cost=None),
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        examples=config.examples,
        evaluations=400,
        metrics={"excess_loss": over_optimum},
        answer=Effect(
            metric=seconds(config),
            against={"workers": 1, "cores": 1},
            size=percent(10),
            where={"cores": (1, *config.cores[-2:])},
        ),
        figures=[
            figures.over("workers", "excess_loss", color="cores", fixed=False),
            figures.over("workers", seconds(config), color="cores", fixed=False),
            figures.curves("excess_loss", against="examples", panels="workers"),
        ],
    )
