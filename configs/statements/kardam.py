"""Claims of Kardam's authors, and records of `configs/kardam.py`."""

import functools

import numpy as np
from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import (
    difference,
    extreme,
    mean,
    ratio,
    soonest,
    tuned,
)
from experiments.results.metrics import TimeTo

ALONE = statements.config_of(__file__).ALONE

GUESS = 0.9  # the test error of a guess
refused = functools.partial(tuned, "dropped", server="Kardam", attack="none")


def error(server: str, times: str = "equal", **where: float | str) -> Measure:
    """Test error, by default with a sign flip; a seed that ends higher has `GUESS`."""
    at = dict(server=server, times=times, attack="sign flip") | where
    return tuned("test_error", lost=GUESS, **at)


def harm(times: str) -> Measure:
    """Kardam's error less plain SGD's without an attack; the larger of two attacks."""
    honest = error("plain", times, attack="none")
    each = [
        difference(error("Kardam", times, attack=attack), honest)
        for attack in ("sign flip", "noise")
    ]
    return extreme(np.max, each)


def slowdown(config: ConfigDict, server: str, times: str) -> Measure:
    """Updates of an undamped server over the updates of plain SGD."""
    time = TimeTo("train_loss", config.target, along="update")

    def updates(server, **damping):
        return soonest(time, server=server, times=times, attack="none", **damping)

    return ratio(updates(server, damping=0.0), updates("plain"))


def published(config: ConfigDict) -> list[Published]:
    """The claims about Kardam with liars, and its cost without liars."""
    paper = dict(source="Damaskinos et al. (2018), arXiv:1802.07928, abstract")
    paper["setting"] = "CIFAR-100 and EMNIST"
    more = difference(*(error(server, attack="none") for server in ("Kardam", "plain")))
    slowed = dict(
        said="a slowdown of less than f / n, in theory and experiment",
        at_most=1 / (1 - len(config.attackers) / config.workers),
        bound_is_ours=True,
        **paper,
    )
    return [
        Published(
            text="Where nobody lies, Kardam slows the training down by less than f / n",
            said="a slowdown of less than f / n, in theory and experiment",
            tried="The verdict depends on a form of the frequency filter that is not"
            " clear to us. The Lipschitz filter alone is within our bound if times are"
            " equal, and beyond it if they are memoryless; with our frequency filter,"
            " in its strict form, Kardam is beyond it, as statements below say. The"
            " next one was the headline before.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text="Where nobody lies, equal times: Kardam's two filters, without"
            " damping, need at most 1 / (1 - f / n) times the updates of plain SGD to a"
            " training loss",
            measure=slowdown(config, "Kardam", "equal"),
            tried="Refused gradients count as updates. Steps are the best of a list"
            " with a factor of 3; a parabola through the best three gives 1.60. The"
            " frequency filter decides: the Lipschitz filter alone is within the bound,"
            " as a statement below says. That a slowdown of f / n means 1 / (1 - f / n)"
            " times the updates is our reading. It was the headline before.",
            chosen=claims.Chosen.LATER,
            **slowed,
        ),
        Published(
            text="Three of ten lie, equal times: Kardam's test error, with both"
            " filters, is at most 0.05 above plain SGD's without liars, under sign flip"
            " and under noise: the larger of the two differences counts",
            said="resilience against 1/3 of the workers",
            measure=harm("equal"),
            at_most=0.05,
            bound_is_ours=True,
            tried="Step and damping are the best for each server, attack and law of"
            " times, in lists with a factor of 3. Plain SGD is 0.31 above under noise,"
            " and no better than a guess under a sign flip.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text="Three of ten lie, memoryless times: Kardam's test error is at most"
            " 0.05 above plain SGD's without liars, under sign flip and under noise",
            said="resilience against 1/3 of the workers",
            measure=harm("memoryless"),
            at_most=0.05,
            bound_is_ours=True,
            tried="Our frequency filter, in its strict form, refuses two thirds of"
            " honest gradients; after that lies pass, and under noise Kardam is no"
            " better than no filter.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        *(
            Published(
                text=f"Where nobody lies, {times} times: the Lipschitz filter alone,"
                " without damping, needs at most 1 / (1 - f / n) times the updates of"
                " plain SGD to a training loss",
                measure=slowdown(config, ALONE, times),
                tried="The frequency filter, in our strict form, refuses 2 f / n of an"
                " honest stream in random order by construction, so it is not in this"
                " number. Before, the larger ratio of both laws of times was one"
                " statement.",
                chosen=claims.Chosen.LATER,
                **slowed,
            )
            for times in ("equal", "memoryless")
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
    """The records: a share refused, and test errors, by default with equal times."""
    gone = mean("ended_higher", server="plain", attack="sign flip")
    damped = error("Kardam", "memoryless", damping=0.2)
    return {
        "Refused of honest memoryless workers": refused(times="memoryless"),
        "Plain runs that end higher, sign flip": gone,
        "Error of clipping, sign flip": error("clipped"),
        "Error of Kardam, noise": error("Kardam", attack="noise"),
        "Of Kardam damped, memoryless, sign flip": damped,
    }
