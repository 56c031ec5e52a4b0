"""Claims of Nguyen et al. about FedBuff, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, tuned
from experiments.results.metrics import TimeTo

_CONFIG = statements.config_of(__file__)
BUFFERED, FEDASYNC, SINGLE = _CONFIG.BUFFERED, _CONFIG.FEDASYNC, _CONFIG.SINGLE


def soon(config: ConfigDict, server: str) -> Measure:
    """Seconds of a server to the target."""
    return tuned(TimeTo("train_loss", config.target), server=server)


def until(config: ConfigDict, this: str, other: str) -> Measure:
    """Seconds of a server to the target, over the seconds of another."""
    return ratio(soon(config, this), soon(config, other))


def published(config: ConfigDict) -> list[Published]:
    """The claims about FedBuff and older methods."""
    source = "Nguyen et al. (2022), AISTATS, arXiv:2106.06639, abstract"
    return [
        Published(
            text="FedBuff is sooner at a training loss than the faster of two servers"
            " that update for each client: FedAsync, and FedBuff without a buffer",
            source=source,
            said="up to 2.5 times more efficient than asynchronous federated learning",
            setting="CelebA, Sentiment140 and CIFAR-10 (as we recall)",
            measure=ratio(
                least([soon(config, FEDASYNC), soon(config, SINGLE)]),
                soon(config, BUFFERED),
            ),
            at_least=1.0,
            bound_is_ours=True,
            tried="2.5 is the most among the settings of the source, so it bounds none"
            " of them from below. In the authors' code the server that updates for each"
            " client takes a step along its delta, as FedBuff without a buffer; a mix"
            " of models, as FedAsync, is an option. The buffer's size is not tuned.",
            chosen=claims.Chosen.LATER,
        ),
        Published(
            text="FedBuff is sooner at a training loss than FedAsync",
            source=source,
            said="up to 2.5 times more efficient than asynchronous federated learning",
            measure=until(config, FEDASYNC, BUFFERED),
            at_least=1.0,
            bound_is_ours=True,
            tried="The gain is of the server's rule, not of the buffer: a buffer of one"
            " needs 0.76 to 1.10 times FedBuff's time. It was the headline for a"
            " while.",
            chosen=claims.Chosen.LATER,
        ),
        Published(
            text="FedBuff is more efficient than synchronous federated learning",
            source=source,
            said="3.3 times more efficient",
            tried="No server here waits for a round of clients that it drew.",
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: a staleness, and times until the target."""
    stale = mean("staleness_mean", server=BUFFERED)  # theory: (20 - 1) / 10
    return {
        "Mean staleness of FedBuff": stale,
        "Seconds of FedBuff over FedAsync's": until(config, BUFFERED, FEDASYNC),
        "Seconds over FedAsync's, no buffer": until(config, SINGLE, FEDASYNC),
    }
