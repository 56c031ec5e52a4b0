"""Claims of Maranjyan, Tyurin and Richtarik about Ringmaster, and records."""

from ml_collections import ConfigDict

from experiments import claims
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import least, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """The claims about more workers, and about the order of two methods."""
    source = "Maranjyan, Tyurin, Richtarik (2025), arXiv:2501.16168"
    paper = dict(
        setting="a quadratic, 6174 workers of t_i = i + |N(0, i)|, and MNIST",
        at_most=1.0,
        bound_is_ours=True,
    )

    def slower(method):
        """The time of 128 workers over the time of 32."""
        return ratio(*(until(config, method, workers) for workers in (128, 32)))

    both = (until(config, method, 128) for method in ("Ringmaster", "ASGD capped"))
    return [
        Published(
            text="From 32 to 128 workers the time of ASGD grows by a larger factor than"
            " the time of Ringmaster",
            source=f"{source}, abstract",
            said="ASGD becomes inefficient as the number of workers grows; Ringmaster"
            " has the optimal time complexity",
            measure=ratio(slower("Ringmaster"), slower("ASGD")),
            tried="The law of the workers' times decides: worker i takes i seconds in"
            " time_optimal:linear, as in the source, and sqrt(i) in time_optimal, where"
            " it is undecided. 128 workers are in place of the source's 6,174.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text="On 128 workers Ringmaster is faster than ASGD capped",
            source=f"{source}, the experiments",
            said="faster than Delay-Adaptive ASGD",
            measure=ratio(*both),
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: seconds on 32 and on 128 workers."""
    kept = ("ASGD", 32), ("ASGD", 128), ("Ringmaster", 32)
    return {
        f"Seconds of {method} on {workers}": until(config, method, workers)
        for method, workers in kept
    }


def until(config: ConfigDict, method: str, workers: int) -> Measure:
    """Seconds to the target, at the best step and threshold of other seeds."""
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
