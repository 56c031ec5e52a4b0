"""Claims of Wongpanich, You and Demmel about both kinds of solvers, and records."""

import numpy as np
from ml_collections import ConfigDict

from experiments import claims
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import extreme, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """The claims about the faster solver at both ends, and at small, quick batches."""
    few, many = min(config.batch_size), max(config.batch_size)
    quick, slow = min(config.latency_seconds), max(config.latency_seconds)
    paper = dict(
        source="Wongpanich, You, Demmel (2020), HPC Asia, abstract",
        setting="ResNet-50 and others on ImageNet, up to 217,600 cores",
        bound_is_ours=True,
    )

    large, small = (times(config, batch, quick) for batch in (many, few))
    slowed = ratio(
        *(until(config, method, few, slow) for method in ("all-reduce", "EA-wild"))
    )

    return [
        Published(
            text="With large batches and quick messages the all-reduce is there first,"
            " and EA-wild with small batches and slow messages",
            said="a high ratio of computation to communication favors synchronous"
            " solvers, a low one asynchronous solvers",
            measure=extreme(np.min, [large, slowed]),
            at_least=1.0,
            tried="The smaller of both ratios of times. Batches decide how long a"
            " gradient takes.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text="Small batches, quick messages: the all-reduce is there first",
            said="this ratio of computation to communication favors synchronous"
            " solvers",
            measure=small,
            at_least=1.0,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: times of EA-wild over the all-reduce, and one time in seconds."""
    text = "Seconds of EA-wild / all-reduce, batch"
    return {
        "Seconds of the all-reduce, batch 8, 0.01 s": until(
            config, "all-reduce", 8, 0.01
        ),
        f"{text} 2, messages of 0.01 s": times(config, 2, 0.01),
        f"{text} 8, messages of 0.01 s": times(config, 8, 0.01),
        f"{text} 8, messages of 1 s": times(config, 8, 1.0),
    }


def times(config: ConfigDict, batch: int, latency: float) -> Measure:
    """Seconds of EA-wild as a multiple of the all-reduce's seconds."""
    return ratio(
        until(config, "EA-wild", batch, latency),
        until(config, "all-reduce", batch, latency),
    )


def until(config: ConfigDict, method: str, batch: int, latency: float) -> Measure:
    """Simulated seconds until the target; inf if a seed never gets there."""
    where = dict(method=method, batch_size=batch, latency_seconds=latency)
    return tuned(TimeTo("train_loss", config.target), **where)
