"""Gains over another way to train, on small tables written by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments import Found
from experiments.results.choice import Choice, TimeTo

LOSSES = {
    # rule, delay: losses of the seeds 0, 1, 2
    ("plain", 0): (1.0, 1.2, 1.4),
    ("plain", 4): (2.0, 2.1, 2.6),
    ("good", 0): (0.9, 1.2, 1.1),
    ("good", 4): (1.0, 1.0, 1.0),
    ("bad", 0): (1.5, 1.5, 1.5),
    ("bad", 4): (3.0, 3.0, 3.0),
}


def table(losses=LOSSES, diverged=()):
    rows = [
        (rule, delay, seed, loss, int((rule, delay, seed) in diverged))
        for (rule, delay), each in losses.items()
        for seed, loss in enumerate(each)
    ]
    columns = ["rule", "delay", "seed", "train_loss", "diverged"]
    return pd.DataFrame(rows, columns=columns)


def gains(*args, choice=None, **options):
    found = Found(table(*args), pd.DataFrame(), choice or Choice())
    return found.gains("plain", **options)


def interval(differences):
    """Of the mean over seeds, where some difference is negative."""
    half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    return np.mean(differences) - half, np.mean(differences) + half


@pytest.mark.parametrize("logarithm", [False, True])
def test_a_gain_is_the_mean_over_settings_of_the_baseline_less_the_other(logarithm):
    of = np.log if logarithm else np.asarray
    rows = gains(logarithm=logarithm).set_index("rule")
    assert [*rows.index] == ["good", "bad"]
    each = {
        rule: np.mean(
            [of(LOSSES["plain", d]) - of(LOSSES[rule, d]) for d in (0, 4)], axis=0
        )
        for rule in ("good", "bad")
    }
    for rule, row in rows.iterrows():
        assert row["gain"] == pytest.approx(each[rule].mean())
        assert row["settings"] == 2 and row["found"]
    assert (rows["low"]["bad"], rows["high"]["bad"]) == pytest.approx(
        interval(each["bad"])
    )


def test_settings_may_have_rows_of_their_own_or_be_left_out():
    rows = gains(by=("delay",), delay=(4,))
    assert rows[["rule", "delay", "settings"]].values.tolist() == [
        ["good", 4, 1],
        ["bad", 4, 1],
    ]
    expected = np.subtract(LOSSES["plain", 4], LOSSES["good", 4]).mean()
    assert rows["gain"][0] == pytest.approx(expected)


def test_a_training_that_diverged_is_infinitely_bad():
    # its last finite loss says nothing
    diverged = {("good", 4, 1)}
    rows = gains(LOSSES, diverged, by=("delay",)).set_index(["rule", "delay"])
    assert rows["gain"]["good", 4] == -np.inf and rows["high"]["good", 4] == -np.inf
    assert np.isfinite(rows["gain"]["good", 0]) and np.isfinite(rows["gain"]["bad", 4])
    rows = gains(LOSSES, {("plain", 4, 1)}, by=("delay",)).set_index(["rule", "delay"])
    assert rows["gain"]["good", 4] == np.inf == rows["low"]["good", 4]
    both = gains(LOSSES, {("plain", 4, 1), ("good", 4, 1)}).set_index("rule")
    assert both.loc["good", ["gain", "low", "high"]].isna().all()
    assert both["gain"]["bad"] == np.inf


def test_what_has_no_settings_in_common_is_refused():
    losses = {key: each for key, each in LOSSES.items() if key != ("good", 4)}
    losses.pop(("plain", 0))
    with pytest.raises(ValueError, match="'plain' and 'good' have no settings in"):
        gains(losses)
    with pytest.raises(ValueError, match="`over` must be a value of a label"):
        Found(table(), pd.DataFrame()).gains("none")


@pytest.mark.parametrize("bad", ["plain", "good"])
def test_a_gain_is_found_where_both_optima_are(bad):
    series = [(rule, delay) for rule, delay in LOSSES]
    optima = pd.DataFrame(series, columns=["rule", "delay"])
    optima = optima.assign(rate=0.1, found=[s != (bad, 4) for s in series])
    frame = table()
    frame.insert(0, "rate", 0.1)
    found = Found(frame, pd.DataFrame(), Choice(("rate",), optima=optima))
    rows = found.gains("plain", by=("delay",)).set_index(["rule", "delay"])["found"]
    for rule, delay in itertools.product(("good", "bad"), (0, 4)):
        assert rows[rule, delay] == (delay == 0 or bad not in (rule, "plain"))


def test_times_are_compared_where_a_time_chooses():
    columns = ["rule", "seed", "train_loss", "update"]
    rows = [("plain", 0, 1.0, 0), ("plain", 0, 0.0, 10)]
    rows += [("good", 0, 1.0, 0), ("good", 0, 0.0, 5)]
    curves = pd.DataFrame(rows, columns=columns)
    results = curves[curves["update"] > 0].drop(columns="update")
    by = TimeTo("train_loss", 0.5, along="update")
    # it counts whether it got there, not what became of it
    found = Found(results.assign(diverged=1), curves, Choice(by=by))
    assert found.gains("plain")["gain"].tolist() == [10 / 2 - 5 / 2]
