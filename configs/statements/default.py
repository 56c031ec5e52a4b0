"""Records of `configs/default.py`."""

from ml_collections import ConfigDict

from experiments.results.estimates import Measure
from experiments.results.measures import tuned


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: test accuracies with the best step at each delay."""
    return {
        "Test accuracy without delay": tuned("test_accuracy", delay=0),
        "Test accuracy 4 updates late": tuned("test_accuracy", delay=4),
        "Test accuracy 32 updates late": tuned("test_accuracy", delay=32),
    }
