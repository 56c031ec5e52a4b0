"""The columns of a run's tables, and which names are taken."""

from collections.abc import Iterable

CLOCKS = ("seed", "update", "updates", "examples", "seconds")
"""Which replicate a row is of, and when."""

FATES = ("diverged", "diverged_update", "ended_higher", "dropped", "dropped_in_row")
FATES += ("staleness_mean", "staleness_p99", "staleness_max")
"""What the runner counts in each cell."""

SEARCH = ("program", "series", "score", "point", "found", "why", "trainings")
"""What a search says of its trainings and of its optima."""

OURS = frozenset((*CLOCKS, *FATES, "run"))
"""Columns that the runner and its analysis write themselves."""


def check_setting(name: str, what: str, *, searched: bool = False) -> None:
    """Checks that an axis or a label is no column of the runner's own.

    Args:
        name: of the column.
        what: it is, for the error.
        searched: whether the experiment searches a number.

    Raises:
        ValueError: if it is one.

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
    """Checks that no metric takes the column of something else.

    Args:
        metrics: of the task's `evaluate` and of the experiment's `measure`.
        settings: labels and axes.

    Raises:
        ValueError: if one does, or there is no `train_loss`.

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
    """The same of some of the metrics, of which `train_loss` need not be one."""
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
