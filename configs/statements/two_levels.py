"""Claims of Mohamad, Alamri and Bouchachia about two levels, and records."""

import numpy as np
from ml_collections import ConfigDict

from experiments import claims, statements
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import extreme, ratio, tuned

seconds = statements.config_of(__file__).seconds


def published(config: ConfigDict) -> list[Published]:
    """The claims of the abstract about cores and workers, within the proof's bounds."""
    paper = dict(
        source="Mohamad, Alamri, Bouchachia (2022), arXiv:2210.02882, abstract"
    )
    paper["setting"] = "LDA by variational inference, and reinforcement learning"
    workers, cores = most(config)

    def sooner(few_workers, few_cores):
        """How many times as fast many workers of many cores are."""
        few = until(config, few_workers, few_cores)
        return ratio(few, until(config, workers, cores))

    return [
        Published(
            text=f"{workers} workers of {cores} cores come to {config.target:g} nats"
            f" over the optimum before {workers} workers of one core, and before one"
            f" worker of {cores} cores",
            said="a speed-up with the number of cores and of workers",
            measure=extreme(np.min, [sooner(workers, 1), sooner(1, cores)]),
            at_least=1.0,
            bound_is_ours=True,
            tried="The smaller of both ratios of times. Messages are free, and c cores"
            " take c gradients in the time of one, while the abstract is about the cost"
            " of communication. One core needs about 2,700 gradients, so that the"
            " proof covers 7 cores and 52 workers; 64 workers of 8 cores need 2.9 times"
            " as many gradients, so that they lack the rate of one worker. The task,"
            " logistic regression, is convex, and the theory of the source is about"
            " problems that are not.",
            chosen=claims.Chosen.UNSEEN,
            **paper,
        ),
        Published(
            text=f"Their excess loss after all {config.examples} gradients is at most"
            " twice the excess loss of one worker of one core",
            said="the rate of one worker, with up to N^(1/4) cores and N^(1/2) workers",
            tried="Steps are searched for the time to the target, and the losses at"
            " these steps after all gradients say nothing about the rate (0.27 times)."
            " At the best of listed steps for the loss at the end it was undecided:"
            " 1.3 to 2.8 times.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: the time of one worker of one core, and a speed-up."""
    alone = until(config, 1, 1)
    return {
        "Seconds, 1 worker of 1 core": alone,
        "Times as fast as 1 worker of 1 core": ratio(
            alone, until(config, *most(config))
        ),
    }


def most(config: ConfigDict) -> tuple[int, int]:
    """The largest numbers of workers and of cores within the bounds of the proof."""
    return max(config.workers), sorted(config.cores)[-2]


def until(config: ConfigDict, workers: int, cores: int) -> Measure:
    """Seconds to the target, at the step that is there first."""
    return tuned(seconds(config), workers=workers, cores=cores)
