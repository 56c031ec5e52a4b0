"""Claims of A2SGD's authors, and records of `configs/a2sgd.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, tuned


def accuracies(other: str, seconds: float) -> Measure:
    """Test accuracy of A2SGD over the accuracy of another, each at its best step."""

    def measure(method):
        return tuned("test_accuracy", method=method, transfer_seconds=seconds)

    return ratio(measure("A2SGD"), measure(other))


def published(config: ConfigDict) -> list[Published]:
    """The claims that A2SGD converges as an all-reduce does, and saves time."""
    paper = dict(
        source="Bhattacharya, Yu, Chowdhury (2020), arXiv:2006.07405, abstract"
    )
    return [
        Published(
            text="After as many steps A2SGD, in our reading, has at least 0.98 times"
            " the accuracy of SGD with an all-reduce",
            said="converges similarly like the default distributed SGD",
            setting="theory, and an LSTM on Penn Treebank, among others",
            measure=accuracies("all-reduce", 0.0),
            at_least=0.98,
            bound_is_ours=True,
            tried="The text of the paper was not at hand: the rule is as it is commonly"
            " reported. The mean of the workers' models is judged, after about 860"
            " steps, and workers that send nothing end more accurate (0.957 against"
            " 0.931): perhaps it is not the rule of the paper.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text="A2SGD needs less time in total than Top-K and QSGD",
            said="3.2 times less than Top-K, 23.2 times less than QSGD",
            setting="an LSTM on Penn Treebank",
            tried="The time that compression itself takes is not simulated.",
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: steps, and accuracy over all-reduce and over silent workers."""
    slow = max(config.transfer_seconds)

    def steps(seconds):
        return mean("updates", method="A2SGD", transfer_seconds=seconds)

    return {
        "Steps of A2SGD, slowest link / free link": ratio(steps(slow), steps(0.0)),
        "Accuracy, A2SGD / all-reduce, slowest link": accuracies("all-reduce", slow),
        "Accuracy, A2SGD / all-reduce, free link": accuracies("all-reduce", 0.0),
        "Accuracy, A2SGD / nothing sent, free link": accuracies("nothing sent", 0.0),
    }
