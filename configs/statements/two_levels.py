"""Claims of Mohamad, Alamri and Bouchachia about two levels, and records."""

import numpy as np
from ml_collections import ConfigDict

from experiments import claims, statements
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import extreme, ratio, share, soonest, tuned

seconds = statements.config_of(__file__).seconds


def published(config: ConfigDict) -> list[Published]:
    """The claims of the abstract about cores and workers, within the proof's bounds."""
    paper = dict(
        source="Mohamad, Alamri, Bouchachia (2022), arXiv:2210.02882, abstract"
    )
    paper["setting"] = "LDA by variational inference, and reinforcement learning"
    cores, workers = sorted(config.cores)[-2], max(config.workers)  # within the bounds

    def until(workers, cores):
        return soonest(seconds(config), workers=workers, cores=cores)

    def sooner(few_workers, few_cores):
        """How many times as fast many workers of many cores are."""
        return ratio(until(few_workers, few_cores), until(workers, cores))

    return [
        Published(
            text=f"{workers} workers of {cores} cores come to {config.target:g} nats"
            f" over the optimum before {workers} workers of one core, and before one"
            f" worker of {cores} cores",
            said="a speed-up with the number of cores and of workers",
            measure=extreme(np.min, [sooner(workers, 1), sooner(1, cores)]),
            at_least=1.0,
            bound_is_ours=True,
            tried="The smaller of both ratios of times. Logistic regression is convex,"
            " and the source is about losses that are not. Steps are a factor of 2"
            " apart.",
            chosen=claims.Chosen.UNSEEN,
            **paper,
        ),
        Published(
            text=f"They are there at least {workers * cores // 2} times as fast as one"
            " worker of one core",
            said="a speed-up with the number of cores and of workers",
            measure=sooner(1, 1),
            at_least=workers * cores / 2,
            bound_is_ours=True,
            tried="Half of a proportional speed-up. A core is a delay here; all cores"
            " of a worker compute at the same time.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text=f"Their excess loss after all {config.examples} gradients is at most"
            " twice the excess loss of one worker of one core",
            said="the rate of one worker, with up to N^(1/4) cores and N^(1/2) workers",
            measure=ratio(excess(workers, cores), excess(1, 1)),
            at_most=2.0,
            bound_is_ours=True,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: excess losses at the best step, and a share of lost seeds."""
    del config
    return {
        "Excess loss, 1 worker of 1 core": excess(1, 1),
        "Share lost at 0.0128, 64 workers of 32 cores": share(
            "ended_higher", workers=64, cores=32, learning_rate=0.0128
        ),
    }


def excess(workers: int, cores: int) -> Measure:
    """The training loss above the optimum, at the best step."""
    return tuned("excess_loss", workers=workers, cores=cores)
