"""The stored tables have what a run found, and decide which rows continue."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.comparison import rules, studies, tables
from tests.experiments.comparison.made import COST, GAINS, TOLERANCES, by_hand, kept


def test_a_stored_table_has_the_numbers_and_both_losses_of_each_seed(tmp_path):
    result = by_hand()
    read = kept(tmp_path, result)
    plain = read.where(rule=tuple(GAINS)).results
    keys = ["optimizer", "rule", "cluster", "seed"]
    both = plain.merge(result.results, on=keys, suffixes=("", "_there"))
    assert len(both) == len(plain) == len(result.results)
    for name in ("learning_rate", "decay", "train_loss", "test_loss"):
        np.testing.assert_allclose(both[name], both[f"{name}_there"], rtol=1e-5)
    of_plain = {"optimizer": "sgd", "rule": "not found"}
    optima = read.selection.optima
    assert not optima[(optima[[*of_plain]] == pd.Series(of_plain)).all(axis=1)][
        "found"
    ].any()


def test_a_training_that_diverged_is_stored_as_infinite(tmp_path):
    result = by_hand()
    result.results.loc[0, "diverged"] = 1
    assert kept(tmp_path, result).results["train_loss"].iloc[0] == np.inf


def test_the_gains_are_over_the_better_of_plain_and_no_momentum(tmp_path):
    """On each cluster, the baseline is the one with the smaller score in its search."""
    result = kept(tmp_path, by_hand(**{"no momentum": (0.05, 0.0)}))
    table = tables.gains(result).set_index("rule")["gain"]
    assert table["helps"] == pytest.approx(0.1 - 0.05)
    assert table["plain"] == pytest.approx(-0.05)
    assert tables.costs(result)["sgd"] == pytest.approx(COST - 0.05)


def test_a_row_stops_if_its_interval_is_below_a_tenth_of_the_cost(tmp_path):
    rest = tables.going_on(kept(tmp_path, by_hand()))
    assert {*rest} == {
        *(row.name for row in (rules.BASELINE, rules.AGAIN, rules.NO_MOMENTUM)),
        *("helps", "varies", "just above", "not found"),
    }
    assert rest["helps"] == {"sgd"}


def test_a_row_stops_below_two_bands_if_the_search_is_less_exact(tmp_path):
    """The band here is 0.06 nats, and the cost 0.4."""
    result = kept(tmp_path, by_hand(**{"plain, searched again": (-0.06, 0.0)}))
    assert tables.thresholds(result)["sgd"] == pytest.approx(0.12)
    rest = tables.going_on(result)
    assert not rest.keys() & {"helps", "just above"} and "varies" in rest


def test_no_gain_matters_that_is_less_than_two_tolerances(tmp_path):
    result = kept(tmp_path, by_hand(), tolerances={"sgd": 0.05})
    assert tables.inexact(result)["sgd"] == tables.thresholds(result)["sgd"] == 0.1
    assert "just above" not in tables.going_on(result)


def test_a_run_replaces_its_rows_and_keeps_those_of_other_rules_and_optimizers(
    tmp_path,
):
    path, first = tmp_path / "made_short.csv", by_hand()
    tables.write(first, path, "first", {"sgd": 0.0001})
    rows = by_hand(helps=(0.3, 0.0)).where(rule=("plain", "helps"))
    tables.write(rows, path, "again", {"sgd": 0.0001})
    table = pd.read_csv(path)
    assert not table.duplicated(["optimizer", "rule", "cluster"]).any()
    rows = table.loc[table["about"] == "again", "rule"]
    assert {*rows} == {"plain", "helps"}
    assert {*table["rule"]} == {*GAINS}
    gains = tables.gains(tables.read(path)).set_index("rule")["gain"]
    assert gains["helps"] == pytest.approx(0.3)
    assert gains["just above"] == pytest.approx(GAINS["just above"][0])
    adam = dataclasses.replace(
        first,
        results=first.results.assign(optimizer="adam"),
        selection=first.selection._replace(
            optima=first.selection.optima.assign(optimizer="adam")
        ),
    )
    tables.write(adam, path, "adam", {"adam": 0.001})
    both = pd.read_csv(path)
    assert len(both) == 2 * len(table)
    pd.testing.assert_frame_equal(both[: len(table)], table)


def test_rows_that_go_on_have_a_blind_twin_if_they_read_the_delay(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"digits_short.csv is missing: run"):
        studies.rows_of("digits", "full")
    changed = {"polynomial law": (0.2, 0.0), "clipping": (0.2, 0.0)}
    result = by_hand(**changed, **{"hinge law": (-0.2, 0.0)})
    tables.write(result, tables.file("digits", "short"), "by hand", TOLERANCES)
    rows = {row.name: row for row in studies.rows_of("digits", "full")}
    assert {*changed, "polynomial law, delay-blind twin"} <= {*rows}
    assert rows["hinge law"].optimizers == ("adam", "muon")  # SGD has been stopped
    assert "clipping, delay-blind twin" not in rows
    assert rows["late updates"].optimizers == ("adam", "muon", "sgd")
    assert len(studies.rows_of("digits", "short")) == len(rules.RULES)
    # a row or an optimizer without results of the short stage is not stopped
    assert rows["polynomial law"].optimizers == ("adam", "muon", "sgd")
    assert rows["DANA"].optimizers == ("sgd",)
    assert rows["plain"].optimizers == ("adam", "muon", "sgd")
