"""The names of columns in titles and on axes, with their units."""

import re
from typing import Any

_OF_UPDATES = ("delay", "mean_delay", "period", "period_now")
_COLUMNS = {  # (in words, unit)
    "train_loss": ("training loss", ""),
    "train_accuracy": ("training accuracy", "share"),
    "train_error": ("training error", "share"),
    "gap": ("test loss - training loss", ""),
    "learning_rate": ("step size", ""),
    "update": ("updates", ""),
    "seconds": ("simulated time", "s"),
    "staleness_mean": ("mean staleness", "updates"),
    "staleness_p99": ("staleness, 99th percentile", "updates"),
    "staleness_max": ("largest staleness", "updates"),
    "decay_rate": ("rate of decay", "1 / simulated s"),
    "dropped": ("dropped gradients", "share"),
    "dropped_in_row": ("gradients dropped in a row", ""),
    **{name: (name.replace("_", " "), "updates") for name in _OF_UPDATES},
}


_TIME_TO = re.compile(r"(.+?)_to_(.+)_(-?\d[\d.e+-]*)")
"""The column of a `metrics.TimeTo`: its clock, its metric and its value."""


def words(column: str) -> str:
    """A column in words.

    Example:
        >>> words("train_loss"), words("batch_size"), words("distance_to_optimum")
        ('training loss', 'batch size', 'distance to optimum')
        >>> words("seconds_to_train_loss_0.3")
        'time to training loss 0.3'
    """
    if time_to := _TIME_TO.fullmatch(column):
        clock, metric, value = time_to.groups()
        return f"{words(clock).removeprefix('simulated ')} to {words(metric)} {value}"
    if column.startswith("largest_stable_"):
        return f"largest stable {words(column.removeprefix('largest_stable_'))}"
    return _COLUMNS.get(column, (column.replace("_", " "), ""))[0]


def do(column: str) -> str:
    """The verb and the column of a question.

    Example:
        >>> f"How {do('updates')} change?", f"How {do('test_loss')} change?"
        ('How do the updates change?', 'How does the test loss change?')
    """
    name = words(column)
    several = name.endswith("s") and not name.endswith("ss")
    return f"do the {name}" if several else f"does the {name}"


def with_unit(column: str, loss_unit: str = "") -> str:
    """A column in words, with its unit in brackets.

    Args:
        column: a column of the results or the curves.
        loss_unit: the unit of the task's loss; empty if it has none.

    Example:
        >>> with_unit("delay"), with_unit("test_loss", "nats")
        ('delay (updates)', 'test loss (nats)')
    """
    time_to = _TIME_TO.fullmatch(column)
    unit = _COLUMNS.get(time_to[1] if time_to else column, ("", ""))[1]
    if column.endswith(("accuracy", "error")):
        unit = "share"
    elif column.endswith("loss") or column == "gap":
        unit = loss_unit
    return f"{words(column)} ({unit})" if unit else words(column)


def loss_unit(run: Any) -> str:
    """The unit of a run's loss: the tasks' fact `loss_unit`; nats for classifiers."""
    classifies = any(column.endswith("_accuracy") for column in run.results)
    return run.facts.get("loss_unit", "nats" if classifies else "")
