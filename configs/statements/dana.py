"""Claims of DANA's authors, and records of `configs/dana.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import difference, least, tuned

_CONFIG = statements.config_of(__file__)
NONE, SEARCHED, GIVEN = _CONFIG.NONE, _CONFIG.SEARCHED, _CONFIG.GIVEN


def error(momentum: str, beta: str | None = SEARCHED) -> Measure:
    """Test error of 32 workers at the best step, and at the best or given momentum."""
    return tuned("test_error", momentum=momentum, workers=32, beta=beta)


def less(beta: str) -> Measure:
    """Test error of DANA less the best error of a server's momentum, 32 workers."""
    others = [error(name, beta) for name in ("heavy ball", "Nesterov")]
    return difference(error("DANA", beta), least(others))


def published(config: ConfigDict) -> list[Published]:
    """The claims with the momentum tuned, and with 0.9 as in the paper."""
    paper = dict(at_most=0.0, bound_is_ours=True)
    paper["said"] = "it outperforms existing methods in final accuracy"
    paper["source"] = (
        "Hakimi, Barkai, Gabel, Schuster (2019), arXiv:1907.11612, abstract"
    )
    paper["setting"] = "CIFAR and ImageNet, up to 64 asynchronous workers"
    return [
        Published(
            text="With 32 workers, and the momentum of each tuned, down to none, DANA"
            " has a smaller test error than the better of heavy ball and Nesterov's"
            " momentum on the server",
            measure=less(SEARCHED),
            tried="Both rivals are best without momentum here. DC-ASGD and Multi-ASGD,"
            " which are rivals in the source, are not here. The answer has a slow"
            " momentum, which knows no worker, beside DANA.",
            chosen=claims.Chosen.UNSEEN,
            **paper,
        ),
        Published(
            text="The same, with a momentum of 0.9 for all",
            measure=less(GIVEN),
            chosen=claims.Chosen.UNSEEN,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: test errors with 32 workers."""
    of = "Test error of 32 workers"
    return {
        f"{of} at 0.9, DANA": error("DANA", GIVEN),
        f"{of} at 0.9, Nesterov": error("Nesterov", GIVEN),
        f"{of}, Nesterov": error("Nesterov"),
        f"{of}, no momentum": error(NONE, None),
    }
