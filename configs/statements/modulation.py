"""Claims about laws of staleness, and records of `configs/modulation.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned


def loss(optimizer: str, law: str) -> Measure:
    """Training loss at a mean delay of 16, at the best step."""
    return tuned("train_loss", optimizer=optimizer, law=law, mean_delay=16)


def published(config: ConfigDict) -> list[Published]:
    """The claims about laws of staleness, each at its best step."""
    return [
        Published(
            text="At a mean delay of 16, and at the best step of each, SGD with rates"
            " divided by staleness has a smaller training loss than SGD without a law",
            source="Zhang, Gupta, Lian, Liu (2016), arXiv:1511.05950, abstract",
            said="superior effectiveness, compared with the conventional ASGD",
            setting="a convolutional network on CIFAR-10, 30 learners, momentum 0.9",
            measure=ratio(loss("sgd", "inverse after"), loss("sgd", "none")),
            at_most=1.0,
            bound_is_ours=True,
            tried="Delays are geometric: in the source learners are equal. The momentum"
            " is searched too; before it was 0, and the law lost.",
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: losses at a mean delay of 16."""
    return {
        "Loss of Adam, no law": loss("adam", "none"),
        "Loss of Adam, inverse before": loss("adam", "inverse before"),
        "Loss of SGD, no law": loss("sgd", "none"),
        "Loss of SGD, root": loss("sgd", "root after"),
    }
