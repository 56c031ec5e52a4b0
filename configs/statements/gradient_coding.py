"""Claims of Buyukates et al. about dynamic clusters, and records."""

import functools

from ml_collections import ConfigDict

from experiments import Published, Run, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import Formed, least, mean, ratio

_CONFIG = statements.config_of(__file__)
ANEW, stragglers = _CONFIG.ANEW, _CONFIG.stragglers


def seconds(scheme: str, kind: str) -> Measure:
    """The simulated time of all updates."""
    return mean("seconds", scheme=scheme, stragglers=kind)


def dynamic(kind: str) -> Measure:
    """The time of dynamic clusters over the time of static clusters."""
    schemes = "dynamic clusters", "static clusters"
    return ratio(*(seconds(scheme, kind) for scheme in schemes))


def wins(run: Run, stay: float) -> float:
    """The share of seeds in which dynamic clusters take less time."""
    table = run.results[run.results["stragglers"] == stragglers(stay)]
    table = table.groupby(["scheme", "seed"]).seconds.mean().unstack(0)
    return float((table["dynamic clusters"] < table["static clusters"]).mean())


def published(config: ConfigDict) -> list[Published]:
    """The claims about the time that dynamic clusters save."""
    each = least([dynamic(stragglers(stay)) for stay in config.stay])
    paper = dict(
        source="Buyukates, Ozfatura, Ulukus, Gunduz (2020), arXiv:2011.01922,"
        " abstract (significant), number: body",
        said="up to 30 % less mean completion time",
        setting="stragglers of two states that are correlated in time",
        chosen=claims.Chosen.LATER,
    )
    return [
        Published(
            text="Dynamic clusters, whose workers hold a part of the data, save up to"
            " 30 % of the time of static clusters",
            tried="Here a worker may join each cluster. With the source's placement of"
            " data it can only join clusters whose data it holds.",
            **paper,
        ),
        Published(
            text="Dynamic clusters, whose workers hold all data, save at least 30 % of"
            " the time of static clusters for one kind of stragglers that other seeds"
            " chose among four",
            measure=Formed(each, "ratio"),
            at_most=0.7,
            no_effect=1.0,
            demonstration=True,
            tried="It is the most that any placement could save: no learning is in it.",
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: ratios of times, and a share of seeds."""
    short = min(config.stay)
    kind = stragglers(short)
    coded = ratio(seconds("static clusters", kind), seconds("no coding", kind))
    faster = functools.partial(wins, stay=short)
    return {
        "Dynamic over static, stragglers stay slow": dynamic(kind),
        "Dynamic over static, drawn anew": dynamic(ANEW),
        "Static over no coding, stragglers stay slow": coded,
        "Seeds in which dynamic is faster": Formed(faster, "share"),
    }
