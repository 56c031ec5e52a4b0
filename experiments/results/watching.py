"""Notes whether a measure reads series whose optimum is not found."""

import dataclasses
from typing import Any

from experiments.results.runs import Run

_READ = ("results", "curves", "selection")


def watched(run: Run, unfound: list[bool]) -> Run:
    """The tables of a run, which note that somebody reads them.

    `where` and `tuning` choose rows, and `seeds` names them; they note nothing. Every
    other use of the tables, or of the selection, counts as reading all rows left.

    Args:
        run: the tables.
        unfound: a list. True is added if the read rows have a series whose optimum is
            not found.
    """
    optima, kind = run.selection.optima, type(run)
    if optima is None or optima["found"].all():
        return run
    fields = [field.name for field in dataclasses.fields(run)]

    def values(of: Run) -> dict[str, Any]:
        return {name: vars(of)[name] for name in fields}

    class Watched(kind):
        def __getattribute__(self, name):
            if name in _READ and not unfound:
                of = values(self)
                if not of["selection"].are_found(of["results"]).all():
                    unfound.append(True)
            return super().__getattribute__(name)

        def where(self, **settings):
            return watched(kind(**values(self)).where(**settings), unfound)

        @property
        def tuning(self):
            kept = kind(**values(self))
            return self if kept.tuning is kept else watched(kept.tuning, unfound)

        @property
        def seeds(self):
            return kind(**values(self)).seeds

    return Watched(**values(run))
