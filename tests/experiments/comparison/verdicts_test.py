"""A verdict about a row: its gain, its chance, and how exact the searches are."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.comparison import verdicts
from tests.experiments.comparison.made import COST, GAINS, SIGNS, by_hand, kept


def of(tmp_path, **changed):
    return verdicts.verdicts(kept(tmp_path, by_hand(**changed))).set_index("rule")


def test_a_gain_has_holm_s_chance_of_all_rows_with_an_optimum(tmp_path):
    rows = of(tmp_path)
    varying = {name: one for name, one in GAINS.items() if one[1]}
    for name, (gain, spread) in varying.items():
        over_plain = gain - spread * SIGNS
        p = stats.ttest_1samp(over_plain, 0.0).pvalue
        below = sum(rows["p"][one] < rows["p"][name] for one in rows.index)
        tested = len(GAINS) - 1
        assert rows["p"][name] <= min(1.0, tested * p) * (1 + 1e-3)
        assert rows["p"][name] >= min(1.0, (tested - below) * p) * (1 - 1e-3)
        half = stats.t.ppf(0.975, len(SIGNS) - 1) * stats.sem(over_plain)
        assert rows["gain"][name] == pytest.approx(gain, abs=1e-5)
        assert rows["high"][name] == pytest.approx(gain + half, abs=1e-4)
    assert np.isnan(rows["p"]["not found"])
    assert rows["share"]["helps"] == pytest.approx(0.1 / COST, rel=1e-4)
    assert rows["test"]["helps"] == pytest.approx(2 * 0.1, rel=1e-4)


def test_a_verdict_needs_an_optimum_a_small_chance_and_two_bands(tmp_path):
    rows = of(tmp_path, little=(0.0015, 0.0001), surely=(0.0025, 0.0001))
    shown = rows["verdict"].to_dict()
    assert shown["not found"] == verdicts.NO_OPTIMUM
    assert shown["helps"] == shown["surely"] == verdicts.GAINS
    assert shown["no momentum"] == verdicts.LOSES
    # the band is 0.001 nats
    assert shown["little"] == shown["varies"] == verdicts.NOTHING_SEEN


def test_a_row_that_diverges_under_one_seed_says_so(tmp_path):
    result = by_hand()
    helps = result.results.query("rule == 'helps' and cluster == 'constant, 4'").index
    result.results.loc[helps[0], "diverged"] = 1
    rows = verdicts.verdicts(kept(tmp_path, result)).set_index("rule")
    assert rows["verdict"]["helps"] == verdicts.DIVERGES
    assert rows["verdict"]["just above"] == verdicts.GAINS


def test_clusters_count_apart_and_their_median_beside_the_mean(tmp_path):
    result, losses = by_hand(), ["train_loss", "test_loss"]
    rows, optima = result.results, result.selection.optima
    rows.loc[
        (rows["rule"] == "helps") & (rows["cluster"] == "constant, 4"), losses
    ] -= 0.3
    third = rows[rows["cluster"] == "constant, 4"].assign(cluster="memoryless, 16")
    third.loc[third["rule"] == "helps", losses] += (
        0.2  # from a gain of 0.4 to one of 0.2
    )
    others = optima[optima["cluster"] == "constant, 4"].assign(cluster="memoryless, 16")
    result = dataclasses.replace(
        result,
        results=pd.concat([rows, third], ignore_index=True),
        selection=result.selection._replace(
            optima=pd.concat([optima, others], ignore_index=True)
        ),
    )
    row = verdicts.verdicts(kept(tmp_path, result)).set_index("rule").loc["helps"]
    gains = {"memoryless, 4": 0.1, "constant, 4": 0.4, "memoryless, 16": 0.2}
    assert row["gain"] == pytest.approx(np.mean([*gains.values()]), abs=1e-4)
    assert row["median"] == pytest.approx(0.2, abs=1e-4)
    assert row["constant"] == pytest.approx(0.4, abs=1e-4)
    assert row["random"] == pytest.approx(0.15, abs=1e-4)


def test_tau_counts_the_pairs_of_rows_whose_order_differs_between_halves(tmp_path):
    """In one half of the seeds "varies" loses 0.19, in the other it gains as much."""
    gains = {name: gain for name, (gain, _) in GAINS.items()}
    pairs = [
        {one, other}
        for one, other in itertools.combinations(gains, 2)
        if abs(gains[one] - gains[other]) > 0.03
    ]
    turned = [{"varies", other} for other in ("helps", "just below", "just above")]
    assert all(pair in pairs for pair in turned)
    result = kept(tmp_path, by_hand(varies=(0.0, 0.19)))
    tau = verdicts.order_agrees(result, least={"sgd": 0.03})
    assert tau == pytest.approx(1 - 2 * len(turned) / len(pairs))
    assert np.isnan(verdicts.order_agrees(result, least={"sgd": 9.0}))
