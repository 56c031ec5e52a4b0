"""Equations in plain text as LaTeX and MathML: the same signs, in the same order."""

import importlib
import re
import xml.etree.ElementTree as ET

import docstrings
import equations
import papers
import pytest
import reference

pytest.importorskip("latex2mathml", reason="the site's extra is not installed")

NAMES = frozenset(full.rpartition(".")[2] for full in reference.everything())


def blocks():
    """(name, lines) of each indented block of the reference's docstrings."""
    homes = sorted(
        {reference.value(full).__module__ for full in reference.everything()}
    )
    modules = [(home, importlib.import_module(home).__doc__) for home in homes]
    return [
        (name, lines)
        for name, text in [*papers.docstrings(), *modules]
        for kind, lines in docstrings._blocks(text.splitlines())
        if kind == "literal"
    ]


def parsed(text):
    """The typeset table: a root with its rows."""
    return ET.fromstring(
        equations.html(text.splitlines(), NAMES).replace("&nbsp;", " ")
    )


def cells(text):
    """The cells of a typeset table as elements, row by row."""
    return [list(row) for row in parsed(text)]


def shown(element):
    """What a reader sees of a text or an element, in order, without white space."""
    element = parsed(element) if isinstance(element, str) else element
    return re.sub(r"\s", "", "".join(element.itertext()))


def tags(text):
    return [node.tag.rpartition("}")[2] for node in parsed(text).iter()]


# docstrings with code; a function that loads has the columns of a file
CODE = ["Server", "load_recorded", "load_trace", "services", "visits_to_rounds"]
LETTERS = dict(zip(equations.GREEK, "βΔηκλμνϕπψρστθξαϵΓλ", strict=True))
LETTERS |= {"sum": "∑", "prod": "∏", "int": "∫", "grad": "∇", "inf": "∞"}


def test_an_equation_is_typeset_letter_by_letter_and_code_is_not():
    for name, lines in blocks():
        typeset = equations.html(lines, NAMES)
        is_code = name.rpartition(".")[2] in CODE
        assert (typeset is None) == is_code, f"{name}: equation, or code for CODE?"
        if typeset is not None:
            seen = "".join(ET.fromstring(typeset).itertext())  # well formed
            assert_same_letters(name, " ".join(lines), seen)


def assert_same_letters(place, text, seen):
    """No letter and no digit is lost."""
    for name, letter in LETTERS.items():
        symbol = rf"(?<![A-Za-z]){name}(?![A-Za-z])"
        symbol += r"(?! of | over )" if name == "sum" else ""
        text = re.sub(symbol, letter, text)
    text = re.sub(r"sqrt|(?<=β_)hat|\b1e-?(?=\d)", "", text)
    seen = re.sub("10(?=\N{MINUS SIGN})", "", seen)
    for letter in filter(str.isalnum, set(text)):
        assert text.count(letter) == seen.count(letter), f"{place}: {letter}"


@pytest.mark.parametrize(
    "text, latex",
    [
        ("x_{t+1} = y^2", "x _{t +1} = y ^2"),
        ("tau = eta lam", r"\tau = \eta \, \lambda"),
        ("t = max_delay", r"t = \texttt{max_delay}"),
        ("h_min = eta_max", r"h_{\text{min}} = \eta_{\text{max}}"),
        ("k_sync = 1", r"\texttt{k_sync} = 1"),  # a public name
        ("beta_hat", r"\hat{\beta}"),
        ("a = (b + c) / (d e)", r"a = \frac {b + c }{d \, e }"),
        ("a = b/c", "a = b /c"),
        ("a = |b - c| / ||d||", r"a = \frac {{\left |b - c \right |}}{\Vert d \Vert }"),
        ("a = (b)(c) / d", r"a = \frac {({ b }) ({ c }) }{d }"),
        ("1 / |a|^2 dw < 1", r"1 / {\left |a \right |}^2\, dw < 1"),
        (
            "slowest mean task / median",
            r"\text{slowest }\text{mean }\text{task} / \text{median}",
        ),
        ("sqrt((a + b) c)", r"\sqrt {({ a + b }) \, c }"),
        ("P* = mu+ - 1", r"P ^{\ast } = \mu ^{+} - 1"),
        ("a client and a phi", r"\text{a } \text{client }\text{and }a \, \phi"),
        ("|D|^-2 + 1e-7", r"{\left |D \right |}^{-2} + 10^{-7}"),
    ],
)
def test_plain_text_becomes_latex(text, latex):
    assert equations.latex(text, NAMES).split() == latex.split()


def test_letters_are_set_low_and_high():
    assert tags("x_{t+1} = y^2").count("msub") == 1
    assert tags("x_{t+1} = y^2").count("msup") == 1
    assert tags("x'^i_t = y").count("msubsup") == 1


def test_a_quotient_with_spaces_is_a_fraction_without_its_parentheses():
    (row,) = cells("a = (b + c) / (d e)")
    (fraction,) = [each for each in row[0].iter() if each.tag.endswith("mfrac")]
    assert [shown(part) for part in fraction] == ["b+c", "de"]
    assert "mfrac" not in tags("a = b/c")


def test_relations_and_notes_stand_below_each_other():
    rows = cells("v   <- beta v    one\nxyz  = 2         two")
    assert [len(row) for row in rows] == [3, 3]
    assert [row[0].get("class") for row in rows] == ["left", "left"]
    assert [shown(row[1])[0] for row in rows] == ["←", "="]
    assert [shown(row[2]) for row in rows] == ["one", "two"]


def test_a_line_that_goes_on_stands_below_the_right_side():
    first, second = cells("E = a b\n    / (c d)")
    assert shown(second[0]) == "" and shown(second[1]) == "/(cd)"
    assert int(second[0].get("colspan")) == len(first) - 1


def test_a_part_that_no_other_line_shares_stays_in_its_cell():
    rows = cells("a = b,   c = d\nxy = e")
    assert [len(row) for row in rows] == [1, 1]


def test_the_text_stays_at_hand():
    assert parsed("a <- b").get("title") == "a <- b"


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x", "no sign here", "x = tx.init(y)"]
)
def test_what_is_no_equation_is_left_alone(text):
    assert equations.html(text.splitlines()) is None
