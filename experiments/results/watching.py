"""Shows whether a measure reads series whose optimum is not found."""

import dataclasses
from collections.abc import Callable
from typing import Any

from experiments.results.runs import Run

_READ = ("results", "curves", "selection")


def watched(run: Run, note: Callable[[], None]) -> Run:
    """The tables of a run, which call `note` when a series without optimum is read.

    `where` and `tuning` choose rows, and `seeds` names them: these do not read. Every
    other use of the tables, or of the selection, reads all rows that were chosen.

    Args:
        run: the tables.
        note: called when the rows that are read have a series whose optimum is not
            found.
    """
    optima, kind = run.selection.optima, type(run)
    if optima is None or optima["found"].all():
        return run
    fields = [field.name for field in dataclasses.fields(run)]

    def values(of: Run) -> dict[str, Any]:
        return {name: vars(of)[name] for name in fields}

    class Watched(kind):
        def __getattribute__(self, name):
            if name in _READ:
                of = vars(self)
                if "_lacks" not in of:  # its tables do not change
                    found = of["selection"].are_found(of["results"])
                    of["_lacks"] = not found.all()
                if of["_lacks"]:
                    note()
            return super().__getattribute__(name)

        def where(self, **settings):
            return watched(kind(**values(self)).where(**settings), note)

        @property
        def tuning(self):
            kept = kind(**values(self))
            return self if kept.tuning is kept else watched(kept.tuning, note)

        @property
        def seeds(self):
            return kind(**values(self)).seeds

    return Watched(**values(run))
