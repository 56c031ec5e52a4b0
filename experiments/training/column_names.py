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

METRICS = "`evaluate` or `measure` has the metric"
"""Describes a metric to `check`."""


def check(
    what: str,
    names: Iterable[str],
    taken: Iterable[str] = (),
    *,
    searched: bool = False,
) -> None:
    """Checks that axes, labels or metrics do not have the name of another column.

    Args:
        what: describes the names, for the error.
        names: those of all axes, of all labels, or of all metrics.
        taken: the axes and labels, if metrics are checked.
        searched: whether the experiment searches a number.

    Raises:
        ValueError: if a name is taken, or the runner writes a column of this name.

    Example:
        >>> check("`grid` has the axis", ["delay", "seed"])
        Traceback (most recent call last):
        ValueError: `grid` has the axis 'seed', a column that the runner writes: \
choose another name (seeds are `seeds`).
    """
    names, taken = [*names], {*taken}
    written = OURS.union(SEARCH if searched else ())
    accurate = [part for part in ("train", "test") if f"{part}_accuracy" in names]
    written |= {f"{part}_error" for part in accurate}
    written |= {"gap"} if "test_loss" in names else set()
    for name in names:
        if name in taken or name in written:
            whose = "a column that the runner writes"
            if name in taken:
                whose = "an axis or a label too"
            remedy = " (seeds are `seeds`)" * (name == "seed")
            raise ValueError(f"{what} {name!r}, {whose}: choose another name{remedy}.")
