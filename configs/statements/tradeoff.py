"""Claims of Zhang et al. about accuracy and run time, and records."""

from ml_collections import ConfigDict

from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, ratio, tuned


def published(config: ConfigDict) -> list[Published]:
    """The claims about accuracies; run times depend on an assumed cost."""
    zhang = "Zhang, Gupta, Lian, Liu (2016), arXiv:1511.05950, Section 5.1"
    accurate = Published(
        text="P-softsync of thirty workers ends as accurate as hardsync",
        source=zhang,
        said="about the same error, 18 %, for all n",
        setting="a convolutional network on CIFAR-10, 30 learners of 4 examples",
        measure=less_accurate("P-softsync"),
        at_least=-0.01,
        bound_is_ours=True,
    )
    fast = Published(
        text="Thirty learners make an epoch 22 to 28 times faster than one",
        source=zhang,
        said="22 to 28 times",
        tried=f"The {config.overhead_seconds} s of a gradient are assumed here.",
    )
    return [accurate, fast]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: accuracies of thirty workers, and relative run times."""
    return {
        "Accuracy, hardsync": accuracy("hardsync"),
        "Accuracy, 30-softsync": accuracy("P-softsync"),
        "Time of one worker over 30": seconds("hardsync", 1),
        "Time, 30-softsync": seconds("P-softsync", 30),
    }


def accuracy(protocol: str) -> Measure:
    """Test accuracy of thirty workers at the best step and momentum."""
    return tuned("test_accuracy", protocol=protocol, workers=30)


def less_accurate(protocol: str) -> Measure:
    """Test accuracy of thirty workers less hardsync's test accuracy."""
    return difference(accuracy(protocol), accuracy("hardsync"))


def seconds(protocol: str, workers: int) -> Measure:
    """The simulated time of the run, over hardsync's time with all workers."""
    run = mean("seconds", protocol=protocol, workers=workers)
    return ratio(run, mean("seconds", protocol="hardsync", workers=30))
