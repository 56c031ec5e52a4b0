"""A report: each promise holds, fails with a sentence and a remedy, or is unchecked."""

import dataclasses
import textwrap
import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple


class ReportRow(NamedTuple):
    """The result for one promise."""

    promise: str  # in a few words
    verdict: Literal["holds", "fails", "not checked"]
    reason: str = ""  # a sentence; empty where the promise holds
    remedy: str = ""  # what to change; empty unless the promise fails


@dataclasses.dataclass(frozen=True)
class Report:
    """The results for a method's contract, a row for each promise.

    `print(report)` shows a table.

    Attributes:
        of: the name of the method that was checked.
        rows: the promises in their order.

    Example:
        >>> first = ReportRow("jit is eager", "holds")
        >>> second = ReportRow("run", "not checked", "one device")
        >>> report = Report("mine", (first, second))
        >>> print(report)
        mine: 1 promise holds, 0 fail, 1 not checked
          holds        jit is eager
          not checked  run: one device
        >>> report.require()
    """

    of: str
    rows: tuple[ReportRow, ...]

    @property
    def failures(self) -> tuple[ReportRow, ...]:
        """The rows that fail."""
        return tuple(row for row in self.rows if row.verdict == "fails")

    def row(self, promise: str) -> ReportRow:
        """The row of a promise.

        Args:
            promise: its words, as the table shows them.
        """
        for row in self.rows:
            if row.promise == promise:
                return row
        known = [row.promise for row in self.rows]
        raise ValueError(f"`promise` must be one of {known}, got {promise!r}.")

    def require(self) -> None:
        """Raises an `AssertionError` with the rows that fail, if there are any."""
        if self.failures:
            shown = "\n".join(map(_shown, self.failures))
            raise AssertionError(f"{self.of} breaks its contract:\n{shown}")

    def __str__(self):
        counts = [
            sum(row.verdict == verdict for row in self.rows)
            for verdict in ("holds", "fails", "not checked")
        ]
        holds = "1 promise holds" if counts[0] == 1 else f"{counts[0]} promises hold"
        head = f"{self.of}: {holds}, {counts[1]} fail, {counts[2]} not checked"
        return "\n".join([head, *map(_shown, self.rows)])


class BrokenError(Exception):
    """A promise that fails: a sentence, and perhaps a special remedy."""

    def __init__(self, sentence: str, remedy: str = ""):
        super().__init__(sentence)
        self.remedy = remedy


class UncheckedError(Exception):
    """The reason why a promise cannot be checked here."""


def report_on(
    of: str, promises: dict[str, Callable[[], None]], remedies: dict[str, str]
) -> Report:
    """Checks promises in their order. Without the first no other can be checked.

    Args:
        of: the name of the method.
        promises: {promise: the function that raises an error if it fails}.
        remedies: {promise: the change that would mend it}.
    """
    rows: list[ReportRow] = []
    for words, check in promises.items():
        if rows and rows[0].verdict != "holds":
            rows.append(
                ReportRow(words, "not checked", f"first mend: {rows[0].promise}")
            )
        else:
            rows.append(_row(words, check, remedies[words]))
    return Report(of, tuple(rows))


def said(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, BrokenError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines()]
    text = next(filter(None, lines), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _row(words: str, check: Callable[[], None], remedy: str) -> ReportRow:
    try:
        with warnings.catch_warnings():
            # on devices that cannot reuse a buffer
            warnings.filterwarnings("ignore", message="Some donated buffers were not")
            check()
    except UncheckedError as reason:
        return ReportRow(words, "not checked", str(reason))
    except Exception as error:  # whatever a stranger's code may raise
        remedy = getattr(error, "remedy", "") or remedy
        return ReportRow(words, "fails", said(error), remedy)
    return ReportRow(words, "holds")


def _shown(row: ReportRow) -> str:
    head = f"  {row.verdict:<11}  {row.promise}"
    lines = [f"{head}: {row.reason}" if row.reason else head]
    lines += [f"to mend: {row.remedy}"] if row.remedy else []
    return "\n".join(
        textwrap.fill(
            line,
            width=88,
            initial_indent=" " * 15 * bool(i),
            subsequent_indent=" " * 15,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for i, line in enumerate(lines)
    )
