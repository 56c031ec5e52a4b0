"""Equations in plain text as LaTeX, which latex2mathml turns into MathML.

Docstrings have their equations as indented text, to be read in a terminal:

    x_{t+1} = x_t - (eta/K) sum_{l=1..K} g_l(x_{t - tau_l}),   mean tau = P/K - 1

`html` makes a table of such lines: what begins at one column in several lines, and
their relations, stand below each other.
"""

import itertools
import re
import textwrap
from html import escape

_CODE = re.compile(
    r"^\s*(?:def |class |for |while |import |return |>>>)|= \w+\.\w+[.(]"
)
_MATH = re.compile(r"[=<>^~/+|]|_[{(]")
_RELATION = re.compile(r"(?<=\s)(?:<-|<=|>=|=|~|iff)(?=\s)")
_PAREN = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_SIDE = rf"((?:[^\s()\[\]/,|{{}}]|[_^]\{{[^{{}}]*\}}|\|\|.*?\|\||\|[^|]+\||{_PAREN})+)"
# only where no other factor stands beside it: `a / b c` stays as it is written
_QUOTIENT = re.compile(
    rf"(^|[({{|,] ?|[-+=<>~*] ){_SIDE} / {_SIDE}(?=$|[,.)}}|]| [-+=<>~*,)|]|  )"
)
_LETTERS = "beta Delta eta kappa lambda mu nu phi pi psi rho sigma tau theta xi"
GREEK = {
    **dict(zip(_LETTERS.split(), _LETTERS.split(), strict=True)),
    **{"al": "alpha", "eps": "epsilon", "Gam": "Gamma", "lam": "lambda"},
}
_SIGNS = {
    **{"sum": r"\sum\limits", "prod": r"\prod\limits", "int": r"\int", "->": r"\to"},
    **{"<-": r"\leftarrow", "<=": r"\le", ">=": r"\ge", "<": "<", ">": ">", " ": r"\,"},
    **{"!=": r"\ne", "...": r"\dots", "..": r"\dots", "||": r"\Vert", "*": r"\ast"},
    **{"~": "\u223c", "grad": r"\nabla", "inf": r"\infty", "  ": r"\quad"},
    **{"(": "({", "[": "[{", ")": "})", "]": "}]"},  # -x begins with a sign of its own
}
_VARIABLE = re.compile(r"[^\W\d_]|d[a-z]|x[cm]|(?!it$)[tijkw]{2,3}")
_TOKEN = re.compile(
    r"\\[A-Za-z]+|`[^`]+`"
    rf"|\ba (?!(?:{'|'.join(GREEK)}|int|exp|sin|cos)\b)(?=[a-z]{{3}})"
    r"|sum (?=of |over )|[A-Za-z]\w*(?:\.[a-z]\w*)+|[a-z]{3,}-[a-z]{4,}|[a-z]+'s?(?=\s)"
    r"|[A-Za-z]+(?:_[a-z]{2,})+(?!\w)|1e-?\d+|[^\W\d_]+\d*|<-|->"
    r"|<=|>=|!=|\.\.\.?|\|\||[<>~*(\[)\]]|  +|(?<=[\w)}\]'*|,;:.`]) (?=[\w(\[|\\`])"
)


def html(lines: list[str], names: frozenset[str] = frozenset()) -> str | None:
    """A table of equations; None for code, and for text without an equation.

    `names` are written in code font as they are, `k_sync` for one.
    """
    from latex2mathml import converter  # of the extra `docs`

    def cell(kind: str, span: int, text: str) -> str:
        math = converter.convert(latex(text, names)) if text else ""
        math = math.replace('display="inline"', 'displaystyle="true"')
        return f'<td class="{kind}" colspan="{span}">{math}</td>'

    lines = [line for line in textwrap.dedent("\n".join(lines)).split("\n") if line]
    if any(map(_CODE.search, lines)) or not any(map(_MATH.search, lines)):
        return None
    rows = ["".join(cell(*each) for each in row) for row in _rows(lines)]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    source = escape("\n".join(lines), quote=True)
    return f'<table class="equation" title="{source}">{body}</table>'


def latex(text: str, names: frozenset[str] = frozenset()) -> str:
    """One line, or a part of it, as LaTeX."""
    text = re.sub(r"([_^])(\([^()]*\)|-\w+)", r"\1{\2}", text)
    text = re.sub(r"(?<=[\w)}])([-+*])(?=[ )}]|$)", r"^{\1}", text)  # mu+ and P*
    text = re.sub(r"<(\w[^<>]*\w)>", r"\\langle \1\\rangle", text)
    text = re.sub(rf"\bsqrt({_PAREN})", lambda of: rf"\sqrt{{{of[1][1:-1]}}}", text)
    before = ""
    while before != text:
        before, text = text, _QUOTIENT.sub(_fraction, text)
    text = re.sub(r"(?<!\|)\|([^|]+)\|(?!\|)", r"{\\left|\1\\right|}", text)
    text = _TOKEN.sub(lambda token: _token(token[0], names) + " ", text)
    text = re.sub(r"(\\text\{[^{}]*)\} +\\, ", r"\1 }", text)
    text = re.sub(r"(\\texttt\{[^{}]*\} +)\\, ", r"\1\\; ", text)
    return re.sub(r"\\, +\\text\{", r"\\text{ ", text)


def _fraction(quotient: re.Match[str]) -> str:
    before, *sides = quotient.groups()
    above, below = (
        side[1:-1] if re.fullmatch(_PAREN, side) else side for side in sides
    )
    return rf"{before}\frac{{{above}}}{{{below}}}"


def _token(token: str, names: frozenset[str]) -> str:
    first, _, rest = token.partition("_")
    letters = first.rstrip("0123456789")
    if token[0] == "\\" or token[0] == "`":
        return rf"\texttt{{{token[1:-1]}}}" if token[0] == "`" else token
    if token.strip(" ") == "":
        return _SIGNS[token[:2]]
    if token in _SIGNS:
        return _SIGNS[token]
    if rest and (
        token in names or (len(first) > 1 and not (first in GREEK or first.isupper()))
    ):
        return rf"\texttt{{{token}}}"
    if rest:
        base, script = _token(first, names), _token(rest, names)
        return rf"\hat{{{base}}}" if rest == "hat" else f"{base}_{{{script}}}"
    if token.startswith("1e"):
        return f"10^{{{token[2:]}}}"
    letter = "\\" + GREEK[letters] if letters in GREEK else letters
    if letters not in GREEK and not _VARIABLE.fullmatch(letters):
        letter = rf"\text{{{letters}}}"
    return letter + f"_{{{token[len(letters) :]}}}" * (letters != token)


def _rows(lines: list[str]) -> list[list[tuple[str, int, str]]]:
    """(class, columns that it spans, text) of each cell of each line."""
    starts = [
        [part.start() for part in re.finditer(r"(?<!\S)(?<!\S )\S", line)]
        for line in lines
    ]
    places = [_relation(line) for line in lines]
    ends = [place.end() for place in places if place]
    first = [row[0] for row in starts]
    parts = [*itertools.chain(*starts)]
    columns = {0, *(at for at in parts if parts.count(at) > 1)}
    aligned = {end for end in ends if ends.count(end) > 1 or end + 1 in first}
    columns = sorted(
        columns - {end + 1 for end in aligned} | {end - 2 for end in aligned}
    )
    rows = []
    for line, row, place in zip(lines, starts, places, strict=True):
        cells = {
            at: at for at in row if at in columns
        }  # {column: where its text begins}
        sign = place.end() - 2 if place and place.end() in aligned else None
        if sign is not None:
            cells = {
                at: begin
                for at, begin in cells.items()
                if not place.start() <= at <= place.end()
            }
            cells[sign] = place.start()
        cells.setdefault(max(at for at in columns if at <= row[0]), row[0])
        order = sorted(cells)
        out = [("", columns.index(order[0]), "")] if order[0] else []
        for at, after in itertools.pairwise([*order, None]):
            span = (columns.index(after) if after else len(columns)) - columns.index(at)
            text = line[cells[at] : cells[after] if after else None].strip()
            out.append(("left" if after and after == sign else "", span, text))
        rows.append(out)
    return rows


def _relation(line: str) -> re.Match[str] | None:
    """The first relation of a line that no parentheses hold."""
    for place in _RELATION.finditer(line):
        before = line[: place.start()]
        if all(before.count(a) == before.count(b) for a, b in ("()", "[]", "{}")):
            return place
    return None
