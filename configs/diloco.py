"""What does an outer optimizer gain over averaging, and does it need several workers?

Four workers take 5 or 20 steps of Adam, then exchange models. Local SGD takes their
mean; DiLoCo gives the mean change to an outer optimizer, SGD with Nesterov momentum. A
control is one worker alone, with the same outer optimizer: does it gain as much? All
numbers are searched: step and momentum of Adam, and of the outer optimizer. Traffic
falls as 1 / period.

    python -m experiments.main --config=configs/diloco.py --workdir=runs/diloco

Most of its half hour is the search, which has 14,758 trainings of eight series.
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, figures, replicas, tasks
from experiments.configs import at_least, check_rounds, positive
from experiments.results.effects import percent
from experiments.training import methods

SMALL = {"updates": 20, "period": (5,)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(2, "workers") | at_least(1, "period") | positive("tolerance")


def get_config() -> ConfigDict:
    """The config: four workers that exchange models after two periods."""
    return ConfigDict(
        dict(
            workers=4,
            period=(5, 20),  # steps between two exchanges
            updates=200,  # of each worker
            batch_size=8,  # examples per gradient of a worker
            seeds=16,
            tolerance=0.05,  # of the search, a share of the loss
        )
    )


def adam(learning_rate, decay):
    """The optimizer of each worker."""
    return optax.adam(learning_rate, b1=1.0 - decay)


def nesterov(outer_step, outer_decay):
    """The outer optimizer; `outer_step` is the sum of steps that a change causes."""
    return optax.sgd(outer_step * outer_decay, 1.0 - outer_decay, nesterov=True)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: averaging and an outer optimizer, on all workers and on one."""
    check_rounds(config.updates, *config.period)

    def cluster(workers):
        return dj.cluster.Cluster(workers, dj.cluster.constant(1.0))

    all_, alone = cluster(config.workers), cluster(1)
    averages, outer = {}, {"outer_step": Range(1.0, 10.0, off=1.0)}
    outer["outer_decay"] = Range(0.05, 1.0, off=1.0)

    def arm(method, there, label, period=0, grid=averages, contains=None):
        labels = {"method": label} | ({"period": period} if period else {})
        training = replicas(method, there, adam)
        return Arm(training=training, labels=labels, grid=grid, contains=contains)

    arms = [arm(methods.allreduce_sgd(), all_, "gradients")]
    arms += [arm(methods.allreduce_sgd(), alone, "one worker")]
    for period in config.period:
        mean, second = methods.local_sgd(period), methods.outer(nesterov, period)
        within = {"method": "local SGD", "period": period}
        arms += [arm(mean, all_, "local SGD", period)]
        arms += [arm(second, all_, "DiLoCo", period, outer, within)]
        within = {"method": "one worker"}
        arms += [arm(second, alone, "one worker, outer", period, outer, within)]

    def gain(over, *names, metric="train_loss"):
        return Effect(
            metric=metric,
            against={"method": over},
            size=percent(10),
            where={"method": (over, *names)},
        )

    return Experiment(
        question="What does an outer optimizer gain over averaging?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=arms,
        grid={"learning_rate": Range(3e-4, 0.1), "decay": Range(0.02, 1.0, off=1.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        answer=[
            gain("local SGD", "DiLoCo"),
            gain("gradients", "DiLoCo", "local SGD"),
            gain("gradients", "DiLoCo", "local SGD", metric="test_loss"),
            gain("one worker", "one worker, outer"),
        ],
        figures=[
            figures.over(
                "period",
                "train_loss",
                color="method",
                fixed=False,
                x_label="steps H; a worker sends 4 / H bytes a parameter and step",
            ),
            figures.curves("train_loss", panels="period", color="method"),
        ],
    )
