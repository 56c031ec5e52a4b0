"""Records of `configs/rules.py`."""

from ml_collections import ConfigDict

from experiments import statements
from experiments.results.estimates import Measure
from experiments.results.runs import Run

late_gains = statements.config_of(__file__).late_gains


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: the gain of a rule that helps."""
    return {"Nats that late updates gain over plain delay": gain}


def gain(run: Run) -> float:
    """The gain of late updates with the first optimizer."""
    table = late_gains(run)
    return float(table[table["rule"] == "late updates"]["gain"].iloc[0])
