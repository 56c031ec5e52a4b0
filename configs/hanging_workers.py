"""Which method still trains when a gradient may never end?

A task hangs for ever with a small probability (the infinite-Bernoulli times of
Maranjyan et al., arXiv:2410.04285), or its time has a heavy tail. A method that waits
for such a gradient loses a worker, or waits long; MindFlayer gives up a gradient after
an allotted time. SGD trains logistic regression on breast cancer data, with one example
per gradient. For each method and kind of task its step and momentum are tuned, and also
the batch of Rennala and the time that MindFlayer allots.

    python -m experiments.main --config=configs/hanging_workers.py \
        --workdir=runs/hanging_workers
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Simulation, along, amount, figures
from experiments.configs import at_least, below_one, positive
from experiments.tasks import breast_cancer

LIMITS = at_least(2, "workers")  # one worker that hangs ends all
LIMITS |= at_least(0, "gradient_seconds", "allotted_seconds", "l2", "target")
LIMITS |= positive("seconds", "learning_rate", "tail")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """The config: three methods; hanging tasks or none, and times with heavy tails."""
    return ConfigDict(
        dict(
            workers=16,
            hang_probability=(0.0, 0.02, 0.1),  # of a task
            gradient_seconds=1.0,  # the least time of a task that ends
            tail=1.2,  # P(a task takes longer than t) ~ t^-tail: 6 s on average
            target=0.25,  # the training loss to reach, nats; the least is 0.197
            seconds=200.0,  # simulated
            batch=(4, 16),  # gradients per update of Rennala
            allotted_seconds=(1.5, 2.0, 4.0),  # for a gradient of MindFlayer
            learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            momentum=(0.0, 0.9),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=8,
            tuning_seeds=5,  # seeds that choose all tuned values; not reported
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

    def arm(name, tasks):
        cluster = dj.cluster.Cluster(config.workers, services[tasks])
        simulated = Simulation(cluster, compared[name], may_hang=True)
        return dict(method=name, tasks=tasks), along(simulated, optax.sgd)

    often = max(config.hang_probability)
    quickest = mindflayer(min(config.allotted_seconds))
    return Experiment(
        question="Which method still trains when a gradient may never end?",
        task=breast_cancer(batch_size=1, l2=config.l2),
        arms=[arm(name, tasks) for tasks in services for name in compared],
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=[
            Effect(metric="train_loss", against=against, size=amount(0.01, "nats"))
            for against in ({"tasks": hang(0.0)}, {"method": quickest})
        ],
        figures=[
            figures.over("tasks", "train_loss", fixed=False, x_label="of each worker"),
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
