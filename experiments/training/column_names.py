"""The columns that the runner writes: no setting and no metric may have their names."""

from collections.abc import Iterable

OURS = ("seed", "run", "update", "updates", "examples", "seconds")
OURS += ("diverged", "diverged_update", "ended_higher", "dropped", "dropped_in_row")
OURS += ("staleness_mean", "staleness_p99", "staleness_max")
OF_SEARCH = ("program", "series", "score", "point", "found", "why", "trainings")
OF_SEARCH += ("reported",)
"""Of a search's trainings and optima, which have no metrics."""


def check(what: str, names: Iterable[str], taken: Iterable[str]) -> None:
    """Checks that axes, labels or metrics do not have the name of another column.

    Args:
        what: describes the names, for the error.
        names: those of all axes, of all labels, or of all metrics.
        taken: the names of other columns.

    Raises:
        ValueError: if a name is taken.

    Example:
        >>> check("`grid` has the axis", ["delay", "seed"], OURS)
        Traceback (most recent call last):
        ValueError: `grid` has the axis 'seed', the name of another column: choose \
another (seeds are `seeds`).
    """
    for name in {*names} & {*taken}:
        remedy = " (seeds are `seeds`)" * (name == "seed")
        raise ValueError(
            f"{what} {name!r}, the name of another column: choose another{remedy}."
        )
