"""Do more cores and more workers save time in proportion to both?

DPSGD (Mohamad, Alamri and Bouchachia, arXiv:2210.02882): the threads of a worker write
its model without a lock, and the workers push what they have done to a center and pull
it, whenever they are ready. A thread of c reads a model that lacks the c - 1 gradients
of the others. After N gradients the error is as small as without any of this, so the
paper proves, where cores <= N^(1/4) and workers <= N^(1/2). The cores of a worker take
c gradients in the time of one. Logistic regression on breast cancer data, N = 10,000
gradients of one example: 10 cores and 100 workers.

    python -m experiments.main --config=configs/two_levels.py --workdir=runs/two_levels
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, amount, configs, figures, replicas, tasks
from experiments.results.metrics import Computed, TimeTo
from experiments.training import methods

LIMITS = configs.at_least(1, "workers", "period", "examples")
LIMITS |= configs.at_least(0, "l2")
LIMITS |= configs.positive("learning_rate", "target")


def get_config() -> ConfigDict:
    """Workers times cores, within both bounds and beyond the first."""
    return ConfigDict(
        dict(
            workers=(1, 4, 16, 64),
            cores=(1, 4, 10, 32),  # of each worker
            period=4,  # gradients of a worker between two visits to the center
            service_spread=0.3,  # of a gradient's time, a share of it
            examples=10_000,  # N, one a gradient
            learning_rate=tuple(0.0001 * 2**n for n in range(11)),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            target=0.01,  # nats of loss over the optimum
            seeds=20,
            tuning_seeds=10,  # that choose the step size, and are not reported
        )
    )


def seconds(config: ConfigDict) -> TimeTo:
    """The time to the target; the cores of a worker divide it."""
    share = Computed("seconds_of_all_cores", lambda cores: 1 / cores)
    return TimeTo("excess_loss", config.target, along="seconds", cost=share)


def experiment(config: ConfigDict) -> Experiment:
    """A program for each number of workers."""
    delays = [cores - 1 for cores in config.cores]
    most = max(config.workers)
    max_delay = configs.check_delays("cores", delays, config.examples // most)
    service = dj.cluster.lognormal(1.0, config.service_spread)

    def threads(learning_rate, cores):
        """A worker's step is one thread's; it is as late as there are others."""
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
        grid={"learning_rate": config.learning_rate, "cores": config.cores},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        examples=config.examples,
        evaluations=100,
        measure={"excess_loss": over_optimum},
        answer=Effect(
            metric="excess_loss",
            against={"workers": 1, "cores": 1},
            size=amount(0.01, "nats"),
            where={"cores": (1, *config.cores[-2:])},
        ),
        figures=[
            figures.over("workers", "excess_loss", color="cores"),
            figures.over("workers", seconds(config), color="cores", fixed=False),
            figures.curves("excess_loss", against="examples", panels="workers"),
        ],
    )
