"""What was measured, as rows: printed as Markdown, and kept as JSON."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Row = dict[str, Any]
"""Column -> a number, in the unit that the column's name says, or a text."""


class Table(NamedTuple):
    """Rows, and how they are shown."""

    caption: str  # what was measured, of which size
    columns: Mapping[str, str]  # shown, in order: name -> format, as "{:.2f}"
    rows: Iterable[Row]

    def markdown(self) -> Iterator[str]:
        """The lines of the table, each as soon as its row is there."""
        yield f"| {' | '.join(self.columns)} |"
        yield "|---" * len(self.columns) + "|"
        for row in self.rows:
            yield f"| {' | '.join(self.cells(row))} |"

    def cells(self, row: Row) -> Iterator[str]:
        """Numbers in their format, texts as they are, a dash for what is not there."""
        for name, template in self.columns.items():
            value = row.get(name, "-")
            yield value if isinstance(value, str) else template.format(value)

    def show(self) -> None:
        """Prints it, each row as soon as it is there."""
        print(f"{self.caption}\n")
        for line in self.markdown():
            print(line, flush=True)
        print()

    def as_json(self) -> dict[str, Any]:
        """Its fields, for `Table(**fields)`."""
        return self._replace(rows=list(self.rows))._asdict()


class NotMeasuredError(Exception):
    """Why there is no such number here, in one line."""


def not_measured(error: Exception) -> str:
    """What stands in the place of numbers after an error, in one line."""
    first = next(iter(str(error).strip().splitlines()), "").replace("|", "/")
    if not isinstance(error, NotMeasuredError):
        first = f"{type(error).__name__}: {first}"
    return f"not measured: {first}"
