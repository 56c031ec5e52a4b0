"""The columns of a run's tables, and the names that settings may not have."""

from collections.abc import Iterable

CLOCKS = ("seed", "update", "updates", "examples", "seconds")
"""The seed of a row, and its time."""

FATES = ("diverged", "diverged_update", "ended_higher", "dropped", "dropped_in_row")
FATES += ("staleness_mean", "staleness_p99", "staleness_max")
"""What the runner counts in each cell."""

SEARCH = ("program", "series", "score", "point", "found", "why", "trainings")
"""The columns that a search writes about its trainings and optima."""

OURS = frozenset((*CLOCKS, *FATES, "run"))
"""Columns that the runner and its analysis write."""


def check_setting(name: str, what: str, *, searched: bool = False) -> None:
    """Checks that an axis or a label does not have the name of a runner's column.

    Args:
        name: the name of the axis or label.
        what: describes it, for the error.
        searched: whether the experiment searches a number.

    Raises:
        ValueError: if the runner writes a column of this name.

    Example:
        >>> check_setting("seed", "`grid` has the axis")
        Traceback (most recent call last):
        ValueError: `grid` has the axis 'seed', a column that the runner writes: \
choose another name (seeds are `seeds`).
    """
    if name in OURS or (searched and name in SEARCH):
        remedy = " (seeds are `seeds`)" * (name == "seed")
        raise ValueError(
            f"{what} {name!r}, a column that the runner writes: choose another"
            f" name{remedy}."
        )


def check_metrics(metrics: Iterable[str], settings: Iterable[str]) -> None:
    """Checks that no metric has the name of another column.

    Args:
        metrics: the metrics of the task's `evaluate` and the experiment's `measure`.
        settings: the labels and axes.

    Raises:
        ValueError: if a metric has such a name, or if `train_loss` is missing.

    Example:
        >>> check_metrics(["train_loss", "delay"], ["delay", "learning_rate"])
        Traceback (most recent call last):
        ValueError: `evaluate` or `measure` has the metric 'delay', an axis or a label \
too: choose another name.
    """
    metrics = [*metrics]
    if "train_loss" not in metrics:
        raise ValueError(
            "The task's `evaluate` must return 'train_loss', by which a cell counts as"
            f" diverged, got {', '.join(metrics) or 'nothing'}: add it."
        )
    check_measured(metrics, settings)


def check_measured(metrics: Iterable[str], settings: Iterable[str]) -> None:
    """`check_metrics` for some of the metrics, without asking for `train_loss`."""
    metrics, settings = [*metrics], {*settings}
    derived = {f"{part}_error" for part in ("train", "test")}
    derived = {n for n in derived if n.replace("error", "accuracy") in metrics}
    derived |= {"gap"} if "test_loss" in metrics else set()
    for name in metrics:
        if name in settings or name in OURS or name in derived:
            taken = "an axis or a label too"
            if name not in settings:
                taken = "a column that the runner writes"
            raise ValueError(
                f"`evaluate` or `measure` has the metric {name!r}, {taken}: choose"
                " another name."
            )
