"""Tables of measured rows, which are printed as Markdown and stored as JSON."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Row = dict[str, Any]
"""{column: a number, in the unit that the column's name says, or a text}."""


class Table(NamedTuple):
    """Rows, and the format in which they are shown."""

    caption: str  # the measured quantity and its size
    columns: Mapping[str, str]  # {shown column: its format, as "{:.2f}"}, in order
    rows: Iterable[Row]

    def markdown(self) -> Iterator[str]:
        """The lines of the table in Markdown, each as soon as its row is measured."""
        yield f"| {' | '.join(self.columns)} |"
        yield "|---" * len(self.columns) + "|"
        for row in self.rows:
            yield f"| {' | '.join(self.cells(row))} |"

    def cells(self, row: Row) -> Iterator[str]:
        """The cells of a row: formatted numbers, texts, and a dash for no value."""
        for name, template in self.columns.items():
            value = row.get(name, "-")
            yield value if isinstance(value, str) else template.format(value)

    def show(self) -> None:
        """Prints the table, each row as soon as it is measured."""
        print(f"{self.caption}\n")
        for line in self.markdown():
            print(line, flush=True)
        print()

    def as_json(self) -> dict[str, Any]:
        """The fields of the table as JSON values, for `Table(**fields)`."""
        return self._replace(rows=list(self.rows))._asdict()


class NotMeasuredError(Exception):
    """A number cannot be measured here; the message says why, in one line."""


def not_measured(error: Exception) -> str:
    """The line that replaces numbers after an error."""
    first = next(iter(str(error).strip().splitlines()), "").replace("|", "/")
    if not isinstance(error, NotMeasuredError):
        first = f"{type(error).__name__}: {first}"
    return f"not measured: {first}"
