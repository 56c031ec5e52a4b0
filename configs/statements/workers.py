"""Claims of Yu, Chen and Poor about many workers on a quadratic, and records."""

import numpy as np
from ml_collections import ConfigDict

from experiments.results import analysis
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """The claims of the paper, on regular workers."""
    single = len(config.eigenvalues) == 1
    few = 8 if single else 24
    yu = dict(
        source="Yu, Chen, Poor (2024), arXiv:2406.11159, abstract",
        setting="synthetic models and MNIST",
        bound_is_ours=True,
        demonstration=True,
        tried="A quadratic without noise, and one step size that is not tuned: the"
        " delay equation has the answer. An outside reader refused it as a headline.",
    )

    def over(these, others):
        return ratio(*(until(config, "gamma 16", count) for count in (these, others)))

    return [
        Published(
            text="A small staleness does not slow training: with regular times (gamma"
            " 16) four workers need a quarter of the seconds of one, or less",
            said="small staleness does not necessarily slow convergence",
            measure=over(1, 4),
            at_least=4.0,
            **yu,
        ),
        Published(
            text="More workers do not always help: with regular times 32 are slower"
            f" than {few}",
            said="more activated workers do not always help",
            measure=over(32, few),
            at_least=1.0,
            **yu,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: seconds to the target, a share that gets there, a mean staleness."""
    seconds = {"gamma 16": (1, 8, 24), "gamma 2": (24, 32)}
    if len(config.eigenvalues) == 1:
        seconds = {"gamma 16": (1, 8, 16), "gamma 2": (8, 32), "exponential": (8, 96)}

    def arrived(run):
        curves = analysis.where(run.curves, law="gamma 16", workers=32)
        times = analysis.time_to(curves, "train_loss", config.target)
        return np.isfinite(times).mean()

    measures = {
        f"Seconds, {law}, P = {count}": until(config, law, count)
        for law, counts in seconds.items()
        for count in counts
    }
    return measures | {
        "Share of seeds that get there, P = 32": arrived,
        "Mean staleness, P = 8": mean("staleness_mean", law="gamma 16", workers=8),
    }


def until(config: ConfigDict, law: str, workers: int) -> Measure:
    """Simulated seconds until the target; inf if a seed never gets there."""
    return tuned(TimeTo("train_loss", config.target), law=law, workers=workers)
