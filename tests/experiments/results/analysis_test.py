"""Analysis of tables, compared with loops and with numbers that are easy to check."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results import analysis
from experiments.results.metrics import TimeTo
from experiments.results.selection import Selection

RATES, LAWS, SEEDS = (0.1, 0.2, 0.4), ("none", "inverse"), (0, 1, 2, 3)


def frame(seed=0):
    rng = np.random.default_rng(seed)
    rows = [
        {
            **{"learning_rate": rate, "law": law, "seed": seed},
            **{"train_loss": rng.random(), "test_loss": rng.random()},
            "diverged": int(rng.random() < 0.2),
        }
        for rate, law, seed in itertools.product(RATES, LAWS, SEEDS)
    ]
    return pd.DataFrame(rows)


def chosen(table, law):
    """The step size with the least mean loss; a diverged loss is infinite."""

    def mean(rate):
        scores = [
            math.inf if row.diverged else row.train_loss
            for row in table.itertuples()
            if (row.law, row.learning_rate) == (law, rate)
        ]
        return sum(scores) / len(scores)

    return min(RATES, key=mean)


@pytest.mark.parametrize("draw", [0, 1, 2, 3])
def test_one_step_is_chosen_for_all_seeds_of_a_series(draw):
    table, other = frame(draw), frame(draw + 100).assign(seed=lambda df: df.seed + 7)
    for tuning in (None, other):
        result = analysis.best(table, ["learning_rate"], tuning=tuning)
        assert sorted(result.seed) == sorted([*SEEDS] * len(LAWS))
        for row in result.itertuples():
            judges = table if tuning is None else tuning
            assert row.learning_rate == chosen(judges, row.law)
        # the rows are unchanged
        assert list(result) == list(table)
        assert len(result.merge(table)) == len(result)


def test_tuning_seeds_choose_among_the_values_that_are_shown():
    table, other = frame(4), frame(104)
    shown, judges = (
        analysis.where(rows, learning_rate=RATES[:2]) for rows in (table, other)
    )
    result = analysis.best(shown, ["learning_rate"], tuning=other)
    assert set(result.learning_rate) <= set(RATES[:2])
    assert result.equals(analysis.best(shown, ["learning_rate"], tuning=judges))


def test_a_metric_whose_name_has_to_in_it_is_not_valid_if_the_model_diverges():
    assert not analysis.is_fact("distance_to_optimum", frame())
    assert analysis.is_fact("seconds", frame()) and analysis.is_fact("law", frame())


def test_an_empty_tuple_leaves_no_row():
    table = frame()
    assert analysis.where(table, learning_rate=()).equals(table.iloc[:0])


def test_a_cell_that_a_seed_lacks_is_not_best():
    rows = [(0.1, 0, 1.0), (0.2, 0, 2.0), (0.2, 1, 2.0)]
    table = pd.DataFrame(rows, columns=["learning_rate", "seed", "train_loss"])
    assert set(analysis.best(table, ["learning_rate"]).learning_rate) == {0.2}


def test_a_time_to_a_value_may_decide_whatever_became_of_the_cell():
    """Step size 0.4 reaches the loss first, and diverges afterwards."""
    curves = pd.DataFrame(
        [
            dict(learning_rate=rate, seed=seed, update=u, seconds=u / rate, loss=loss)
            for rate in RATES
            for seed in (0, 1)
            for u, loss in enumerate((4.0, 2.0, 1.0))
        ]
    )
    results = curves[curves["update"] == 2].drop(columns=["update", "seconds"])
    gone = (results.learning_rate == 0.4).astype(int)
    results = results.assign(diverged=gone, ended_higher=gone)
    selection = Selection(("learning_rate",), TimeTo("loss", 2.0))
    assert set(selection.best(results, curves).learning_rate) == {0.4}
    assert "diverged" in selection.best(results, curves)
    table = selection.by.with_column(
        results, curves
    )  # a figure of the same time asks again
    pd.testing.assert_frame_equal(selection.by.with_column(table, curves), table)
    # with other seeds, 0.1 reaches the loss first
    slow = curves.assign(
        seed=curves.seed + 7, seconds=curves["update"] * curves.learning_rate
    )
    tuning = results.assign(seed=results.seed + 7)
    tuned = selection._replace(results=tuning, curves=slow)
    assert set(tuned.best(results, curves).learning_rate) == {0.1}
    assert tuned.seeds == [7, 8]
    assert tuned.but("learning_rate").best(results, curves) is results


def test_another_column_may_decide():
    table = frame(1).assign(diverged=0)
    swapped = table.rename(
        columns={"train_loss": "test_loss", "test_loss": "train_loss"}
    )
    result = analysis.best(swapped, ["learning_rate"], by="test_loss")
    expected = analysis.best(table, ["learning_rate"])
    assert result.learning_rate.tolist() == expected.learning_rate.tolist()
    other = analysis.best(swapped, ["learning_rate"])
    assert result.learning_rate.tolist() != other.learning_rate.tolist()


# (step size, loss, diverged, ended higher) of two seeds each -> the best
FATES = {
    "a diverged seed is worst, whatever is left of its loss": (
        [(0.1, 9.0, 0, 1), (0.3, 0.5, 1, 1)],
        0.1,
    ),
    "where all end higher the least loss is best, and not the first value": (
        [(0.1, 9.0, 0, 1), (0.3, 5.0, 0, 1), (1.0, 7.0, 0, 1)],
        0.3,
    ),
    "a value that ends higher is none beside one that does not": (
        [(0.1, 1.0, 0, 1), (0.3, 2.0, 0, 0)],
        0.3,
    ),
    "a seed that is not there is as bad as one that diverged": (
        [(0.1, None, 0, 0), (0.3, 5.0, 0, 1)],
        0.3,
    ),
}


@pytest.mark.parametrize("name", FATES)
def test_the_best_value_is_one_that_trains(name):
    cells, expected = FATES[name]
    rows = []
    for rate, loss, *fates in cells:
        rows.append((rate, 0, 0.5, 0, 0))  # one seed always trains
        rows += [(rate, 1, loss, *fates)] * (loss is not None)
    columns = ["learning_rate", "seed", "train_loss", "diverged", "ended_higher"]
    result = analysis.best(pd.DataFrame(rows, columns=columns), ["learning_rate"])
    assert result.learning_rate.unique().tolist() == [expected]


def test_an_absent_setting_is_a_value():
    table = frame()
    table["law"] = table.law.where(table.law != "none")
    assert len(analysis.best(table, ["learning_rate"])) == len(LAWS) * len(SEEDS)


def test_settings_stand_left_of_the_seed():
    assert analysis.settings(frame()) == ["learning_rate", "law"]


def test_spread_is_the_mean_and_its_t_interval_where_numbers_may_be_negative():
    table = frame()
    table["train_loss"] -= table["train_loss"].max()
    for row in analysis.spread(table, "train_loss", ["law"]).itertuples():
        values = table[table.law == row.law].groupby("seed").train_loss.mean()
        test = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert row.mean == pytest.approx(values.mean())
        assert (row.low, row.high) == pytest.approx((test.low, test.high))
        assert row.seeds == len(SEEDS)


def test_the_interval_of_what_is_not_negative_is_the_t_interval_of_its_logarithm():
    """By the delta method, the standard error of log(mean) is error(mean) / mean."""
    rng = np.random.default_rng(0)
    for spread in (0.001, 0.1, 1.0, 3.0):
        values = np.exp(spread * rng.standard_normal(6))
        for some in (values, values * (np.arange(6) > 0)):  # one may be 0
            table = pd.DataFrame({"seed": range(6), "loss": some})
            (row,) = analysis.spread(table, "loss", []).itertuples()
            t = stats.ttest_1samp(some, 0.0).confidence_interval()
            half = (t.high - t.low) / 2 / some.mean()
            expected = np.log(some.mean()) + half * np.array([-1, 1])
            np.testing.assert_allclose(np.log([row.low, row.high]), expected)
            assert 0 < row.low < row.mean < row.high
            if spread == 0.001 and some is values:
                assert (row.low, row.high) == pytest.approx((t.low, t.high), rel=1e-5)
    zeros = pd.DataFrame({"seed": range(6), "loss": [0.0] * 6})
    (row,) = analysis.spread(zeros, "loss", []).itertuples()
    assert (row.low, row.mean, row.high) == (0.0, 0.0, 0.0)


@pytest.mark.long
def test_of_five_seeds_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(500):
        table = pd.DataFrame({"seed": range(5), "loss": rng.exponential(size=5) ** 0.5})
        (row,) = analysis.spread(table, "loss", []).itertuples()
        hits += row.low <= math.gamma(1.5) <= row.high
    assert 0.92 <= hits / 500 <= 0.98


def test_one_seed_has_no_interval():
    table = pd.DataFrame({"seed": [0], "loss": [2.0]})
    (row,) = analysis.spread(table, "loss", []).itertuples()
    assert (row.low, row.mean, row.high, row.seeds) == (2.0, 2.0, 2.0, 1)


def test_spread_of_what_has_no_value_is_none_and_of_infinity_infinite():
    table = pd.DataFrame({"seed": [0, 1], "a": [math.nan] * 2, "b": [1.0, math.inf]})
    assert math.isnan(analysis.spread(table, "a", []).low.item())
    result = analysis.spread(table, "b", [])
    assert (result.low.item(), result.high.item()) == (math.inf, math.inf)
    assert result.seeds.item() == 1


def test_where_compares_numbers_in_float32_and_takes_several():
    table = frame()
    assert len(analysis.where(table, learning_rate=np.float32(0.1).item())) == 8
    assert len(analysis.where(table, learning_rate=(0.1, 0.2), law="none")) == 8
    with pytest.raises(KeyError):
        analysis.where(table, momentum=0.9)


def test_time_to_is_where_the_line_between_evaluations_crosses():
    curves = pd.DataFrame(
        {
            "law": ["a"] * 3 + ["b"] * 3,
            "seed": 0,
            "update": [0, 10, 20] * 2,
            "seconds": [0.0, 1.0, 3.0] * 2,
            "train_loss": [4.0, 3.0, 1.0, 5.0, 5.0, 5.0],
        }
    )
    result = analysis.time_to(curves, "train_loss", 1.5)
    assert result["a", 0] == 1.0 + 2.0 * 0.75 and result["b", 0] == math.inf
    updates = analysis.time_to(curves, "train_loss", 3.5, along="update")
    assert updates["a", 0] == 5.0
    at_once = analysis.time_to(curves, "train_loss", 4.5)
    assert at_once["a", 0] == 0.0 and at_once["b", 0] == math.inf
    assert list(result.index.names) == ["law", "seed"]


def test_derived_columns_are_errors_and_the_gap():
    result = analysis.derived(frame().assign(test_accuracy=0.75))
    assert (result.test_error == 0.25).all() and "train_error" not in result
    measured = analysis.derived(frame().assign(test_accuracy=0.75, test_error=0.5))
    assert (measured.test_error == 0.5).all()  # of the task or of `metrics`
    np.testing.assert_allclose(result.gap, result.test_loss - result.train_loss)


def test_every_setting_has_a_name():
    rows = pd.DataFrame({"protocol": ["sync", None], "bound": [None, 2.0], "seeds": 1})
    settings = analysis.distinguishing(rows)
    assert settings == ["protocol", "bound"]
    names = [
        analysis.label({k: row[k] for k in settings}) for row in rows.to_dict("records")
    ]
    assert names == ["sync", "bound=2"]
    assert analysis.label({"law": None}) == "plain"


def test_large_integers_and_flags_are_compared_exactly():
    seeds = [20240101 + i for i in range(3)]
    table = pd.DataFrame({"clipped": [True, False, None], "seed": seeds})
    assert analysis.where(table, seed=20240102)["seed"].tolist() == [20240102]
    assert analysis.where(table, clipped=True)["seed"].tolist() == seeds[:1]
    assert analysis.where(table, clipped=1).empty
    flags = table.dropna().astype({"clipped": bool})
    assert analysis.where(flags, clipped=0).empty
    assert analysis.where(flags, clipped=np.False_)["seed"].tolist() == seeds[1:2]


def test_numbers_of_numpy_are_numbers_and_an_array_is_several():
    table = pd.DataFrame({"rate": [0.1, 0.3, 1.0]})
    assert analysis.where(table, rate=np.float32(0.1))["rate"].tolist() == [0.1]
    assert analysis.where(table, rate=(np.float32(0.3), 1))["rate"].tolist() == [0.3, 1]
    assert analysis.where(table, rate=np.array([0.1, 1.0]))["rate"].tolist() == [0.1, 1]


def test_a_row_that_is_there_twice_is_one_seed():
    """Step 0.3 lacks seed 1, though it has as many rows as seeds."""
    rows = [(0.1, 0, 3.0), (0.1, 1, 2.0), (0.3, 0, 1.0), (0.3, 0, 1.0)]
    table = pd.DataFrame(rows, columns=["learning_rate", "seed", "train_loss"])
    best = analysis.best(table, ["learning_rate"])
    assert set(best["learning_rate"]) == {0.1}
    doubled = pd.concat([table.iloc[[0, 1]], frame_at(0.3)] * 2)
    assert set(analysis.best(doubled, ["learning_rate"])["learning_rate"]) == {0.3}


def frame_at(rate):
    rows = [(rate, 0, 1.0), (rate, 1, 1.0)]
    return pd.DataFrame(rows, columns=["learning_rate", "seed", "train_loss"])
