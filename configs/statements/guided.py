"""Claims of Sharma about guided SGD, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, ratio, tuned

GUIDED, UNVERIFIED, PLAIN = "up to 4", "4, unverified", "none"


def tuned_over_plain(delay: float) -> Measure:
    """Training loss of guided SGD over the loss of SGD, each at its best step."""
    at = dict(mean_delay=delay)
    return ratio(*(tuned("train_loss", replays=r, **at) for r in (GUIDED, PLAIN)))


def small_over_plain(replays: str) -> Measure:
    """Training loss over the loss of SGD, at a step of 0.01 and a mean delay of 16."""
    at = dict(learning_rate=0.01, mean_delay=16)
    return ratio(*(mean("train_loss", replays=r, **at) for r in (replays, PLAIN)))


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
        "Loss, guided / SGD, mean delay 4": tuned_over_plain(4),
        "Loss, guided / SGD, mean delay 16": tuned_over_plain(16),
        "Loss, guided / SGD, step 0.01": small_over_plain(GUIDED),
        "And without verification": small_over_plain(UNVERIFIED),
    }
