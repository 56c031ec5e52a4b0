"""Claims of Maranjyan and Richtarik about Ringleader, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, ratio, tuned

_CONFIG = statements.config_of(__file__)
ALIKE, SLOW, UNLIKE = _CONFIG.ALIKE, _CONFIG.SLOW, _CONFIG.UNLIKE


def loss(method: str, data: str = UNLIKE, metric: str = "excess_loss") -> Measure:
    """A loss of a method at its best step, with workers of unequal speeds."""
    return tuned(metric, method=method, data=data, speeds=SLOW)


def published(config: ConfigDict) -> list[Published]:
    """The claims about the methods that are here, and the paper's comparison."""
    paper = dict(source="Maranjyan, Richtarik (2025), arXiv:2509.22860, abstract")
    paper["said"] = (
        "the first asynchronous SGD of optimal time complexity under heterogeneous data"
    )
    paper["setting"] = "MNIST and Fashion-MNIST, 100 clients, Dirichlet 0.1, an MLP"
    rivals = [loss("IA2SGD"), *(loss(f"Malenia {h:g}") for h in config.harmonic_mean)]
    others = [loss("ASGD"), loss("Rennala")]
    return [
        Published(
            text="With unequal data and speeds Ringleader ends closer to the least loss"
            " than the best of Malenia SGD and IA2SGD",
            measure=ratio(loss("Ringleader"), least(rivals)),
            at_most=1.0,
            bound_is_ours=True,
            tried="The abstract names no rival; the body of the paper has these two."
            " By the theory Malenia is optimal too, but not asynchronous. Malenia"
            " waits for one gradient of each of the eight workers, as in code of the"
            " authors, or for a harmonic mean of two. IA2SGD ends nearest to the least"
            " loss. All seeds have one division of the data, so the interval lacks its"
            " spread. The source has 100 workers.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text="With unequal data and speeds Ringleader ends closer to the least loss"
            " than the better of ASGD and Rennala",
            measure=ratio(loss("Ringleader"), least(others)),
            at_most=1.0,
            bound_is_ours=True,
            demonstration=True,
            tried="ASGD and Rennala have another fixed point if data differ, so that no"
            " plausible run could contradict it. All have the same time and their best"
            " step. The loss is the mean over the workers, strongly convex.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: the excess loss on the data of slow workers, and losses."""
    equal_data = loss("ASGD", ALIKE, "slow_data_excess_loss")
    return {
        "What slow data lose where data are alike, ASGD": equal_data,
        "Ringleader's excess loss": loss("Ringleader"),
    }
