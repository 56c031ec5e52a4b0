"""Pages escape texts from data, fail on missing variables, and fit on a phone."""

import re

import jinja2
import numpy as np
import pytest

from experiments import page
from experiments.page import Picture, Statement, Verdict
from experiments.results import claims
from experiments.results.estimates import Estimate

NASTY = '<b onclick="x">&amp;</b>'
CELLS = ["a", NASTY, 3, 0.123456, None, Verdict("reproduced"), Verdict("undecided")]


def advice(**changes):
    shown = dict(log="times.csv", verdicts={}, facts=[], pictures=[], assumed=[])
    shown["speeds"] = page.Table(NASTY, ["x", *CELLS[1:]], [CELLS])
    shown["times"] = page.Table("Times", ["x", "y"], [["a", "b"]])
    return page.render("advice.html", **shown | changes)


def test_no_text_of_the_data_is_markup():
    picture = Picture(NASTY, 'data:image/png;base64,"><script>')
    everywhere = advice(
        log=NASTY,
        verdicts={NASTY: NASTY},
        facts=[NASTY],
        pictures=[picture],
        assumed=[NASTY],
    )
    assert "<b onclick" not in everywhere and "<script" not in everywhere
    assert everywhere.count("&lt;b onclick=&#34;x&#34;&gt;&amp;amp;&lt;/b&gt;") >= 10


def test_data_that_lack_what_the_template_names_are_refused():
    with pytest.raises(jinja2.UndefinedError, match="'log' is undefined"):
        page.render("advice.html", verdicts={})


def test_each_table_scrolls_in_a_box_of_its_own_and_names_its_cells():
    shown = advice()
    assert shown.count("<table") == shown.count('class="box"') == 2
    assert re.search(r"\.box \{[^}]*overflow-x: auto", shown)
    # on a phone, the cells of a wide table are below each other, with their names
    assert shown.count('<table class="wide">') == 1
    assert '<td data-name="3">3</td><td data-name="0.123456">0.1235</td>' in shown
    assert '<td data-name="None"></td>' in shown
    assert '<th scope="row" data-name="x">a</th>' in shown
    assert 'name="viewport" content="width=device-width' in shown


def test_a_verdict_has_the_color_of_its_kind():
    kinds = {
        "met": ["met", claims.REPRODUCED, claims.SAME_DIRECTION],
        "missed": ["missed", claims.NOT_REPRODUCED],
        "note": [claims.UNDECIDED, claims.NOT_TESTED, "in part"],
    }
    for kind, words in kinds.items():
        assert {Verdict(word).kind for word in words} == {kind}
    assert '<span class="met">reproduced</span>' in advice()
    assert '<span class="note">undecided</span>' in advice()


def test_a_picture_is_inside_of_the_page_where_browsers_show_its_file():
    assert Picture.of("x", b"ab").source == "data:image/png;base64,YWI="
    assert Picture.of("x", b"ab", ".svg").source.startswith("data:image/svg+xml;")
    assert Picture.of("x", b"ab", ".pdf") == ("x", "")


def test_a_statement_says_what_was_tried_but_once():
    asked = dict(text="It halves", source="Doe", said="half", tried="more seeds")
    claim = claims.Published(**asked, measure=lambda result: 0.4, at_most=0.5)
    row = Statement.of(claims.Judged(claim, Estimate(0.4, 0.01, 5), claims.REPRODUCED))
    assert row.cells[:2] == ["It halves", "Doe; said: half"]
    measured = "0.4 (0.372 to 0.428); 5 seeds"
    assert row.cells[2:] == ["at most 0.5", measured, "reproduced"]
    assert row.note == "It halves: more seeds"
    untested = claims.Published(**asked)
    row = Statement.of(claims.Judged(untested, None, claims.NOT_TESTED, "more seeds"))
    assert (row.measured, row.note) == ("more seeds", "")


def test_a_statement_says_when_it_was_chosen():
    asked = dict(text="It halves", source="Doe", said="half", tried="more seeds")
    notes = []
    for chosen in claims.Chosen:
        claim = claims.Published(**asked, chosen=chosen)
        statement = Statement.of(claims.Judged(claim, None, claims.UNDECIDED))
        assert statement.chosen == str(chosen)
        notes.append(statement.note)
    later, unseen = claims.CHOSEN_NOTES.values()
    text = "It halves: more seeds"
    assert notes == [text, f"{text} {later}", f"{text} {unseen}"]


@pytest.mark.parametrize(
    ("chance", "shown"), [(0.0504, "0.051"), (0.03, "0.03"), (0.0, "0"), (np.nan, "")]
)
def test_a_p_value_is_rounded_up(chance, shown, monkeypatch):
    """0.0504 must not become 0.05, which would pass a level of 5 %."""
    monkeypatch.setattr(claims.Judged, "chance", chance)
    claim = claims.Published(
        text="Less", source="A", said="less", measure=lambda run: 1.0, at_most=2.0
    )
    judged = claims.Judged(claim, Estimate(1.0, 0.1, 5), claims.REPRODUCED)
    assert Statement.of(judged).p == shown
