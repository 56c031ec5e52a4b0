"""Which method still trains when a gradient may never end?

A task hangs for ever with a small probability (the infinite-Bernoulli times of
Maranjyan et al., arXiv:2410.04285), or its time has a heavy tail. A method that waits
for such a gradient loses a worker, or waits long; MindFlayer gives up a gradient after
an allotted time. SGD trains logistic regression on breast cancer data, with one example
per gradient. For each method and kind of task, step and momentum are searched for the
excess of the training loss over its optimum after 200 simulated seconds. The batch of
Rennala and the time that MindFlayer allots are the best for other seeds than those that
report.

    python -m experiments.main --config=configs/hanging_workers.py \
        --workdir=runs/hanging_workers
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

LIMITS = at_least(2, "workers")  # one worker that hangs ends all
LIMITS |= at_least(0, "gradient_seconds", "allotted_seconds", "l2", "target")
LIMITS |= positive("seconds", "tail", "tolerance")


def get_config() -> ConfigDict:
    """The config: three methods; hanging tasks or none, and times with heavy tails."""
    return ConfigDict(
        dict(
            workers=16,
            hang_probability=(0.0, 0.02, 0.1),  # of a task
            gradient_seconds=1.0,  # the least time of a task that ends
            tail=1.2,  # P(a task takes longer than t) ~ t^-tail: 6 s on average
            target=0.25,  # a training loss of a figure, nats; the least is 0.197
            seconds=200.0,  # simulated
            batch=(4, 16),  # gradients per update of Rennala
            allotted_seconds=(1.5, 2.0, 4.0),  # for a gradient of MindFlayer
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=20,
            tolerance=0.03,  # tolerance of the search, as a share of the excess
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method and kind of task."""
    protocols = dj.cluster.protocols
    compared = {
        "ASGD": protocols.k_async(1),
        **{f"Rennala, batch {size}": protocols.rennala(size) for size in config.batch},
        **{
            mindflayer(time): protocols.mindflayer(1, time)
            for time in config.allotted_seconds
        },
    }
    shortest = config.gradient_seconds
    services = {
        hang(chance): dj.cluster.infinite_bernoulli(shortest, chance)
        for chance in config.hang_probability
    } | {HEAVY: dj.cluster.pareto(shortest, config.tail)}

    def sgd(learning_rate, decay):
        return optax.sgd(learning_rate, 1.0 - decay)

    def arm(name, tasks):
        cluster = dj.cluster.Cluster(config.workers, services[tasks])
        simulated = Simulation(cluster, compared[name], may_hang=True)
        return dict(method=name, tasks=tasks), along(simulated, sgd)

    def over_optimum(model, task):
        return task.evaluate(*model[:1])["train_loss"] - task.facts["optimum_loss"]

    often = max(config.hang_probability)
    quickest = mindflayer(min(config.allotted_seconds))
    return Experiment(
        question="Which method still trains when a gradient may never end?",
        task=breast_cancer(batch_size=1, l2=config.l2),
        arms=[arm(name, tasks) for tasks in services for name in compared],
        grid={"learning_rate": Range(0.001, 3.0), "decay": Range(0.1, 1.0, off=1.0)},
        seeds=config.seeds,
        tuned_by="excess_loss",
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        metrics={"excess_loss": over_optimum},
        answer=[
            Effect(metric="excess_loss", against=against, size=percent(10))
            for against in ({"tasks": hang(0.0)}, {"method": quickest})
        ],
        figures=[
            figures.over("tasks", "excess_loss", fixed=False, x_label="of each worker"),
            figures.curves(against="seconds", panels="tasks", target=config.target),
            figures.gantt(only=[f"{name}, {hang(often)}" for name in compared]),
        ],
    )


HEAVY = "times with a heavy tail"


def mindflayer(seconds: float) -> str:
    """The name of MindFlayer that allots this time."""
    return f"MindFlayer, {seconds:g} s"


def hang(chance: float) -> str:
    """The name of tasks that hang with this probability."""
    return f"{100 * chance:g} % of tasks hang" if chance else "no task hangs"
