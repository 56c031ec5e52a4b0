"""The one writer of pages: plain data, and a template of templates/ that shows it."""

import base64
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from experiments.results import claims

_KINDS = {claims.REPRODUCED: "met", claims.SAME_DIRECTION: "met"}
_KINDS |= {claims.NOT_REPRODUCED: "missed"}
_KINDS |= {"met": "met", "missed": "missed"}
_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


class Table(NamedTuple):
    """A table; the first column names the rows. Cells are shown as `shown` says."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Picture(NamedTuple):
    """A picture inside of the page, and what it shows, for those who cannot see it."""

    text: str
    source: str  # its bytes, as a URL; "" where browsers show no such file

    @classmethod
    def of(cls, text: str, image: bytes, suffix: str = ".png") -> "Picture":
        """The picture in a file of this suffix."""
        if suffix not in _TYPES:
            return cls(text, "")
        data = base64.b64encode(image).decode()
        return cls(text, f"data:{_TYPES[suffix]};base64,{data}")


class Verdict(str):
    """A verdict, in a table a word in the color of its kind."""

    @property
    def kind(self) -> str:
        """As the style sheet names it: met, missed or note."""
        return _KINDS.get(self, "note")


class Statement(NamedTuple):
    """What a source says, and what a run found of it; all of it is text.

    Its p is the `chance` of the verdict, "" where there is none.
    """

    statement: str
    source: str
    setting: str
    said: str
    bound: str
    measured: str
    p: str
    verdict: str
    tried: str
    chosen: str  # a `claims.Chosen`

    @classmethod
    def of(cls, judged: claims.Judged) -> "Statement":
        """The texts of what was judged."""
        claim = judged.claim
        whence = claim.source, claim.setting, claim.said
        p = "" if math.isnan(judged.chance) else f"{judged.chance:.2g}"
        outcome = claim.expected, judged.shown, p, judged.verdict
        return cls(claim.text, *whence, *outcome, claim.tried, str(claim.chosen))

    @property
    def cells(self) -> list[str]:
        """A row of the table of statements."""
        said = [self.source, self.setting, f"said: {self.said}"]
        whence = "; ".join(filter(None, said))
        verdict = Verdict(self.verdict)
        return [self.statement, whence, self.bound, self.measured, verdict]

    @property
    def note(self) -> str:
        """What a reader must know beside the row; "" where the row says all."""
        tried = self.tried if self.verdict != claims.NOT_TESTED else ""
        notes = filter(None, [tried, claims.CHOSEN_NOTES.get(self.chosen)])
        said = " ".join(notes)
        return f"{self.statement}: {said}" if said else ""


class Markdown(str):
    """A text that is Markdown already."""


def render(template: str, **data: Any) -> str:
    """A page of data: a template shows it. In HTML all text of the data is escaped.

    Args:
        template: the name of a file in templates/, of HTML or of Markdown.
        **data: all that the template names.
    """
    return _TEMPLATES.get_template(template).render(data)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of plain text.

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
    r"""A text that Markdown takes as it is.

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
    """A text with other lines between the two marks of a name, which it must have.

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
    """A value as a page shows it: four digits of a number, the parts of a list.

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
