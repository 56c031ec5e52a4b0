"""What rates of convergence are said to follow, and records of `configs/dasa.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, tuned
from experiments.results.metrics import TimeTo


def until_near(rule: str, largest: int) -> Measure:
    """Updates until the parameters are near; inf where some seed's never are."""
    return tuned(TimeTo("distance", 10.0, along="update"), rule=rule, largest=largest)


def slower(rule: str) -> Measure:
    """Updates with a largest delay of 500 over those with all delays 5."""
    return ratio(until_near(rule, 500), until_near(rule, 5))


def published(config: ConfigDict) -> list[Published]:
    """What the rate of each rule depends on; both laws have one mean delay."""
    del config
    dasa = dict(source="Dal Fabbro et al. (2024), arXiv:2403.17247")
    dasa["said"] = "its rate depends only on the mixing time and the mean delay"
    dasa |= dict(measure=slower("DASA"), at_least=0.8, at_most=1.25)
    plain = dict(source="Dal Fabbro et al. (2024), arXiv:2402.11800")
    plain["said"] = "its exponent is divided by the largest delay"
    plain |= dict(measure=slower("plain"), at_least=1.25)
    as_fast = "DASA follows the mean delay: it is as fast where the largest is 500"
    tried = "Step and reach tuned: where few delays are long, larger steps are stable."
    slow = "Plain steps follow the largest delay: they are slower there"
    return [
        Published(
            text="N agents that run DASA converge N times as fast as one",
            source="Dal Fabbro et al. (2024), arXiv:2403.17247, abstract",
            said="an N-fold convergence speedup under Markovian sampling",
            setting="theory, of stochastic approximation with N agents",
            tried="One agent learns here. A run needs several agents, each with a walk"
            " of its own, and a server that averages what they send.",
        ),
        Published(text=as_fast, bound_is_ours=True, tried=tried, **dasa),
        Published(text=slow, bound_is_ours=True, tried=tried, **plain),
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
