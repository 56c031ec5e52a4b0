"""Equations in plain text, typeset as MathML, which browsers show without a script.

Docstrings have their equations as indented text, to be read in a terminal:

    x_{t+1} = x_t - (eta/K) sum_{l=1..K} g_l(x_{t - tau_l}),   mean tau = P/K - 1

`html` makes a table of such lines. Two spaces or more part a line: what begins at one
column in several lines, and their relations, stand below each other. Code, and text
that is no equation, are left to the caller: `html` returns None.
"""

import re
from html import escape

import mathml

_CODE = re.compile(r"^(?:def |class |for |while |import |return |>>>)|= \w+\.\w+[.(]")
_MATH = re.compile(r"[=<>^~/+|]|_[{(]")


def html(lines: list[str], names: frozenset[str] = frozenset()) -> str | None:
    """A table of equations; None for code, and for text without an equation.

    `names` are written in code font as they are, `k_sync` for one.
    """
    if any(map(_CODE.search, (line.lstrip() for line in lines))):
        return None
    if not any(map(_MATH.search, lines)):
        return None
    try:
        rows = [
            [(column, span, mathml.typeset(text, names)) for column, span, text in row]
            for row in _rows([line for line in lines if line.strip()])
        ]
    except mathml.NoEquationError:
        return None
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    source = escape("\n".join(lines), quote=True)
    return f'<table class="equation" title="{source}">{body}</table>'


def _cell(cell: tuple[str, int, str]) -> str:
    kind, span, content = cell
    return f'<td class="{kind}" colspan="{span}">{content}</td>'


def _rows(lines: list[str]) -> list[list[tuple[str, int, str]]]:
    """(class, columns that it spans, text) of each cell of each line."""
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    parted = [_parts(line[margin:]) for line in lines]
    ends = [end for _, end, _ in map(_relation, (line[margin:] for line in lines))]
    begins = {parts[0][0] for parts in parted}  # a line may go on below a right side
    shared = {end for end in ends if end and (ends.count(end) > 1 or end + 1 in begins)}
    cut = []
    for line, parts in zip(lines, parted, strict=True):
        start, end, sign = _relation(line[margin:])
        if end in shared:
            parts = _at_relation(line[margin:], start, end, sign)
        elif end:
            parts = _around_relation(parts, start, end)
        cut.append(parts)
    starts = [start for parts in cut for start, _, _ in parts]
    columns = sorted({start for start in starts if starts.count(start) > 1} | {0})
    return [_placed(parts, columns) for parts in cut]


def _relation(line: str) -> tuple[int, int, str]:
    """Where the first relation of a line begins and ends; zeros without one."""
    for found in re.finditer(r"(?<=\s)(<-|<=|>=|=|~|iff)(?=\s)", line):
        before = line[: found.start()]
        if all(before.count(a) == before.count(b) for a, b in mathml.CLOSE.items()):
            return found.start(), found.end(), found[1]
    return 0, 0, ""


def _parts(line: str, offset: int = 0, kind: str = "") -> list[tuple[int, str, str]]:
    """(column, class, text) of what two spaces or more part."""
    return [
        (offset + found.start(), kind, found[0])
        for found in re.finditer(r"\S+(?: \S+)*", line)
    ]


def _at_relation(
    line: str, start: int, end: int, sign: str
) -> list[tuple[int, str, str]]:
    """A line parted at its relation too: these stand below each other by their ends."""
    *labels, left = _parts(line[:start], kind="left")
    labels = [(column, "", text) for column, _, text in labels]
    right = _parts(line[end:], offset=end)
    return [*labels, (left[0], "left", left[2]), (end - 2, "sign", sign), *right]


def _around_relation(
    parts: list[tuple[int, str, str]], start: int, end: int
) -> list[tuple[int, str, str]]:
    """The parts of a line, with those beside its relation in one."""
    out: list[tuple[int, str, str]] = []
    so_far = 0
    for column, kind, text in parts:
        if out and (column == start or so_far == end):
            first, of, before = out[-1]
            out[-1] = (first, of, f"{before} {text}")
        else:
            out.append((column, kind, text))
        so_far = column + len(text)
    return out


def _placed(
    parts: list[tuple[int, str, str]], columns: list[int]
) -> list[tuple[str, int, str]]:
    """Cells for the parts: one that begins at no shared column joins the one before."""
    joined: list[tuple[int, str, str]] = []
    if parts and parts[0][0] not in columns:
        nearest = max(column for column in columns if column <= parts[0][0])
        parts = [(nearest, *parts[0][1:]), *parts[1:]]
    for column, kind, text in parts:
        if column in columns or not joined:
            joined.append((column, kind, text))
        else:
            first, of, so_far = joined[-1]
            joined[-1] = (first, of, f"{so_far}    {text}")
    cells = []
    place = 0
    for i, (column, kind, text) in enumerate(joined):
        at = columns.index(column)
        if at > place:
            cells.append(("", at - place, ""))
        after = joined[i + 1][0] if i + 1 < len(joined) else None
        place = columns.index(after) if after is not None else len(columns)
        cells.append((kind, max(place - at, 1), text))
    return cells
