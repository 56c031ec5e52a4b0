"""Records of `configs/pipeline_edge.py`."""

from collections.abc import Callable

from ml_collections import ConfigDict

from experiments import statements
from experiments.results.estimates import Measure

EDGE = statements.config_of(__file__).EDGE


def edges(which: Callable[..., float]) -> Measure:
    """The smallest or largest edge of all pipelines, each over its limit."""

    def measure(run):
        return float(which(EDGE.with_column(run.results, run.curves)[EDGE.name]))

    return measure


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: by theory, the last step below the limit; seeds do not vary."""
    return {
        "Smallest edge over the limit": edges(min),
        "Largest edge over the limit": edges(max),
    }
