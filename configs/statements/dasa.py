"""What rates of convergence are said to follow, and records of `configs/dasa.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import mean, tuned
from experiments.results.metrics import TimeTo


def until_near(rule: str, largest: int) -> Measure:
    """Updates until the parameters are near; inf where some seed's never are."""
    return tuned(TimeTo("distance", 10.0, along="update"), rule=rule, largest=largest)


def published(config: ConfigDict) -> list[Published]:
    """What the abstract claims of N agents."""
    del config
    return [
        Published(
            text="N agents that run DASA converge N times as fast as one",
            source="Dal Fabbro et al. (2024), arXiv:2403.17247, abstract",
            said="an N-fold convergence speedup under Markovian sampling",
            setting="theory, of stochastic approximation with N agents",
            tried="One agent learns here. A run needs several agents, each with a walk"
            " of its own, and a server that averages what they send.",
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Updates until near, and the mean delay of the law with the longest."""
    del config
    return {
        "Mean delay, largest 500": mean("staleness_mean", largest=500),
        "Updates, DASA, largest 500": until_near("DASA", 500),
        "Updates, DASA, all 5": until_near("DASA", 5),
        "Updates, plain, largest 500": until_near("plain", 500),
        "Updates, plain, all 5": until_near("plain", 5),
    }
