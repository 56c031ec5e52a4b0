"""Records of `configs/real_trace.py`, of the log that it simulates."""

from ml_collections import ConfigDict

from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, ratio, tuned


def late(metric: str, law: str) -> Measure:
    """A metric of late gradients under a law."""
    return tuned(metric, gradients="late", law=law)


def cost(metric: str) -> Measure:
    """A metric of late gradients without a law, less the metric of fresh gradients."""
    return difference(late(metric, "none"), tuned(metric, gradients="fresh"))


def by(law: str) -> Measure:
    """The training loss of late gradients under a law over the loss without a law."""
    return ratio(late("train_loss", law), late("train_loss", "none"))


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: numbers of the simulated log."""
    return {
        "Training loss, late, no law": late("train_loss", "none"),
        "What staleness adds to it": cost("train_loss"),
        "Training loss, inverse law over none": by("inverse"),
        "Mean staleness": mean("staleness_mean", gradients="late"),
    }
