"""The type of a figure: a name, a caption, and a function that draws a run."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.results.runs import Run

Theory = Callable[..., float | None] | Mapping[Any, float]
"""A function whose arguments have the names of settings, or a table {value: number}."""
Only = Mapping[str, Sequence[Any]]
"""{setting: the values shown}."""


class Figure(NamedTuple):
    """A figure of a run.

    Attributes:
        called: the name of the figure, with any characters.
        caption: a description of the figure, for readers who cannot see it.
        drawing: run -> a Matplotlib figure.
        check: raises `analysis.AbsentError` if the tables lack a column or a value that
            the figure shows; the numbers in the tables may be made up.
    """

    called: str
    caption: str
    drawing: Callable[[Run], Any]
    check: Callable[[Run], None] = lambda run: None

    @property
    def name(self) -> str:
        """The name of the figure's file, without a suffix."""
        return re.sub(r"[^\w.-]+", "_", self.called)

    def draw(self, run: Run) -> Any:
        """The Matplotlib figure of a run, in the common style."""
        from experiments.figures import sheets  # this imports Matplotlib

        return sheets.STYLED(self.drawing)(run)


def beside(theory: Theory | None) -> str:
    """The words about theory in a caption; "" without a theory."""
    return ", beside theory" if theory is not None else ""
