"""Which rows of a run are at the optima that were searched."""

import numpy as np
import pandas as pd
import pytest

from experiments.results.metrics import TimeTo
from experiments.results.selection import Selection

COLUMNS = ["rule", "window", "rate", "decay", "seed", "train_loss"]
ROWS = [
    # searched: rate and decay, the optimum and the optimum of another series
    ("a", None, 0.1, 0.5, 0, 1.0),
    ("a", None, 0.3, 0.5, 0, 0.5),
    # searched: rate alone
    ("b", None, 0.2, None, 0, 1.0),
    # searched: none
    ("a", 4, 0.7, None, 0, 1.0),
    ("c", None, 0.3, None, 0, 1.0),
]
OPTIMA = pd.DataFrame(
    [("a", 0.1, 0.5, 0.9, True), ("b", 0.2, None, 0.9, False)],
    columns=["rule", "rate", "decay", "score", "found"],
)
RESULTS = pd.DataFrame(ROWS, columns=COLUMNS)


def selection(**changes):
    return Selection(("rate", "decay"), optima=OPTIMA)._replace(**changes)


def test_the_best_rows_are_those_at_the_optima_and_of_what_was_not_searched():
    best = selection().best(RESULTS, pd.DataFrame())
    kept = RESULTS.iloc[[0, 2, 3, 4]].reset_index(drop=True)
    # a better loss than the optimum's does not choose on the reported seeds
    pd.testing.assert_frame_equal(best, kept, check_dtype=False)


def test_what_was_not_searched_counts_as_found():
    result = selection().are_found(RESULTS)
    assert result.tolist() == [True, True, False, True, True]


def test_kept_rows_have_the_values_of_the_reference_seed_by_seed():
    rows = [(rate, seed, rate + seed) for rate in (0.1, 0.3) for seed in (0, 1)]
    results = pd.DataFrame(rows, columns=["rate", "seed", "train_loss"])
    reference = results.iloc[[0, 3]]  # 0.1 of seed 0, 0.3 of seed 1
    kept = Selection(("rate", "decay")).kept(results, reference)
    assert kept.to_numpy().tolist() == reference.to_numpy().tolist()


def test_one_series_without_a_label_is_found_or_not():
    results = RESULTS[RESULTS["rule"] == "b"].drop(columns=["rule", "window", "decay"])
    one = Selection(("rate",), optima=OPTIMA[["rate", "score", "found"]].tail(1))
    assert one.are_found(results).tolist() == [False]
    assert len(one.best(results, pd.DataFrame())) == 1
    assert one.are_found(results.iloc[:0]).empty


def test_numbers_among_words_are_the_same_settings_in_both_tables():
    # a column of a file has text where one of its values is a word
    results = pd.DataFrame(
        [("4", 0.1, 0, 1.0), ("all", 0.3, 0, 1.0)],
        columns=["K", "rate", "seed", "train_loss"],
    )
    optima = pd.DataFrame([(4.0, 0.1, False)], columns=["K", "rate", "found"])
    optima = optima.assign(score=1.0)
    chosen = Selection(("rate",), optima=optima)
    assert chosen.are_found(results).tolist() == [False, True]
    assert [*chosen.best(results, pd.DataFrame())["K"]] == ["4", "all"]


@pytest.mark.parametrize("metric", ["train_loss", TimeTo("train_loss", 0.6, "update")])
def test_the_scores_of_the_searches_choose_a_listed_axis_and_no_reported_seed(metric):
    def choice_of(scores):
        rows = [("a", 1, 0.1), ("a", 2, 0.3)]
        optima = pd.DataFrame(rows, columns=["rule", "period", "rate"])
        optima = optima.assign(score=scores, found=True)
        return Selection(("rate", "period"), metric, optima=optima)

    # period 1 diverges under a reported seed, where period 2 is better too
    losses = {("a", 1, 0.1): (9.0, np.nan), ("a", 2, 0.3): (0.1, 0.1)}
    # where nothing is searched the reported seeds choose, because no others do
    losses |= {("b", 1, 0.2): (1.0, 1.0), ("b", 2, 0.2): (0.5, 0.5)}
    cells = [(*one, s, losses[one][s]) for one in losses for s in (0, 1)]
    columns = ["rule", "period", "rate", "seed", "train_loss"]
    results = pd.DataFrame(cells, columns=columns)
    results["diverged"] = results["train_loss"].isna().astype(int)
    curves = results.drop(columns="diverged").assign(update=3)
    for scores, period in (((0.1, 0.2), 1), ((0.2, 0.1), 2), ((np.nan, 0.1), 2)):
        best = choice_of(scores).best(results, curves)
        periods = best.groupby("rule")["period"].unique().map(list).to_dict()
        assert periods == {"a": [period], "b": [2]}
    # tuning seeds choose where there are any
    tuning = results.assign(seed=results["seed"] + 1000)
    chosen = choice_of((0.1, 0.2))._replace(results=tuning, curves=curves)
    if metric == "train_loss":
        best = chosen.best(results, curves)
        assert [*best[best["rule"] == "a"]["period"].unique()] == [2]


@pytest.mark.parametrize("setting", [True, False])
def test_runs_that_are_read_together_keep_their_own_optima(setting):
    parts = [
        RESULTS[RESULTS["rule"] == rule].assign(run=run)
        for rule, run in (("b", "first"), ("b", "second"))
    ]
    results = pd.concat(parts, ignore_index=True)
    results.loc[1, "rate"] = 0.9
    optima = pd.concat(
        [
            OPTIMA.tail(1).assign(run="first"),
            OPTIMA.tail(1).assign(run="second", rate=0.9, found=True),
        ]
    )
    if not setting:  # the shards of a run: other series, whose run does not tell
        results.loc[1, "rule"] = "d"
        optima["rule"] = ["b", "d"]
    left = ["run"] * setting + COLUMNS
    results = results[[*left, *(name for name in results if name not in left)]]
    both = Selection(("rate", "decay"), optima=optima)
    assert both.are_found(results).tolist() == [False, True]
    assert both.best(results, pd.DataFrame())["rate"].tolist() == [0.2, 0.9]
