"""What Kardam's authors say, and records of `configs/kardam.py`."""

import functools

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, tuned

GUESS = 0.9  # the test error of a guess
refused = functools.partial(tuned, "dropped", server="Kardam", attack="none")


def error(server: str, times: str = "equal", **where: float | str) -> Measure:
    """Test error, of a sign flip if not said; a seed that ends higher has a guess's."""
    at = dict(server=server, times=times, attack="sign flip") | where
    return tuned("test_error", lost=GUESS, **at)


def published(config: ConfigDict) -> list[Published]:
    """What it costs without liars, and with them."""
    paper = dict(source="Damaskinos et al. (2018), arXiv:1802.07928, abstract")
    paper["setting"] = "CIFAR-100 and EMNIST"
    more = difference(*(error(server, attack="none") for server in ("Kardam", "plain")))
    return [
        Published(
            text="Where nobody lies, less than f / n of the gradients are refused, at"
            " memoryless times (our reading of the slowdown)",
            said="a slowdown of less than f / n",
            measure=refused(times="memoryless"),
            at_most=len(config.attackers) / config.workers,
            tried=claims.CHOSEN_LATER,
            **paper,
        ),
        Published(
            text="Three of ten lie, equal times: the error of Kardam is below half of a"
            " guess's",
            said="resilience against 1/3 of the workers",
            measure=error("Kardam"),
            at_most=GUESS / 2,
            bound_is_ours=True,
            tried="Errors of an earlier, untuned run were in view of this bound.",
            **paper,
        ),
        Published(
            text="Where nobody lies, Kardam's test error is that of plain SGD",
            said="it does not introduce additional noise",
            measure=more,
            at_most=0.01,
            bound_is_ours=True,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """A share refused, and test errors, with equal times if not said otherwise."""
    del config
    gone = mean("ended_higher", server="plain", attack="sign flip")
    damped = error("Kardam", "memoryless", damping=0.2)
    return {
        "Refused of honest memoryless workers": refused(times="memoryless"),
        "Plain runs that end higher, sign flip": gone,
        "Error of clipping, sign flip": error("clipped"),
        "Error of Kardam, noise": error("Kardam", attack="noise"),
        "Of Kardam damped, memoryless, sign flip": damped,
    }
