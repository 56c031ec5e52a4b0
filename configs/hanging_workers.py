"""Who still trains when a gradient may never end?

Every task hangs for good with a small probability (the infinite-Bernoulli times of
Maranjyan et al., arXiv:2410.04285). A method that waits for a gradient, or keeps one
worker busy with it, loses that worker; MindFlayer abandons what takes longer than it
allots. Logistic regression on breast cancer data, one example a gradient; SGD, its step
and momentum tuned for each method and probability, and of Rennala also the batch.

    python -m experiments.main --config=configs/hanging_workers.py \
        --workdir=runs/hanging_workers
"""

import functools

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
from experiments.configs import at_least, below_one, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, least, mean, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "gradient_seconds", "allotted_seconds", "l2")
LIMITS |= positive("seconds", "learning_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """Three methods, without and with hanging tasks."""
    return ConfigDict(
        dict(
            workers=16,
            hang_probability=(0.0, 0.02, 0.1),  # of a task
            gradient_seconds=1.0,  # of a task that ends
            seconds=200.0,  # simulated
            batch=(4, 16),  # gradients in an update of Rennala
            allotted_seconds=1.5,  # to a gradient of MindFlayer
            learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            momentum=(0.0, 0.9),
            l2=0.1,  # penalty (l2 / 2) |w|^2
            seeds=8,
            tuning_seeds=5,  # that choose step, momentum and batch; not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each method and probability."""
    protocols = dj.cluster.protocols
    compared = {
        "ASGD": protocols.k_async(1),
        **{f"Rennala, batch {own}": protocols.rennala(own) for own in config.batch},
        "MindFlayer": protocols.mindflayer(1, config.allotted_seconds),
    }

    def arm(name, chance):
        service = dj.cluster.infinite_bernoulli(config.gradient_seconds, chance)
        cluster = dj.cluster.Cluster(config.workers, service)
        simulated = Simulation(cluster, compared[name], may_hang=True)
        return dict(method=name, tasks=hang(chance)), along(simulated, optax.sgd)

    often = max(config.hang_probability)
    return Experiment(
        question="Who still trains when a gradient may never end?",
        task=tasks.breast_cancer(batch_size=1, l2=config.l2),
        arms=[
            arm(name, chance) for chance in config.hang_probability for name in compared
        ],
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        answer=functools.partial(answer, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over("tasks", "train_loss", fixed=False, x_label="of each worker"),
            figures.curves("train_loss", against="seconds", panels="tasks"),
            figures.gantt(only=[f"{name}, {hang(often)}" for name in compared]),
        ],
    )


def hang(chance: float) -> str:
    """The name of tasks that hang with a probability."""
    return f"{100 * chance:g} % of tasks hang" if chance else "no task hangs"


def gradients(method: str, chance: float) -> Measure:
    """The gradients that were used until the end."""
    return mean("examples", method=method, tasks=hang(chance))


def loss(config: ConfigDict, method: str, chance: float) -> Measure:
    """The training loss at the end; of Rennala with the batch that tuning chooses."""
    if method != "Rennala":
        return tuned("train_loss", method=method, tasks=hang(chance))
    return least(
        [loss(config, f"Rennala, batch {own}", chance) for own in config.batch]
    )


def change(config: ConfigDict, method: str, chance: float) -> Measure:
    """MindFlayer's training loss less the loss of another method."""
    flayer = loss(config, "MindFlayer", chance)
    return difference(flayer, loss(config, method, chance))


def published(config: ConfigDict) -> list[Published]:
    """MindFlayer against both others, where the most tasks hang."""
    often = max(config.hang_probability)
    return [
        Published(
            text=f"Where {hang(often)}, MindFlayer has less loss than {other}",
            source="Maranjyan, Omar, Richtarik (2024), arXiv:2410.04285, abstract",
            said="it outperforms baselines, above all where noise has heavy tails",
            setting="a quadratic, and two layers on MNIST (as we recall)",
            measure=change(config, other, often),
            at_most=0.0,
            bound_is_ours=True,
        )
        for other in ("Rennala", "ASGD")
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses and gradients of MindFlayer, which gets 0.9 in 1.5 s of each worker."""
    used = gradients("MindFlayer", 0.1)
    more = ratio(used, gradients("ASGD", 0.1))
    after, fresh = loss(config, "MindFlayer", 0.1), loss(config, "ASGD", 0.0)
    return [
        Record("MindFlayer's gradients, 10 % hang", used, 2041, 15),
        Record("MindFlayer's gradients / ASGD's, 10 % hang", more, 15.68, 1.6),
        Record("MindFlayer's loss, 10 % hang", after, 0.1986, 0.00037),
        Record("ASGD's loss, none hangs", fresh, 0.1979, 0.00017),
    ]


def answer(config: ConfigDict, found: Found) -> str:
    """How many gradients each uses, and what MindFlayer gains and loses."""
    often = max(config.hang_probability)
    used = [gradients(own, often)(found) for own in ("ASGD", "MindFlayer")]

    def off(chance):
        asgd, rennala = (
            between(change(config, own, chance), found, same=0.0, form="+.4f")
            for own in ("ASGD", "Rennala")
        )
        return f"{asgd} from ASGD's and by {rennala} from Rennala's"

    return (
        f"Where {hang(often)}, ASGD uses {used[0]:.0f} gradients, MindFlayer"
        f" {used[1]:.0f}, and MindFlayer's training loss differs by {off(often)}. Where"
        f" {hang(0.0)}, it differs by {off(0.0)}."
    )
