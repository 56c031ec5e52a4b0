"""Equations in plain text as MathML: the same signs, in the same order."""

import re
import xml.etree.ElementTree as ET

import equations
import mathml
import papers
import pytest
import reference

NAMES = frozenset(full.rpartition(".")[2] for full in reference.everything())


def blocks():
    """(name, lines) of each indented block of the reference's docstrings."""
    groups = [
        group for module in reference.pages() for group in reference.groups(module)
    ]
    texts = [*papers.docstrings(), *((group.home, group.text) for group in groups)]
    return [
        (name, lines)
        for name, text in texts
        for kind, lines in reference._blocks(text.splitlines())
        if kind == "literal"
    ]


def cells(text):
    """The cells of a typeset table as elements, row by row."""
    table = ET.fromstring(equations.html(text.splitlines(), NAMES))
    return [list(row) for row in table]


def shown(text):
    """What a reader sees, in order, without white space."""
    table = ET.fromstring(equations.html(text.splitlines(), NAMES))
    return re.sub(r"\s", "", "".join(table.itertext()))


def tags(text):
    table = ET.fromstring(equations.html(text.splitlines(), NAMES))
    return [node.tag for node in table.iter()]


# docstrings with code; a function that loads has the columns of a file
CODE = ["Server", "load_recorded", "load_trace", "services", "visits_to_rounds"]


@pytest.mark.parametrize("name, lines", blocks())
def test_an_equation_is_typeset_letter_by_letter_and_code_is_not(name, lines):
    typeset = equations.html(lines, NAMES)
    is_code = name.rpartition(".")[2] in CODE
    assert (typeset is None) == is_code, "is it an equation, or code to name in CODE?"
    if typeset is not None:
        seen = "".join(ET.fromstring(typeset).itertext())  # well formed
        assert_same_letters(" ".join(lines), seen)


def assert_same_letters(text, seen):
    """No letter and no digit is lost."""
    for name, letter in {**mathml.GREEK, **mathml.LARGE}.items():
        symbol = rf"(?<![A-Za-z]){name}(?![A-Za-z])"
        symbol += r"(?! of | over )" if name in mathml.LARGE else ""
        text = re.sub(symbol, letter, text)
    text = re.sub(r"sqrt|(?<=beta_)hat|(?<=β_)hat|\b1e-?(?=\d)", "", text)
    text = text.replace("grad ", "").replace("inf", "")
    seen = seen.replace("10" + mathml.SIGNS["-"], "")
    seen = re.sub(r"\binf\b", "", seen)
    for letter in filter(str.isalnum, set(text)):
        assert text.count(letter) == seen.count(letter), letter


def test_letters_are_set_low_and_high():
    assert tags("x_{t+1} = y^2").count("msub") == 1
    assert tags("x_{t+1} = y^2").count("msup") == 1
    assert tags("x'^i_t = y")[3:].count("msubsup") == 1


def test_names_of_greek_letters_are_these_letters():
    assert shown("tau = eta lam").strip() == "τ=ηλ"


def test_a_name_with_an_underscore_is_code_and_a_symbol_has_an_index():
    assert "max_delay" in shown("t = max_delay")
    assert shown("h_min = 1") == "hmin=1"
    assert "k_sync" in shown("k_sync = 1")


def test_a_quotient_with_spaces_is_a_fraction_without_its_parentheses():
    (((cell,),),) = [[cells("a = (b + c) / (d e)")[0]]]
    fraction = next(cell.iter("mfrac"))
    over, under = ("".join(part.itertext()) for part in fraction)
    assert over == "b+c" and under == "de"
    assert "mfrac" not in tags("a = b/c")


def test_two_groups_of_parentheses_keep_them_in_a_fraction():
    (row,) = cells("a = (b)(c) / d")
    over = "".join(next(row[0].iter("mfrac"))[0].itertext())
    assert over == "(b)(c)"


def test_a_fraction_ends_before_a_differential():
    (row,) = cells("int 1 / |a|^2 dw < 1")
    assert "dw" not in "".join(next(row[0].iter("mfrac")).itertext())


def test_what_a_slash_divides_among_words_is_not_guessed():
    assert "mfrac" not in tags("d = slowest mean task / median - 1")


def test_relations_and_notes_stand_below_each_other():
    rows = cells("v   <- beta v    one\nxyz  = 2         two")
    assert [len(row) for row in rows] == [4, 4]
    assert [row[0].get("class") for row in rows] == ["left", "left"]
    assert ["".join(row[1].itertext()) for row in rows] == ["←", "="]
    assert ["".join(row[3].itertext()).strip() for row in rows] == ["one", "two"]


def test_a_line_that_goes_on_stands_below_the_right_side():
    first, second = cells("E = a b\n    / (c d)")
    assert "".join(second[0].itertext()) == ""
    assert int(second[0].get("colspan")) == len(first) - 1


def test_the_text_stays_at_hand():
    table = ET.fromstring(equations.html(["a <- b"]))
    assert table.get("title") == "a <- b"


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x", "no sign here", "a = b[1 + 2", "x = tx.init(y)"]
)
def test_what_is_no_equation_is_left_alone(text):
    assert equations.html(text.splitlines()) is None
