"""Claims of the method's authors, and records of `configs/adaptive_period.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned

ADAPTIVE = dict(method="adaptive")


def over_kept(metric: str, period: int) -> Measure:
    """A number of the adaptive period over the number of a fixed period."""
    adaptive = tuned(metric, **ADAPTIVE)
    return ratio(adaptive, tuned(metric, method="kept", period=period))


def published(config: ConfigDict) -> list[Published]:
    """The claims that following disagreement pays, and that few averages cost."""
    jiang = "Jiang, Agrawal (2020), arXiv:2007.06134, abstract"
    constant = dict(
        source=jiang,
        said="smaller training loss with less communication than a constant period",
        setting="GoogLeNet and VGG on CIFAR-10, ResNet-50 on ImageNet (as we recall)",
        at_most=1.0,
        bound_is_ours=True,
    )
    return [
        Published(
            text="The adaptive period ends with a smaller training loss than a kept"
            " period of 8, which takes 12 % more averages",
            measure=over_kept("train_loss", 8),
            tried="The test accuracies are not compared.",
            chosen=claims.Chosen.LATER,
            **constant,
        ),
        Published(
            text="It ends with a smaller training loss than a kept period of 16, which"
            " takes half as many averages",
            measure=over_kept("train_loss", 16),
            **constant,
        ),
        Published(
            text="The adaptive period is faster than averages at each step",
            source=jiang,
            said="1.14 to 1.27 times as fast, half the communication of quantization",
            tried="No time of an average is simulated here; averages are counted. A run"
            " needs the seconds of an average and of a gradient.",
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: loss and averages, each over the number of a fixed period."""
    first = config.first_period
    return {
        "Training loss, adaptive": tuned("train_loss", **ADAPTIVE),
        "Training loss, adaptive / first period kept": over_kept("train_loss", first),
        "Averages, adaptive / first period kept": over_kept("averages", first),
    }
