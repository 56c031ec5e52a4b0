"""How strict must a barrier be?

Thirty-two workers whose tasks take 1 + Exp(1) s, an update for each gradient. BSP lets
nobody run ahead, SSP nobody more than 2, 4 or 8 tasks (Ho et al., NIPS 2013), ASP
everybody; PSP asks 1, 4 or 16 workers drawn at random instead of all (Wang et al.,
arXiv:1709.07772, whose simulation lasts 200 s as well). An MLP on scikit-learn's
digits, each arm at its best step size.

    python -m experiments.main --config=configs/barriers.py --workdir=runs/barriers
"""

import math

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, Simulation, along, figures, tasks
from experiments.results.measures import mean, tuned


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
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3),
            batch_size=4,  # examples a gradient
            seeds=3,
        )
    )


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

    shown = ("BSP", "SSP, 4 ahead", "PSP, 4 asked", "ASP")

    def updates(barrier, about):
        return Claim(
            f"Updates of {barrier}",
            mean("updates", barrier=barrier),
            about=about,
            within=0.02 * about,
        )

    def accuracy(barrier, about):
        measure = tuned("test_accuracy", barrier=barrier)
        return Claim(f"Accuracy of {barrier}", measure, about=about, within=0.015)

    return Experiment(
        question="How strict must a barrier be?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (dict(barrier=name), along(Simulation(cluster, protocol), optax.sgd))
            for name, protocol in barriers.items()
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        seconds=config.seconds,
        claims=[
            accuracy("BSP", 0.906),
            accuracy("SSP, 4 ahead", 0.947),
            accuracy("PSP, 1 asked", 0.942),
            accuracy("ASP", 0.947),
            updates("BSP", 1160),
            updates("PSP, 4 asked", 1540),
            updates("SSP, 4 ahead", 2820),
            updates("ASP", 3180),
        ],
        figures=[
            figures.bars("test_error"),
            *(
                figures.curves("test_error", against=when, only={"barrier": shown})
                for when in ("seconds", "update")
            ),
            figures.staleness(),
        ],
        notes=(
            "In 200 s BSP makes 36 rounds and ASP 99; a slack of two tasks brings most"
            " of that. A sample of one is already a barrier (63 rounds). As each"
            " gradient is an update, BSP's staleness is no smaller than ASP's here, and"
            " what a barrier costs is time."
        ),
    )
