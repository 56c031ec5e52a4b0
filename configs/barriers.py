"""How strict must a barrier be?

Thirty-two workers whose tasks take 1 + Exp(1) s, an update for each gradient. BSP lets
nobody run ahead, SSP nobody more than 2, 4 or 8 tasks (Ho et al., NIPS 2013), ASP
everybody; PSP asks 1, 4 or 16 workers drawn at random instead of all (Wang et al.,
arXiv:1709.07772; `barrier_steps.py` has their own simulation). The simulated time until
an MLP on scikit-learn's digits has a training loss of 0.7, step and momentum tuned.

    python -m experiments.main --config=configs/barriers.py --workdir=runs/barriers
"""

import functools
import math

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
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import between, least, mean, ratio, seconds_to, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "shift_seconds", "mean_seconds", "target")
LIMITS |= positive("seconds", "learning_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """From BSP to ASP."""
    return ConfigDict(
        dict(
            workers=32,
            bounds=(2, 4, 8),  # of SSP, tasks that one may be ahead of the last
            samples=(1, 4, 16),  # of PSP, workers that are asked
            shift_seconds=1.0,  # of a task, to which an exponential time is added
            mean_seconds=1.0,  # of that
            seconds=200.0,  # simulated
            target=0.7,  # of the training loss, nats
            learning_rate=(0.001, 0.003, 0.01, 0.02, 0.04, 0.1),
            momentum=(0.0, 0.9),
            batch_size=4,  # examples a gradient
            seeds=20,
            tuning_seeds=6,  # that choose step, momentum and slack; not reported
        )
    )


SHOWN = ("BSP", "SSP, 4 ahead", "PSP, 4 asked", "ASP")


def experiment(config: ConfigDict) -> Experiment:
    """Nine barriers."""
    ssp, psp = dj.cluster.protocols.ssp, dj.cluster.protocols.psp
    service = dj.cluster.shifted_exponential(config.shift_seconds, config.mean_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)
    barriers = {
        "BSP": ssp(0),
        **{f"SSP, {bound} ahead": ssp(bound) for bound in config.bounds},
        **{f"PSP, {sample} asked": psp(sample, 0) for sample in config.samples},
        "PSP, 4 asked, 4 ahead": psp(4, 4),
        "ASP": ssp(math.inf),
    }
    target = figures.TimeTo("train_loss", config.target)
    few = dict(target=config.target, only={"barrier": SHOWN})
    return Experiment(
        question="How strict must a barrier be?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (dict(barrier=name), along(Simulation(cluster, protocol), optax.sgd))
            for name, protocol in barriers.items()
        ],
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuned_by=target,
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        evaluations=50,
        answer=functools.partial(answer, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.bars(target),
            figures.curves("train_loss", against="seconds", **few),
            figures.curves("train_loss", against="update", **few),
        ],
    )


def until(config: ConfigDict, barrier: str, along: str = "seconds") -> Measure:
    """Seconds, or updates, to the target; of SSP with the slack that tuning chooses."""
    if barrier != "SSP":
        return seconds_to("train_loss", config.target, along=along, barrier=barrier)
    return least([until(config, f"SSP, {own} ahead", along) for own in config.bounds])


def over(config: ConfigDict, barrier: str, other: str, along="seconds") -> Measure:
    """Seconds, or updates, to the target, over the number of another barrier."""
    return ratio(until(config, barrier, along), until(config, other, along))


def published(config: ConfigDict) -> list[Published]:
    """SSP in time, and BSP for each update."""
    ho = dict(
        source="Ho et al., NIPS 2013",
        said="SSP beats BSP and asynchronous updates in time to the objective",
        setting="topic model, matrix factorization, Lasso, 32 machines (as we recall)",
        at_least=1.0,
        bound_is_ours=True,
    )
    wang = dict(
        source="Wang, Catterall, Mortier (2017), arXiv:1709.07772",
        said="BSP has the best accuracy for each update",
        setting="a convolutional network on MNIST, 6 nodes, Exp(1) s more a task",
        at_most=1.0,
        bound_is_ours=True,
    )
    bsp, asp = (over(config, own, "SSP") for own in ("BSP", "ASP"))
    updates = over(config, "BSP", "ASP", "update")
    return [
        Published(
            text="BSP takes longer than SSP with its best slack", measure=bsp, **ho
        ),
        Published(
            text="ASP takes longer than SSP with its best slack", measure=asp, **ho
        ),
        Published(text="BSP takes fewer updates than ASP", measure=updates, **wang),
    ]


def records(config: ConfigDict) -> list[Record]:
    """How many updates each makes in 200 s, and what comes of them."""
    made = {"BSP": (1265.0, 12.0), "PSP, 4 asked": (1633.0, 13.0), "ASP": (3198.0, 6.1)}
    bsp, asp = (tuned("test_accuracy", barrier=own) for own in ("BSP", "ASP"))
    return [
        Record(f"Updates of {own}", mean("updates", barrier=own), *expected)
        for own, expected in made.items()
    ] + [
        Record("Seconds of ASP to the loss", until(config, "ASP"), 48.5, 1.1),
        Record("Test accuracy of BSP", bsp, 0.903, 0.0047),
        Record("Test accuracy of ASP", asp, 0.9303, 0.0067),
    ]


def answer(config: ConfigDict, found: Found) -> str:
    """What barriers cost, and the strictest one that costs no time."""
    made = found.results.groupby("barrier")["updates"].mean().sort_values()

    def costs_none(barrier):
        return estimate(over(config, barrier, "ASP"), found).interval()[0] <= 1.0

    free = next(filter(costs_none, made.index), "ASP")
    bsp, ssp = (between(over(config, own, "ASP"), found) for own in ("BSP", "SSP"))
    return (
        f"The strictest barrier that costs no time beyond what seeds do is {free}: to a"
        f" training loss of {config.target:g} BSP takes {bsp} times as long as ASP, and"
        f" SSP with its best slack {ssp} times."
    )
