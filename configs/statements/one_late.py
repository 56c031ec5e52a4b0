"""A claim about the cost of one late update, and records of `configs/one_late.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, ratio, tuned


def loss(name: str, delay: int) -> Measure:
    """Test loss in nats at the optimum of step and momentum."""
    return tuned("test_loss", optimizer=name, delay=delay)


def gap(name: str) -> Measure:
    """The cost of one late update, nats."""
    return difference(loss(name, 1), loss(name, 0))


def published(config: ConfigDict) -> list[Published]:
    """The claim; its bound is the ratio of the source's two numbers."""
    return [
        Published(
            text="One late update costs Muon at most 0.06 times what it costs Adam",
            source="Zmushko et al. (2026), arXiv:2606.30634, abstract; its numbers are"
            " from the body (as we recall)",
            said="a loss gap of 0.012 for Muon, and above 0.2 for AdamW",
            setting="language models, PipeDream-2BW",
            measure=ratio(gap("Muon"), gap("Adam")),
            at_most=0.06,
            no_effect=1.0,
            tried="Ours has 110,000 parameters and trains for 400 updates; theirs have"
            " 360 million and more.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: the losses, and the cost of one late update."""
    return {
        "Test loss of Adam": loss("Adam", 0),
        "Test loss of Muon": loss("Muon", 0),
        "Cost of 1, Adam": gap("Adam"),
        "Cost of 1, Muon": gap("Muon"),
    }
