"""Writes all pages: a template of the folder templates/ shows plain data."""

import base64
import decimal
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from experiments.results import claims

_TWO_DIGITS = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING)
_KINDS = {claims.REPRODUCED: "met", claims.SAME_DIRECTION: "met"}
_KINDS |= {claims.NOT_REPRODUCED: "missed"}
_KINDS |= {"met": "met", "missed": "missed"}
_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


class Table(NamedTuple):
    """A table; the first column names the rows. `shown` makes the text of each cell."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Picture(NamedTuple):
    """A picture inside of the page, and a text for readers who cannot see it."""

    text: str
    source: str  # its bytes as a URL; "" if browsers do not show this type of file

    @classmethod
    def of(cls, text: str, image: bytes, suffix: str = ".png") -> "Picture":
        """The picture made of the bytes of a file with this suffix."""
        if suffix not in _TYPES:
            return cls(text, "")
        data = base64.b64encode(image).decode()
        return cls(text, f"data:{_TYPES[suffix]};base64,{data}")


class Verdict(str):
    """A verdict; a table shows it in the color of its kind."""

    @property
    def kind(self) -> str:
        """The class of its color in the style sheet: "met", "missed" or "note"."""
        return _KINDS.get(self, "note")


class Statement(NamedTuple):
    """A statement of a source and a run's verdict about it; all fields are texts.

    `seeds` is the number of seeds of `measured`; `p` is the `chance` of the verdict.
    Both are "" if there is none.
    """

    statement: str
    source: str
    setting: str
    said: str
    bound: str
    measured: str
    seeds: str
    p: str
    verdict: str
    tried: str
    chosen: str  # a `claims.Chosen`

    @classmethod
    def of(cls, judged: claims.Judged) -> "Statement":
        """The texts of a judged statement."""
        claim = judged.claim
        origin = claim.source, claim.setting, claim.said
        # rounded up: a p-value above 5 % must not become 5 %
        p = _TWO_DIGITS.create_decimal_from_float(judged.chance)
        p = "" if math.isnan(judged.chance) else f"{float(p):.2g}"
        seeds = str(judged.measured.seeds) if judged.measured else ""
        outcome = claim.expected, judged.shown, seeds, p, judged.verdict
        return cls(claim.text, *origin, *outcome, claim.tried, str(claim.chosen))

    @property
    def cells(self) -> list[str]:
        """The cells of the statement's row in the table of statements."""
        parts = [self.source, self.setting, f"said: {self.said}"]
        origin = "; ".join(filter(None, parts))
        measured = self.measured + f"; {self.seeds} seeds" * bool(self.seeds)
        return [self.statement, origin, self.bound, measured, Verdict(self.verdict)]

    @property
    def note(self) -> str:
        """The text below the table: what was tried, and when it was chosen."""
        tried = self.tried if self.verdict != claims.NOT_TESTED else ""
        notes = filter(None, [tried, claims.CHOSEN_NOTES.get(self.chosen)])
        text = " ".join(notes)
        return f"{self.statement}: {text}" if text else ""


class Markdown(str):
    """A text in Markdown, which `markdown_text` does not change."""


def render(template: str, **data: Any) -> str:
    """The text of a page: a template filled with data; HTML pages escape all data.

    Args:
        template: the name of a file in templates/, in HTML or Markdown.
        **data: a value for each name that the template has.
    """
    return _TEMPLATES.get_template(template).render(data)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, made of plain texts.

    Example:
        >>> print(markdown_table(["law", "loss"], [["hinge", "0.1"]]))
        | law | loss |
        |---|---|
        | hinge | 0.1 |
    """
    every = [map(markdown_text, cells) for cells in (header, *rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in every]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    r"""The text with escaped signs, so that a Markdown page shows it unchanged.

    Example:
        >>> print(markdown_text("2 * 3 | 4"))
        2 \* 3 \| 4
    """
    if isinstance(text, Markdown):
        return text
    for sign in "\\|*_<>$`[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def between_marks(name: str, text: str, lines: str) -> str:
    """The text with new lines between the two marks of a name; it must have the marks.

    Example:
        >>> print(between_marks("a", "<!-- a: begin -->old<!-- a: end -->.", "new"))
        <!-- a: begin -->
        new
        <!-- a: end -->.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{lines}\n{end}{after}"


def shown(value: Any) -> str:
    """The text of a value on a page: four digits of a number, the items of a list.

    Example:
        >>> shown(0.123456), shown([1, 0.5, float("nan")]), shown(None)
        ('0.1235', '1, 0.5, none', '')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, float):
        return "none" if math.isnan(value) else f"{value:.4g}"
    return "" if value is None else str(value)


_TEMPLATES = jinja2.Environment(
    autoescape=lambda name: not (name or "").endswith(".md"),
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.globals["markdown_table"] = markdown_table
_TEMPLATES.filters |= {"markdown": markdown_text, "shown": shown}
_TEMPLATES.tests["verdict"] = lambda value: isinstance(value, Verdict)
