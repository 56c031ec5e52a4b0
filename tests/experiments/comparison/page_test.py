"""The page about rules is made from the stored tables."""

import copy
import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from absl import app

from experiments.comparison import page, tables
from experiments.page import between_marks
from tests.experiments.comparison.made import TOLERANCES, by_hand


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A part of a table, made by hand."""
    rows = {"polynomial law": (0.2, 0.0), "linear decay": (0.3, 0.0)}
    rows["capped law"] = (0.1, 0.0)  # a quarter of the cost
    rows["DANA"] = (0.25, 0.0)  # is trained without delay too, and knows the worker
    rows["DANA, delay-blind twin"] = (0.2, 0.0)
    result = by_hand(**rows, **{"hinge law": (0.0, 0.1), "clipping": (0.0, 0.1)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "FOLDER", tmp_path_factory.mktemp("tables"))
        file = tables.file("digits", "short")
        tables.write(result, file, "digits, short; by hand", TOLERANCES)
        (part,) = page.parts()
    return part


def test_the_page_has_a_row_for_each_verdict_and_what_is_blind_first(made):
    text = page.markdown([made])
    (table,) = made.optimizers.values()
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    shown = {re.sub(r" \(.*", "", cells[0].strip("| ")): cells for cells in rows}
    assert {*shown} == {*made.rows["rule"]}
    for row in made.rows.to_dict("records"):
        cells = shown[row["rule"]]
        assert cells[-1].startswith(row["verdict"])
        if row["verdict"] != "no optimum":
            assert cells[1].startswith(f"{row['gain']:+.3f} (")
    assert "no gain seen, at most +0." in shown["hinge law"][-1]
    assert not any(shown["not found"][1:-1])  # there is no number without an optimum
    names = [*shown]
    assert names.index("linear decay") < names.index("DANA")
    assert table in text and made.costs in text
    assert "without knowledge of the delay linear decay +0.300 nats" in text
    assert "late gradients: DANA +0.250 nats (its twin +0.200), poly" in text


def test_a_gain_that_costs_test_loss_says_so(made):
    worse = {"linear decay": -0.2, "DANA": -0.1}
    tests = made.rows["rule"].map(worse).fillna(made.rows["test"])
    text = page.markdown([made._replace(rows=made.rows.assign(test=tests))])
    assert "delay linear decay +0.300 nats (test loss 0.200 higher)" in text
    assert "DANA +0.250 nats (its twin +0.200, test loss 0.100 higher), poly" in text


def test_the_page_has_the_numbers_of_the_optima_with_late_gradients(made):
    made = copy.deepcopy(made)
    optima = made.run.selection.optima
    clipping = optima["rule"] == "clipping"
    rows = clipping & (optima["cluster"] == "constant, 4")
    optima.loc[rows, "learning_rate"] = 1.5  # and 0.5 on the other late cluster
    made.run.selection.optima["rule_number"] = np.where(clipping, 1e6, np.nan)
    row = "| SGD | clipping | 1 (0.5 to 1.5) | 1 (1 to 1) | off on 2 of 2 |"
    assert row in made.chosen.splitlines()
    assert "| not found |" not in made.chosen and made.chosen in page.markdown([made])


def test_the_figure_shows_rows_with_an_optimum(made):
    figure = page.draw(made)
    (axis,) = figure.axes
    shown = [label.get_text() for label in axis.get_yticklabels()]
    assert {*shown} == {*made.rows["rule"]} - {"not found"}
    assert shown[0] == "linear decay"  # the largest gain is on top
    assert axis.get_ylim()[0] > axis.get_ylim()[1]


def test_the_figure_has_a_panel_an_optimizer_and_marks_what_is_off_its_scale(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    sgd = by_hand(far=(-2.0, 0.0))
    both = {"sgd": sgd, "adam": by_hand(far=(-0.1, 0.0))}

    def joined(f):
        named = [f(result).assign(optimizer=name) for name, result in both.items()]
        return pd.concat(named, ignore_index=True)

    optima = joined(lambda result: result.selection.optima)
    result = dataclasses.replace(
        sgd,
        results=joined(lambda result: result.results),
        selection=sgd.selection._replace(optima=optima),
    )
    tolerances = dict.fromkeys(both, 0.0001)
    tables.write(result, tables.file("digits", "short"), "by hand", tolerances)
    (part,) = page.parts()
    figure = page.draw(part)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]

    def names_at(axis, marker):
        lines = [line for line in axis.lines if line.get_marker() == marker]
        places = [(line.get_ydata()[0], line.get_xdata()[0]) for line in lines]
        return {names[round(row)]: gain for row, gain in places}

    for optimizer, axis in zip(("adam", "sgd"), figure.axes, strict=True):
        title = f"{page._NAMES[optimizer]}: cost 0.400"
        assert axis.get_title() == title
        assert [*names_at(axis, "x")] == ["far"] * (optimizer == "sgd")
        rows = part.rows[part.rows["optimizer"] == optimizer].set_index("rule")
        dots = names_at(axis, "o")
        assert dots == pytest.approx(rows["gain"][[*dots]].to_dict())


def test_the_readme_has_the_rows_that_gain_a_third_of_the_cost(made):
    lines = page.readme_table([made]).splitlines()
    header, _, costs, *rows = [line.strip("| ").split(" | ") for line in lines]
    assert header[1:] == ["digits, SGD"] and costs[1:] == ["0.400"]
    assert [cells[0] for cells in rows] == [
        "`optax.linear_schedule`",  # the rows that do not know the delay are first
        "`modulation.polynomial`",
        "`dana`",
    ]
    assert [cells[1] for cells in rows] == ["+0.300", "+0.200", "+0.250"]


def test_the_readme_says_which_rows_are_not_run_with_an_optimizer(made):
    only = made.rows[made.rows["rule"].isin(["plain", "hinge law"])]
    other = made._replace(study="cnn", rows=only.assign(optimizer="sgd"))
    lines = page.readme_table([made, other]).splitlines()
    shown = {cells[0]: cells[1:] for cells in _rows(lines)}
    assert shown["`dana`"] == ["+0.250", "not run"]


def test_the_readme_leaves_blank_what_an_optimizer_does_not_go_with(made):
    results = made.run.results
    results = pd.concat([results, results.assign(optimizer="adam")])
    optima = made.run.selection.optima
    optima = pd.concat([optima, optima.assign(optimizer="adam")])
    result = dataclasses.replace(
        made.run, results=results, selection=made.run.selection._replace(optima=optima)
    )
    plain = made.rows[made.rows["rule"] == "plain"].assign(optimizer="adam")
    both = made._replace(run=result, rows=pd.concat([made.rows, plain]))
    shown = {
        cells[0]: cells[1:] for cells in _rows(page.readme_table([both]).splitlines())
    }
    assert shown["`dana`"] == ["+0.250", ""]
    assert shown["`modulation.polynomial`"] == ["+0.200", "not run"]


def _rows(lines):
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


def test_without_a_table_there_is_no_page(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    with pytest.raises(app.UsageError, match="no table is stored: give the folder"):
        page.main(["page"])


@pytest.mark.runs
def test_the_kept_page_and_the_readme_are_made_of_the_kept_tables():
    made, readme = page.parts(), page.README.read_text()
    assert page.PAGE.read_text() == page.markdown(made)
    assert between_marks("rules", readme, page.readme_table(made)) == readme
