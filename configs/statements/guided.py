"""Claims of Sharma about guided SGD, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import difference, ratio, tuned

GUIDED, UNVERIFIED, PLAIN = "up to 4", "4, unverified", "none"


def over_plain(replays: str, delay: float) -> Measure:
    """Training loss over the loss of SGD, each at its best step."""
    at = dict(mean_delay=delay)
    return ratio(*(tuned("train_loss", replays=r, **at) for r in (replays, PLAIN)))


def published(config: ConfigDict) -> list[Published]:
    """The claims with equal data, each method at its best step."""
    del config
    at = dict(mean_delay=16)
    accuracies = (tuned("test_accuracy", replays=r, **at) for r in (GUIDED, PLAIN))
    return [
        Published(
            text="At a mean delay of 16 guided SGD has a higher test accuracy than SGD",
            source="Sharma (2021), arXiv:2101.07259, abstract",
            said="it mitigates the impact of delay on classification accuracy",
            measure=difference(*accuracies),
            at_least=0.0,
            bound_is_ours=True,
            chosen=claims.Chosen.LATER,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: training losses over SGD's training loss."""
    del config
    return {
        "Loss, guided / SGD, mean delay 4": over_plain(GUIDED, 4),
        "Loss, guided / SGD, mean delay 16": over_plain(GUIDED, 16),
        "And without verification": over_plain(UNVERIFIED, 16),
    }
