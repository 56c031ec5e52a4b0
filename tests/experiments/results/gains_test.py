"""A gain is a mean of paired differences, at the best values, with its t interval."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results.metrics import TimeTo
from experiments.results.runs import Run
from experiments.results.selection import Selection

RNG = np.random.default_rng(0)
SEEDS = 5


def rows(rule, cluster, rate, losses, **more):
    return [
        {"rule": rule, "cluster": cluster, "learning_rate": rate}
        | {"seed": seed, "train_loss": loss, **more}
        for seed, loss in enumerate(losses)
    ]


LOSSES = {
    (rule, cluster): RNG.uniform(1.0, 2.0, SEEDS)
    for rule in ("plain", "mine", "other")
    for cluster in ("a", "b")
}
RESULTS = pd.DataFrame(
    [
        row
        for (rule, cluster), losses in LOSSES.items()
        for rate in (0.1, 0.2)  # the larger step size is always worse
        for row in rows(rule, cluster, rate, losses + rate)
    ]
)
FOUND = Run(RESULTS, pd.DataFrame(), Selection(("learning_rate",)))


def t_interval(values):
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return values.mean() - half, values.mean() + half


def test_a_gain_is_the_mean_of_what_each_seed_gains_over_all_settings():
    table = FOUND.gains("plain").set_index("rule")
    assert list(table.index) == ["mine", "other"]
    for rule in table.index:
        gained = np.mean(
            [LOSSES["plain", one] - LOSSES[rule, one] for one in "ab"], axis=0
        )
        row = table.loc[rule]
        assert row["gain"] == pytest.approx(gained.mean())
        np.testing.assert_allclose((row["low"], row["high"]), t_interval(gained))
        assert row["settings"] == 2 and row["found"]


def test_a_gain_of_every_seed_may_still_be_a_loss_of_the_mean():
    """Its interval is the interval of a difference, which may be negative."""
    results = RESULTS.assign(
        train_loss=[
            {"plain": 2.0 + 0.1 * seed, "mine": 1.9, "other": 1.9}[rule]
            for rule, seed in zip(RESULTS["rule"], RESULTS["seed"], strict=True)
        ]
    )
    row = dataclasses.replace(FOUND, results=results).gains("plain").iloc[0]
    gained = 0.1 + 0.1 * np.arange(SEEDS)
    np.testing.assert_allclose((row["low"], row["high"]), t_interval(gained))


def test_one_seed_has_no_interval():
    result = dataclasses.replace(FOUND, results=RESULTS.query("seed == 0"))
    row = result.gains("plain").iloc[0]
    assert np.isfinite(row["gain"]) and np.isnan([row["low"], row["high"]]).all()


def test_a_setting_may_have_rows_of_its_own_or_be_left_out():
    table = FOUND.gains("plain", by=["cluster"])
    assert list(zip(table["rule"], table["cluster"], strict=True)) == [
        ("mine", "a"),
        ("mine", "b"),
        ("other", "a"),
        ("other", "b"),
    ]
    part = FOUND.gains("plain", cluster="b")
    both = table[table["cluster"] == "b"].reset_index(drop=True)
    pd.testing.assert_frame_equal(part[["gain", "low"]], both[["gain", "low"]])


def test_a_setting_that_one_of_them_lacks_does_not_count():
    results = RESULTS.query("not (rule == 'mine' and cluster == 'a')")
    row = dataclasses.replace(FOUND, results=results).gains("plain").iloc[0]
    gained = LOSSES["plain", "b"] - LOSSES["mine", "b"]
    assert row["gain"] == pytest.approx(gained.mean()) and row["settings"] == 1


def test_logarithms_compare_ratios():
    row = FOUND.gains("plain", logarithm=True, cluster="a").iloc[0]
    ratios = np.log((LOSSES["plain", "a"] + 0.1) / (LOSSES["mine", "a"] + 0.1))
    assert row["gain"] == pytest.approx(ratios.mean())


def test_times_are_compared_where_they_were_tuned_by():
    curves = pd.DataFrame(
        [
            {"rule": rule, "seed": 0, "update": update, "train_loss": 8 - pace * update}
            for rule, pace in (("plain", 1), ("mine", 2))
            for update in range(9)
        ]
    )
    results = curves.query("update == 8").drop(columns="update")
    time = TimeTo("train_loss", 4.0, along="update")
    row = Run(results, curves, Selection(by=time)).gains("plain").iloc[0]
    assert row["gain"] == 4 - 2


def test_optima_that_are_not_found_are_said():
    optima = pd.DataFrame(
        [
            {"rule": rule, "cluster": cluster, "learning_rate": 0.2, "found": result}
            for rule, cluster in LOSSES
            for result in [(rule, cluster) != ("mine", "b")]
        ]
    )
    selection = Selection(("learning_rate",), optima=optima.assign(score=0.1))
    table = Run(RESULTS, pd.DataFrame(), selection).gains("plain", by=["cluster"])
    assert list(table["found"]) == [True, False, True, True]
    # only rows at the optimum count, even if others are lower on these seeds
    gained = LOSSES["plain", "a"] - LOSSES["mine", "a"]
    assert table["gain"][0] == pytest.approx(gained.mean())
    best = Run(RESULTS, pd.DataFrame(), selection).best
    assert set(best["learning_rate"]) == {0.2}


SMALL = {
    # rule, cluster: losses of the seeds 0, 1, 2
    ("plain", 0): (1.0, 1.2, 1.4),
    ("plain", 4): (2.0, 2.1, 2.6),
    ("good", 0): (0.9, 1.2, 1.1),
    ("good", 4): (1.0, 1.0, 1.0),
    ("bad", 0): (1.5, 1.5, 1.5),
    ("bad", 4): (3.0, 3.0, 3.0),
}


def table(losses=SMALL, diverged=()):
    rows = [
        (rule, delay, seed, loss, int((rule, delay, seed) in diverged))
        for (rule, delay), each in losses.items()
        for seed, loss in enumerate(each)
    ]
    columns = ["rule", "delay", "seed", "train_loss", "diverged"]
    return pd.DataFrame(rows, columns=columns)


def gains(*args, selection=None, **options):
    result = Run(table(*args), pd.DataFrame(), selection or Selection())
    return result.gains("plain", **options)


def test_a_training_that_diverged_is_infinitely_bad():
    # its last finite loss does not count
    diverged = {("good", 4, 1)}
    rows = gains(SMALL, diverged, by=("delay",)).set_index(["rule", "delay"])
    assert rows["gain"]["good", 4] == -np.inf and rows["high"]["good", 4] == -np.inf
    assert np.isfinite(rows["gain"]["good", 0]) and np.isfinite(rows["gain"]["bad", 4])
    rows = gains(SMALL, {("plain", 4, 1)}, by=("delay",)).set_index(["rule", "delay"])
    assert rows["gain"]["good", 4] == np.inf == rows["low"]["good", 4]
    both = gains(SMALL, {("plain", 4, 1), ("good", 4, 1)}).set_index("rule")
    assert both.loc["good", ["gain", "low", "high"]].isna().all()
    assert both["gain"]["bad"] == np.inf


def test_what_has_no_settings_in_common_is_refused():
    losses = {key: each for key, each in SMALL.items() if key != ("good", 4)}
    losses.pop(("plain", 0))
    with pytest.raises(ValueError, match="'plain' and 'good' have no settings in"):
        gains(losses)
    with pytest.raises(ValueError, match="`over` must be a value of a label, got 'no"):
        Run(table(), pd.DataFrame()).gains("none")


def test_a_flag_is_no_number_and_a_rule_without_a_name_is_compared_too():
    columns = ["clipped", "workers", "rule", "seed", "train_loss"]
    table = [
        (clipped, workers, rule, seed, 1.0 * workers + (rule is None))
        for clipped in (False, True)
        for workers in (1, 2)
        for rule in ("a", "b", None)
        for seed in (0, 1)
    ]
    run = Run(pd.DataFrame(table, columns=columns), pd.DataFrame(), Selection())
    assert run.gains(1)["workers"].tolist() == [2]
    assert run.gains(1)["gain"].tolist() == [-1.0]
    assert run.gains(True)["clipped"].tolist() == [False]
    assert run.gains("a")["gain"].tolist() == [0.0, -1.0]
