"""Claims of Wongpanich, You and Demmel about both kinds of solvers, and records."""

import numpy as np
from ml_collections import ConfigDict

from experiments import claims
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import extreme, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """The claims about the faster solver at both ends, and with large batches."""
    few, many = min(config.batch_size), max(config.batch_size)
    quick, slow = min(config.latency_seconds), max(config.latency_seconds)
    paper = dict(
        source="Wongpanich, You, Demmel (2020), HPC Asia, abstract",
        setting="ResNet-50 and others on ImageNet, up to 217,600 cores",
        bound_is_ours=True,
    )

    ahead = extreme(
        np.min,
        [
            times(config, few, quick),
            ratio(*(until(config, m, few, slow) for m in ("all-reduce", "EA-wild"))),
        ],
    )

    return [
        Published(
            text=f"With batches of {few}, the all-reduce is there first if messages"
            f" take {quick:g} s, and EA-wild if they take {slow:g} s",
            said="a high ratio of computation to communication favors synchronous"
            " solvers, a low one asynchronous solvers",
            measure=ahead,
            at_least=1.0,
            tried="The smaller of both ratios of times. Only the messages differ. If"
            " batches grow instead, the ratio rises too, but EA-wild gains on the"
            " all-reduce at each latency, as larger batches also need fewer updates."
            " The elastic rate is not searched.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text=f"With batches of {many} and quick messages, the all-reduce is there"
            " first",
            said="a high ratio of computation to communication favors synchronous"
            " solvers",
            measure=times(config, many, quick),
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
        f"{text} 32, messages of 0.01 s": times(config, 32, 0.01),
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
