"""How strict must a barrier be?

Thirty-two workers whose tasks take 1 + Exp(1) s, an update for each gradient. BSP lets
nobody run ahead, SSP nobody more than 2 to 32 tasks (Ho et al., NIPS 2013), ASP
everybody. With `:PSP`, beside them, PSP asks 1, 4 or 16 workers drawn at random instead
of all (Wang et al., arXiv:1709.07772; `barrier_steps.py` has their own simulation). The
simulated time until an MLP on scikit-learn's digits has a training loss of 0.7, step
and momentum tuned.

    python -m experiments.main --config=configs/barriers.py --workdir=runs/barriers
    python -m experiments.main --config=configs/barriers.py:PSP --workdir=runs/psp
"""

import math

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Simulation, along, figures, percent, tasks
from experiments.configs import at_least, below_one, named, positive

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "shift_seconds", "mean_seconds", "target")
LIMITS |= positive("seconds", "learning_rate")
LIMITS |= below_one("momentum")


def get_config(asked: str = "all") -> ConfigDict:
    """From BSP to ASP, which ask all workers; or PSP beside them."""
    samples = {"all": {}, "PSP": dict(samples=(1, 4, 16))}  # workers that PSP asks
    return ConfigDict(
        dict(
            **named("asked", asked, samples),
            workers=32,
            bounds=(2, 4, 8, 16, 32),  # of SSP, tasks that one may be ahead of the last
            shift_seconds=1.0,  # of a task, to which an exponential time is added
            mean_seconds=1.0,  # of that
            seconds=200.0,  # simulated
            target=0.7,  # of the training loss, nats
            learning_rate=(0.001, 0.003, 0.01, 0.02, 0.04, 0.1),
            momentum=(0.0, 0.9),
            batch_size=4,  # examples a gradient
            seeds=20,
            tuning_seeds=6,  # that choose what is tuned, and are not reported
        )
    )


SHOWN = ("BSP", "SSP, 4 ahead", "PSP, 4 asked", "ASP")


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each barrier."""
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
    target = figures.TimeTo("train_loss", config.target)
    shown = tuple(name for name in SHOWN if name in barriers)
    few = dict(target=config.target, only={"barrier": shown})
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
        answer=Effect(metric=target, against={"barrier": "ASP"}, size=percent(10)),
        figures=[
            figures.bars(target),
            figures.curves("train_loss", against="seconds", **few),
            figures.curves("train_loss", against="update", **few),
        ],
    )
