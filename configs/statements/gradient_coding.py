"""What Buyukates et al. say of dynamic clusters, and records."""

from ml_collections import ConfigDict

from experiments import Found, Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import Formed, mean, ratio

_CONFIG = statements.config_of(__file__)
ANEW, STAY = _CONFIG.ANEW, _CONFIG.STAY


def seconds(scheme: str, stragglers: str) -> Measure:
    """The simulated time of all updates."""
    return mean("seconds", scheme=scheme, stragglers=stragglers)


def dynamic(stragglers: str) -> Measure:
    """The time of dynamic clusters over the time of static clusters."""
    schemes = "dynamic clusters", "static clusters"
    return ratio(*(seconds(scheme, stragglers) for scheme in schemes))


def wins(found: Found) -> float:
    """Share of the seeds in which dynamic clusters take less time."""
    table = found.results[found.results["stragglers"] == STAY]
    table = table.groupby(["scheme", "seed"]).seconds.mean().unstack(0)
    return float((table["dynamic clusters"] < table["static clusters"]).mean())


def published(config: ConfigDict) -> list[Published]:
    """What dynamic clusters save."""
    del config
    return [
        Published(
            text="Where stragglers stay slow, dynamic clusters save 30 % of the time of"
            " static ones",
            source="Buyukates, Ozfatura, Ulukus, Gunduz (2020), arXiv:2011.01922, body",
            said="up to 30 % less mean completion time",
            setting="stragglers of two states that are correlated in time",
            measure=dynamic(STAY),
            at_most=0.7,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Times of both schemes; without memory the past says nothing of who is slow."""
    del config
    coded = ratio(seconds("static clusters", STAY), seconds("no coding", STAY))
    return {
        "Dynamic over static, stragglers stay slow": dynamic(STAY),
        "Dynamic over static, drawn anew": dynamic(ANEW),
        "Static over no coding, stragglers stay slow": coded,
        "Seeds in which dynamic is faster": Formed(wins, "share"),
    }
