"""What columns are called in titles and on axes, with their units."""

from typing import Any

_WORDS = {
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
    "train_error": "training error",
    "gap": "test loss - training loss",
    "learning_rate": "step size",
    "update": "updates",
    "seconds": "simulated time",
    "staleness_mean": "mean staleness",
    "staleness_p99": "staleness, 99th percentile",
    "staleness_max": "largest staleness",
    "decay_rate": "rate of decay",
    "dropped": "dropped gradients",
    "dropped_in_row": "gradients dropped in a row",
}
_UNITS = {
    "seconds": "s",
    "staleness_mean": "updates",
    "staleness_p99": "updates",
    "staleness_max": "updates",
    "decay_rate": "1 / simulated s",
    "delay": "updates",
    "mean_delay": "updates",
    "period": "updates",
    "period_now": "updates",
    "dropped": "share",
}


def words(column: str) -> str:
    """A column in words.

    Example:
        >>> words("train_loss"), words("batch_size")
        ('training loss', 'batch size')
    """
    along, to, rest = column.partition("_to_")
    if to:
        metric, _, value = rest.rpartition("_")
        return f"{words(along).split()[-1]} to {words(metric)} {value}"
    return _WORDS.get(column, column.replace("_", " "))


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
        column: of the results or the curves.
        loss_unit: of the task's loss; empty if it has none.

    Example:
        >>> with_unit("delay"), with_unit("test_loss", "nats")
        ('delay (updates)', 'test loss (nats)')
    """
    along, to, _ = column.partition("_to_")
    if to:
        unit = _UNITS.get(along, "")
    elif column.endswith(("accuracy", "error")):
        unit = "share"
    elif column.endswith("loss") or column == "gap":
        unit = loss_unit
    else:
        unit = _UNITS.get(column, "")
    return f"{words(column)} ({unit})" if unit else words(column)


def loss_unit(run: Any) -> str:
    """The unit of a run's loss: its tasks' fact `loss_unit`; of classifiers nats."""
    classifies = any(column.endswith("_accuracy") for column in run.results)
    return run.facts.get("loss_unit", "nats" if classifies else "")
