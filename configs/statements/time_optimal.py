"""What Maranjyan, Tyurin and Richtarik say of Ringmaster, and our numbers."""

from ml_collections import ConfigDict

from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import least, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """The order of three methods."""
    figure = dict(
        source="Maranjyan, Tyurin, Richtarik (2025), arXiv:2501.16168",
        setting="a quadratic, 6174 workers of t_i = i + |N(0, i)|, and MNIST",
        said="faster than Rennala and Delay-Adaptive ASGD",
        at_most=1.0,
        bound_is_ours=True,
    )
    return [
        Published(
            text=f"On 128 workers Ringmaster is faster than {other}",
            measure=ratio(until(config, "Ringmaster", 128), until(config, other, 128)),
            **figure,
        )
        for other in ("Rennala", "ASGD capped")
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Seconds on 32 and on 128 workers.

    Rennala drops each gradient of an earlier update, so a worker that is slower than an
    update never counts: its 128 workers are about as fast as 32 by construction.
    """
    kept = ("ASGD", 32), ("ASGD", 128), ("Ringmaster", 32)
    return {
        f"Seconds of {method} on {workers}": until(config, method, workers)
        for method, workers in kept
    } | {
        "Rennala, 128 over 32": ratio(
            until(config, "Rennala", 128), until(config, "Rennala", 32)
        )
    }


def until(config: ConfigDict, method: str, workers: int) -> Measure:
    """Seconds to the target, at the step and threshold that other seeds find best."""
    thresholds = {
        "Rennala": [f", {size} a batch" for size in config.batch],
        "Ringmaster": [f", below {bound}" for bound in config.bound],
    }
    return least(
        [
            tuned(
                TimeTo("gradient_norm", config.target),
                method=method + each,
                workers=workers,
            )
            for each in thresholds.get(method, [""])
        ]
    )
