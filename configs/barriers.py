"""How strict must a barrier be?

Thirty-two workers have tasks of 1 + Exp(1) s, and each gradient makes an update. With
BSP no worker runs ahead, with SSP at most 2 to 8 tasks (Ho et al., NIPS 2013), with
ASP without a limit. `:PSP` adds PSP, which asks 1, 4 or 16 workers drawn at random
instead of all (Wang et al., arXiv:1709.07772; `barrier_steps.py` has the paper's
simulation). The result is the simulated time until an MLP on scikit-learn's digits has
a training loss of 0.7, with step and momentum tuned.

    python -m experiments.main --config=configs/barriers.py --workdir=runs/barriers
    python -m experiments.main --config=configs/barriers.py:PSP --workdir=runs/psp
"""

import math

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
    tasks,
)
from experiments.configs import at_least, named, positive

SMALL = {"seconds": 60.0, "target": 1.5}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "shift_seconds", "mean_seconds", "target")
LIMITS |= positive("seconds", "tolerance")


def get_config(asked: str = "all") -> ConfigDict:
    """The config: barriers that ask all workers, from BSP to ASP; or also PSP."""
    samples = {"all": {}, "PSP": dict(samples=(1, 4, 16))}  # workers that PSP asks
    return ConfigDict(
        dict(
            **named("asked", asked, samples),
            workers=32,
            bounds=(2, 4, 8),  # tasks that a worker may be ahead under SSP
            shift_seconds=1.0,  # the constant part of the time of a task
            mean_seconds=1.0,  # mean of the exponential part
            seconds=200.0,  # simulated
            target=0.7,  # the training loss to reach, nats
            batch_size=4,  # examples per gradient
            seeds=20,
            tolerance=0.03,  # tolerance of the search, as a share of the time
        )
    )


SHOWN = ("BSP", "SSP, 4 ahead", "PSP, 4 asked", "ASP")


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each barrier."""
    samples = config.get("samples", ())
    ssp, psp = dj.cluster.protocols.ssp, dj.cluster.protocols.psp
    service = dj.cluster.shifted_exponential(config.shift_seconds, config.mean_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)
    barriers = {
        "BSP": ssp(0),
        **{f"SSP, {bound} ahead": ssp(bound) for bound in config.bounds},
        **{f"PSP, {sample} asked": psp(sample, 0) for sample in samples},
        "ASP": ssp(math.inf),
    }

    def sgd(learning_rate, decay):  # decay = 1 - momentum
        return optax.sgd(learning_rate, 1.0 - decay)

    target = figures.TimeTo("train_loss", config.target)
    shown = tuple(name for name in SHOWN if name in barriers)
    few = dict(target=config.target, only={"barrier": shown})
    return Experiment(
        question="How strict must a barrier be?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (dict(barrier=name), along(Simulation(cluster, protocol), sgd))
            for name, protocol in barriers.items()
        ],
        grid={"learning_rate": Range(0.001, 0.1), "decay": Range(0.1, 1.0, off=1.0)},
        seeds=config.seeds,
        tuned_by=target,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        evaluations=50,
        answer=Effect(metric=target, against={"barrier": "ASP"}, size=percent(10)),
        figures=[
            figures.bars(target),
            figures.curves("train_loss", against="seconds", **few),
            figures.curves("train_loss", against="update", **few),
        ],
    )
