"""What a figure is: a name, a caption, and a function that draws a run."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.results.runs import Run
from experiments.results.tables import Found

Theory = Callable[..., float | None] | Mapping[Any, float]
"""A formula, whose arguments are named as settings of the run are, or a table."""
Only = Mapping[str, Sequence[Any]]
"""{setting: the values shown}."""


class Figure(NamedTuple):
    """A figure of a run.

    Attributes:
        called: the name of its file, of any characters.
        caption: what it shows, for those who cannot see it.
        drawing: run -> a Matplotlib figure.
        check: raises `analysis.AbsentError` if tables lack what it shows; they may have
            made-up numbers.
    """

    called: str
    caption: str
    drawing: Callable[[Run], Any]
    check: Callable[[Found], None] = lambda found: None

    @property
    def name(self) -> str:
        """The name of its file."""
        return re.sub(r"[^\w.-]+", "_", self.called)

    def draw(self, run: Run) -> Any:
        """The Matplotlib figure of a run, in the style of all."""
        from experiments.figures import sheets  # Matplotlib, when it draws

        return sheets.STYLED(self.drawing)(run)


def beside(theory: Theory | None) -> str:
    """What a caption says of theory."""
    return ", beside theory" if theory is not None else ""
