"""What Maranjyan and Richtarik say of Ringleader, and records."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import tuned

_CONFIG = statements.config_of(__file__)
ALIKE, SLOW, UNLIKE = _CONFIG.ALIKE, _CONFIG.SLOW, _CONFIG.UNLIKE


def loss(method: str, data: str = UNLIKE, metric: str = "train_loss") -> Measure:
    """A loss of a method at its best step, with workers of unequal speeds."""
    return tuned(metric, method=method, data=data, speeds=SLOW)


def published(config: ConfigDict) -> list[Published]:
    """The paper's comparison."""
    del config
    return [
        Published(
            text="Where data differ, Ringleader has the optimal time complexity: it is"
            " ahead of Malenia SGD and of IA2SGD",
            source="Maranjyan, Richtarik (2025), arXiv:2509.22860, abstract",
            said="the first asynchronous SGD of optimal time complexity under"
            " heterogeneous data",
            setting="MNIST and Fashion-MNIST, 100 clients, Dirichlet 0.1, an MLP",
            tried="Neither of the two is here; ASGD and Rennala stand beside it.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """What slow data lose, and losses."""
    del config
    equal_data = loss("ASGD", ALIKE, "slow_data_excess_loss")
    return {
        "What slow data lose where data are alike, ASGD": equal_data,
        "ASGD's training loss, unequal data": loss("ASGD"),
        "Ringleader's": loss("Ringleader"),
    }
