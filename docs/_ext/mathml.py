"""A line of mathematics in plain text as MathML.

Names of Greek letters become these letters, what follows `_` and `^` is set low and
high, `sqrt(...)` gets its root, and a quotient with spaces around its slash becomes a
fraction where it is clear what it divides. All else stays as it is written, in its
order.
"""

import re
from html import escape
from typing import NamedTuple

GREEK = {
    **{"al": "α", "beta": "β", "Delta": "Δ", "eps": "ε", "eta": "η", "Gam": "Γ"},
    **{"kappa": "κ", "lam": "λ", "lambda": "λ", "mu": "μ", "nu": "ν", "phi": "φ"},
    **{"pi": "π", "psi": "ψ", "rho": "ρ", "sigma": "σ", "tau": "τ", "theta": "θ"},
    **{"xi": "ξ"},
}
LARGE = {"sum": "∑", "prod": "∏", "int": "∫"}
SIGNS = {
    **{"<-": "←", "->": "→", "<=": "≤", ">=": "≥", "-": "−", "*": "∗", "~": "∼"},
    **{"!=": "≠", "...": "…", "||": "‖", "'": "′"},
}
FUNCTIONS = {
    *("asin", "clip", "cos", "exp", "floor", "ceil", "log", "max", "min", "mod"),
    *("sin", "Pr", "Re", "EMA", "Bin"),
}

_TOKEN = re.compile(
    r"""(?P<code>`[^`]+`|[A-Za-z]\w*(?:\.[a-z]\w*)+)
    |(?P<word>[a-z]{3,}-[a-z]{4,}|'s(?=\s))
    |(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)
    |(?P<name>[^\W\d_]+\d*)
    |(?P<sign><-|->|<=|>=|!=|\.\.\.|\.\.|\|\||[-+*/=<>~^_|,;:.!'()\[\]{}])
    |(?P<space>\s+)""",
    re.VERBOSE,
)
_VARIABLE = re.compile(r"d[a-z]|x[cm]|(?!it$)[tijkw]{2,3}")  # of more than a letter
CLOSE = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A piece of a line."""

    kind: str  # code, number, name, word, sign, end
    text: str
    spaced: bool  # whether white space stands in front of it


class Item(NamedTuple):
    """A typeset piece: an operand, an operator, a word of text, or a large operator."""

    kind: str
    mathml: str
    spaced: bool


class NoEquationError(Exception):
    """The text does not follow the notation."""


def typeset(text: str, names: frozenset[str]) -> str:
    """One line, or a part of it, as MathML; `names` stay in code font as they are."""
    if not text:
        return ""
    parts = re.split(r"\s{2,}", text)
    rows = [_Parser(_tokens(part, names)).everything() for part in parts]
    inside = '<mspace width="2em"></mspace>'.join(rows)
    return f'<math displaystyle="true">{inside}</math>'


def _tokens(text: str, names: frozenset[str]) -> list[Token]:
    tokens: list[Token] = []
    at, spaced = 0, False
    while at < len(text):
        known = re.match(r"[A-Za-z]+(?:_[a-z]+)+(?!\w)", text[at:])
        if known and (known[0] in names or _is_identifier(known[0])):
            found, kind = known, "code"
        else:
            found = _TOKEN.match(text, at)
            if found is None:
                raise NoEquationError(text[at:])
            kind = found.lastgroup
        if kind == "space":
            spaced = True
        else:
            tokens.append(Token(kind, found[0], spaced))
            spaced = False
        at += len(found[0])
    return [*_worded(tokens), Token("end", "", False)]


def _is_identifier(name: str) -> bool:
    """Whether `max_delay`, and not `h_min` or `rest_j`: a name with an underscore."""
    first, *rest = name.split("_")
    is_symbol = len(first) == 1 or first in GREEK or first in LARGE or first.isupper()
    return not is_symbol and len(rest[-1]) > 1


def _worded(tokens: list[Token]) -> list[Token]:
    """Names of several letters that are no symbols are words, as is the article "a"."""
    out = []
    after = [*tokens[1:], Token("end", "", False)]
    for token, following in zip(tokens, after, strict=True):
        text, kind = token.text, token.kind
        follows = following.kind == "name" and following.spaced
        if kind == "name" and len(text) > 1 and text.isalpha():
            is_verb = text in LARGE and follows and following.text in ("of", "over")
            is_large = text in LARGE or text in ("sqrt", "grad", "inf")
            is_symbol = text in GREEK or text in FUNCTIONS or is_large
            if (not is_symbol and not _VARIABLE.fullmatch(text)) or is_verb:
                kind = "word"
        elif text == "a" and follows and re.fullmatch(r"[a-z]{3,}", following.text):
            kind = "name" if following.text in {*GREEK, *LARGE, *FUNCTIONS} else "word"
        out.append(token._replace(kind=kind))
    return out


class _Parser:
    """From tokens to MathML."""

    def __init__(self, tokens: list[Token]):
        self.tokens = tokens
        self.at = 0

    def everything(self) -> str:
        row = _row(self.until())
        if self.now.kind != "end":
            raise NoEquationError(self.now.text)
        return row

    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def until(self, close: str = "") -> list[Item]:
        """The items up to a closing sign, which is not taken."""
        items: list[Item] = []
        while self.now.kind != "end" and self.now.text != close:
            if self.now.text in (")", "]", "}") and self._is_half_open(close):
                items.append(Item("operand", _mo(self.take().text), False))
            elif self.now.text in (")", "]", "}"):
                raise NoEquationError(self.now.text)
            else:
                items.append(self.item(close))
        return items

    def _is_half_open(self, close: str) -> bool:
        """`[a, b)` ends as it does not begin."""
        return close == "]" and self.now.text == ")"

    def item(self, close: str) -> Item:
        token = self.take()
        kind, text, spaced = token
        if kind == "word" and not (self.now.text in ("_", "^") and not self.now.spaced):
            return Item("word", f"<mtext>{escape(text)}</mtext>", spaced)
        if text in LARGE and kind == "name":
            return Item("large", self.scripts(_mo(LARGE[text]), is_large=True), spaced)
        if kind == "sign" and text not in CLOSE and not self._opens(text, close):
            shown = _mo(SIGNS.get(text, text))
            if text == "/" and not spaced:
                shown = '<mo lspace="0" rspace="0">/</mo>'
            return Item("sign:" + text, shown, spaced)
        is_differential = kind == "name" and re.fullmatch(r"d[a-z]", text)
        part = "differential" if is_differential else "operand"
        return Item(part, self.scripts(self.operand(token)), spaced)

    def _opens(self, text: str, close: str) -> bool:
        if text in ("|", "||"):
            return True  # until() has taken the closing one as its end
        return text == "<" and not self.now.spaced and close != "⟩" and self._angle()

    def _angle(self) -> bool:
        return any(token.text == ">" for token in self.tokens[self.at :])

    def operand(self, token: Token) -> str:
        kind, text, _ = token
        if kind == "code":
            return f'<mtext class="code">{escape(text.strip("`"))}</mtext>'
        if kind == "number":
            return _number(text)
        if text == "sqrt" and self.now.text == "(":
            self.take()
            # not every font has a root as high as a fraction
            return f"<msqrt>{self.closed(')', with_fractions=False)}</msqrt>"
        if text in ("|", "||", "<"):
            close = {"<": ">"}.get(text, text)
            inside = self.closed(close)
            left, right = ("⟨", "⟩") if text == "<" else (SIGNS.get(text, text),) * 2
            return _fenced(left, inside, right)
        if text in CLOSE:
            return _fenced(text, self.closed(CLOSE[text]), CLOSE[text])
        return _name(text)

    def closed(self, close: str, *, with_fractions: bool = True) -> str:
        inside = _row(self.until(close), with_fractions=with_fractions)
        if self.now.text != close:
            raise NoEquationError(close)
        self.take()
        return inside

    def scripts(self, base: str, is_large: bool = False) -> str:
        """The base with what is set low and high, and its primes."""
        low, high = "", ""
        while not self.now.spaced and self.now.text in ("_", "^", *"'*+-!"):
            token = self.now
            if token.text in "*+-" and not self._is_last():
                break
            self.take()
            if token.text == "_":
                low += self.script()
            elif token.text == "^":
                high += self.script()
            elif token.text == "!":
                return f"<mrow>{_scripted(base, low, high, is_large)}<mo>!</mo></mrow>"
            else:
                high += f"<mo>{SIGNS.get(token.text, token.text)}</mo>"
        return _scripted(base, low, high, is_large)

    def _is_last(self) -> bool:
        """Whether the sign now ends its operand, as in `P* = 1` and `mu+ is`."""
        after = self.tokens[self.at + 1]
        return after.spaced or after.kind == "end" or after.text in ("}", ")")

    def script(self) -> str:
        if self.now.text == "{":
            self.take()
            if self.now.text == "*":
                self.take()
                return _mo(SIGNS["*"]) + self.closed("}")
            return self.closed("}")
        if self.now.text == "(":
            self.take()
            return _fenced("(", self.closed(")"), ")")
        if self.now.text == "-":
            self.take()
            return _mo(SIGNS["-"]) + self.operand(self.take())
        token = self.take()
        if token.kind not in ("name", "word", "number"):
            raise NoEquationError(token.text)
        if token.text == "hat":
            return "<mo>^</mo>"
        return self.operand(token)


def _scripted(base: str, low: str, high: str, is_large: bool) -> str:
    if low == "<mo>^</mo>":
        return f'<mover accent="true">{base}<mo stretchy="false">^</mo></mover>'
    over = is_large and "∫" not in base
    low, high = (f"<mrow>{script}</mrow>" if script else "" for script in (low, high))
    if low and high:
        tag = "munderover" if over else "msubsup"
    elif low:
        tag = "munder" if over else "msub"
    elif high:
        tag = "mover" if over else "msup"
    else:
        return base
    return f"<{tag}>{base}{low}{high}</{tag}>"


def _name(text: str) -> str:
    if text in GREEK:
        return f"<mi>{GREEK[text]}</mi>"
    special = {"grad": "∇", "inf": "∞"}
    if text in special:
        return f"<mi>{special[text]}</mi>"
    letters, digits = re.fullmatch(r"([^\W\d_]+)(\d*)", text).groups()
    if digits:
        base = f"<mi>{GREEK.get(letters, letters)}</mi>"
        return f"<msub>{base}<mn>{digits}</mn></msub>"
    if _VARIABLE.fullmatch(text) and text[0] != "x":
        return "".join(f"<mi>{letter}</mi>" for letter in text)
    if text in ("xc", "xm"):
        return f'<mi class="variable">{text}</mi>'
    return f"<mi>{escape(text)}</mi>"


def _number(text: str) -> str:
    power = re.fullmatch(r"1e(-?)(\d+)", text)
    if power:
        sign = _mo(SIGNS["-"]) if power[1] else ""
        return f"<msup><mn>10</mn><mrow>{sign}<mn>{power[2]}</mn></mrow></msup>"
    return f"<mn>{text}</mn>"


def _fenced(left: str, inside: str, right: str) -> str:
    return f"<mrow>{_mo(left)}{inside}{_mo(right)}</mrow>"


def _mo(text: str) -> str:
    fence = ' stretchy="true"' if text in "()[]{}|‖⟨⟩" else ""
    return f"<mo{fence}>{escape(text)}</mo>"


def _row(items: list[Item], *, with_fractions: bool = True) -> str:
    items = _fractions(items) if with_fractions else items
    out: list[str] = []
    for before, item in zip([None, *items], items, strict=False):
        if before is not None and item.spaced:
            out.append(_gap(before, item))
        out.append(item.mathml)
    return f"<mrow>{''.join(out)}</mrow>"


def _gap(before: Item, item: Item) -> str:
    """White space: signs bring their own, words need a whole space."""
    kinds = {before.kind, item.kind}
    if "word" in kinds or item.mathml.startswith("<mtext"):
        return "<mtext>&#160;</mtext>"
    if any(kind.startswith("sign") for kind in kinds):
        return "<mtext>&#160;</mtext>" if before.kind in ("sign:,", "sign:;") else ""
    return '<mspace width="0.22em"></mspace>'


def _fractions(items: list[Item]) -> list[Item]:
    """`a / b` with spaces as a fraction: products of operands on both sides."""
    out = list(items)
    at = 0
    while at < len(out):
        is_slash = out[at].kind == "sign:/" and out[at].spaced
        below = at + 1
        while below < len(out) and out[below].kind == "operand":
            below += 1
        above = at
        while above > 0 and out[above - 1].kind in ("operand", "differential"):
            above -= 1
        is_clear = below > at + 1 and above < at and _ends(out, above - 1, below)
        if is_slash and out[at + 1].spaced and is_clear:
            top, bottom = _row(out[above:at]), _row(out[at + 1 : below])
            fraction = f"<mfrac>{_bare(top)}{_bare(bottom)}</mfrac>"
            out[above:below] = [Item("operand", fraction, out[above].spaced)]
            at = above
        at += 1
    return out


def _ends(items: list[Item], before: int, after: int) -> bool:
    """Whether the words beside a quotient leave no doubt of what it divides."""
    first = items[before] if before >= 0 else None
    last = items[after] if after < len(items) else None
    is_slash = last is not None and last.kind == "sign:/"
    return not (is_slash or (first is not None and first.kind == "sign:/"))


def _bare(row: str) -> str:
    """A row without the parentheses around all of it, which a fraction needs not."""
    opened = f"<mrow><mrow>{_mo('(')}"
    closed = f"{_mo(')')}</mrow></mrow>"
    inside = row[len(opened) : -len(closed)]
    is_pair = row.startswith(opened) and row.endswith(closed)
    return f"<mrow>{inside}</mrow>" if is_pair and _is_balanced(inside) else row


def _is_balanced(mathml: str) -> bool:
    depth = 0
    for found in re.finditer(r"<(/?)mrow>", mathml):
        depth += -1 if found[1] else 1
        if depth < 0:
            return False
    return depth == 0
