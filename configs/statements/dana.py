"""Claims of DANA's authors, and records of `configs/dana.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import difference, least, ratio, tuned


def measure_of(metric: str, momentum: str, workers: int, **decay: float) -> Measure:
    """A metric at the best step, and at the best decay if none is given."""
    return tuned(metric, momentum=momentum, workers=workers, **decay)


def less(**decay: float) -> Measure:
    """Test error of DANA less the best error of a server's momentum, 32 workers."""

    def error(momentum):
        return measure_of("test_error", momentum, 32, **decay)

    return difference(error("DANA"), least([error("heavy ball"), error("Nesterov")]))


def published(config: ConfigDict) -> list[Published]:
    """The claims with the momentum tuned, and with 0.9 as in the paper."""
    del config
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
            measure=less(),
            chosen=claims.Chosen.UNSEEN,
            **paper,
        ),
        Published(
            text="The same, with a momentum of 0.9 for all",
            measure=less(decay=0.9),
            chosen=claims.Chosen.UNSEEN,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: losses over Nesterov's, and test errors with 32 workers."""
    del config

    def over_nesterov(workers):
        both = ("DANA", "Nesterov")
        return ratio(*(measure_of("train_loss", m, workers, decay=0.9) for m in both))

    error = "Test error of 32 workers"
    return {
        "Loss of one worker at 0.9, DANA / Nesterov: the same": over_nesterov(1),
        f"{error} at 0.9, DANA": measure_of("test_error", "DANA", 32, decay=0.9),
        f"{error}, Nesterov": measure_of("test_error", "Nesterov", 32, decay=0.9),
        f"{error}, no momentum": measure_of("test_error", "heavy ball", 32, decay=0.0),
    }
