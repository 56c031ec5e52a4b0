"""Which step sizes are chosen, what makes that unfair, and how series are named."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from experiments import tuning
from experiments.tuning import Series
from tests.rows import ROW, best_at, grid

PLAIN = Series("sgd", "constant", "none", "after", "none", 0.0)


def pair(curves, series=PLAIN):
    """The fixed and the re-tuned curve of a series."""
    fixed, tuned = (curve for curve in curves if curve.series == series)
    assert (fixed.retuned, tuned.retuned) == (False, True)
    return fixed, tuned


@pytest.mark.parametrize("select_by", ["train_loss", "test_accuracy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_selection_is_the_exhaustive_one(seed, select_by):
    draw = np.random.default_rng(seed)
    rates, delays, seeds = (0.01, 0.1, 1.0), (0, 1, 8), (0, 1, 2)
    run = [
        dataclasses.replace(
            ROW,
            optimizer=optimizer,
            modulation=law,
            learning_rate=rate,
            delay=delay,
            seed=replicate,
            diverged=bool(draw.random() < 0.15),
            train_loss=draw.random(),
            test_loss=draw.random(),
            test_accuracy=draw.random(),
        )
        for optimizer, law, rate, delay, replicate in itertools.product(
            ("sgd", "adam"), ("none", "inverse"), rates, delays, seeds
        )
    ]

    def cell(optimizer, law, rate, delay):
        return [
            row
            for row in run
            if (row.optimizer, row.modulation) == (optimizer, law)
            and (row.learning_rate, row.delay) == (rate, delay)
        ]

    def best(optimizer, law, delay):
        scores = []
        for rate in rates:
            rows = cell(optimizer, law, rate, delay)
            sign = -1 if select_by == "test_accuracy" else 1
            score = sign * sum(getattr(row, select_by) for row in rows)
            scores.append(math.inf if any(r.diverged for r in rows) else score)
        return rates[scores.index(min(scores))]

    found = tuning.curves(run, "test_loss", select_by=select_by)
    assert len(found) == 2 * 2 * 2
    for curve in found:
        optimizer, law = curve.series.optimizer, curve.series.modulation
        assert [point.delay for point in curve.points] == list(delays)
        for point in curve.points:
            rate = best(optimizer, law if curve.retuned else "none", 0)
            if curve.retuned:
                rate = best(optimizer, law, point.delay)
            assert point.learning_rate == rate
            rows = cell(optimizer, law, rate, point.delay)
            values = [math.nan if row.diverged else row.test_loss for row in rows]
            np.testing.assert_array_equal(point.values, values)
            assert point.diverged == sum(row.diverged for row in rows)


def test_a_step_under_which_one_seed_diverges_loses():
    def loss(rate, delay, seed):
        return math.inf if (rate, seed) == (0.4, 2) else 1.0 / rate

    _, tuned = pair(tuning.curves(grid(loss), "train_loss"))
    assert [point.learning_rate for point in tuned.points] == [0.2, 0.2]


def test_a_fixed_step_that_diverges_stays_in_the_curve_without_a_mean():
    def loss(rate, delay, seed):
        return math.nan if delay and rate > 0.1 and seed == 1 else 1.0 / rate

    fixed, tuned = pair(tuning.curves(grid(loss), "train_loss"))
    assert [point.learning_rate for point in fixed.points] == [0.4, 0.4]
    late = fixed.points[1]
    assert late.diverged == 1
    assert math.isnan(late.mean) and all(map(math.isnan, late.spread))
    assert late.values[0] == 1.0 / 0.4  # the seeds that survived are still told
    assert tuned.points[1].diverged == 0
    assert tuned.points[1].mean == pytest.approx(1.0 / 0.1)


def test_the_smaller_of_two_equal_steps_is_chosen():
    rows = grid(lambda rate, delay, seed: 1.0)[::-1]
    _, tuned = pair(tuning.curves(rows, "train_loss"))
    assert [point.learning_rate for point in tuned.points] == [0.1, 0.1]


def test_the_fixed_step_is_that_of_the_plain_baseline():
    plain = grid(best_at({0: 0.2, 4: 0.1}))
    other = grid(best_at({0: 0.4, 4: 0.4}), compensation="dc", strength=0.04)
    series = PLAIN._replace(compensation="dc", strength=0.04)
    fixed, tuned = pair(tuning.curves(plain + other, "gap"), series)
    assert [point.learning_rate for point in fixed.points] == [0.2, 0.2]
    assert [point.learning_rate for point in tuned.points] == [0.4, 0.4]
    fixed, _ = pair(tuning.curves(other, "gap"), series)
    assert [point.learning_rate for point in fixed.points] == [0.4, 0.4]


def test_the_baseline_of_two_placements_counts_each_seed_once():
    rows = grid(best_at({0: 0.2, 4: 0.2})) + grid(
        best_at({0: 0.2, 4: 0.2}), placement="before", test_loss=9.0
    )
    table = tuning.table(rows)
    assert list(table) == [PLAIN]
    cell = table[PLAIN][4][0.2]
    assert [row.seed for row in cell] == [0, 1, 2]
    assert {row.test_loss for row in cell} == {0.6}


def test_the_spread_is_the_range_and_the_deviation_has_n_minus_1():
    values = (0.2, 0.5, 0.9)
    rows = grid(lambda rate, delay, seed: values[seed])
    _, tuned = pair(tuning.curves(rows, "train_loss"))
    point = tuned.points[0]
    assert point.values == values
    assert point.spread == (0.2, 0.9)
    mean = sum(values) / 3
    assert point.mean == pytest.approx(mean)
    assert point.deviation == pytest.approx(
        math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    )
    rows = grid(lambda rate, delay, seed: 1.0, seeds=(0,))
    assert math.isnan(pair(tuning.curves(rows, "train_loss"))[1].points[0].deviation)


def test_a_best_step_at_an_end_of_the_grid_is_on_the_edge():
    rows = grid(best_at({0: 0.1, 4: 0.2, 8: 0.4}), delays=(0, 4, 8))
    curves = tuning.curves(rows, "train_loss")
    _, tuned = pair(curves)
    assert [point.edge for point in tuned.points] == ["smallest", "", "largest"]
    assert [point.on_edge for point in tuned.points] == [True, False, True]
    low, high = tuning.edge_warnings(curves)
    for sentence, words in (
        (low, ("sgd", "delay 0 ", "0.1", "smallest tried", "add smaller")),
        (high, ("sgd", "delay 8 ", "0.4", "largest tried", "add larger")),
    ):
        assert all(word in sentence for word in (*words, "opt.sgd.learning_rate"))


def test_delays_of_one_edge_and_series_of_one_fault_share_a_sentence():
    best = best_at({0: 0.4, 4: 0.4})
    rows = grid(best) + grid(best, modulation="inverse")
    (sentence,) = tuning.edge_warnings(tuning.curves(rows, "train_loss"))
    assert sentence.startswith("sgd; sgd, inverse after: the best step size at delays")
    assert "delays 0, 4 is 0.4" in sentence


def test_a_fair_grid_gives_no_warning():
    rows = grid(best_at({0: 0.2, 4: 0.2}))
    assert tuning.edge_warnings(tuning.curves(rows, "train_loss")) == []


def test_one_step_size_is_no_edge_but_a_warning():
    rows = grid(lambda *cell: 1.0, rates=(0.3,))
    curves = tuning.curves(rows, "train_loss")
    assert not any(point.on_edge for curve in curves for point in curve.points)
    (sentence,) = tuning.edge_warnings(curves)
    assert "only the step size 0.3" in sentence


def test_a_delay_at_which_all_diverges_is_told():
    def loss(rate, delay, seed):
        return math.nan if delay else abs(rate - 0.2)

    curves = tuning.curves(grid(loss), "train_loss")
    _, tuned = pair(curves)
    assert tuned.points[1].diverged == 3
    (sentence,) = tuning.edge_warnings(curves)
    assert "every step size diverged at delay 4, down to 0.1" in sentence


def test_a_fixed_step_that_was_not_run_is_told():
    best = best_at({0: 0.2, 4: 0.2})
    rows = [row for row in grid(best) if (row.delay, row.learning_rate) != (4, 0.2)]
    curves = tuning.curves(rows, "train_loss")
    fixed, _ = pair(curves)
    assert fixed.points[1].values == () and math.isnan(fixed.points[1].mean)
    sentence = tuning.edge_warnings(curves)[0]
    assert "fixed step size 0.2 was not run at delay 4" in sentence


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_seeds_are_told(count):
    rows = grid(best_at({0: 0.2, 4: 0.2}), seeds=range(count))
    (sentence,) = tuning.edge_warnings(tuning.curves(rows, "train_loss"))
    assert sentence.startswith(f"{count} seed")


def test_what_the_task_does_not_record_is_refused():
    rows = grid(best_at({0: 0.2, 4: 0.2}), test_accuracy=math.nan)
    with pytest.raises(ValueError, match="`metric` is 'test_accuracy'"):
        tuning.curves(rows, "test_accuracy")
    with pytest.raises(ValueError, match="`select_by` is 'test_accuracy'"):
        tuning.curves(rows, "train_loss", select_by="test_accuracy")
    with pytest.raises(ValueError, match="`metric` must be among train_loss"):
        tuning.curves(rows, "loss")


def test_names_tell_series_apart_and_nothing_more():
    dc = PLAIN._replace(compensation="dc")
    gap = PLAIN._replace(compensation="gap_aware")
    law = PLAIN._replace(modulation="inverse", placement="before")
    late = PLAIN._replace(delay_law="geometric")
    among = [PLAIN, dc, dc._replace(strength=0.5), gap, law]
    assert [tuning.label(series, among) for series in among] == [
        *("sgd", "sgd, dc 0", "sgd, dc 0.5", "sgd, gap_aware", "sgd, inverse before"),
    ]
    assert tuning.label(PLAIN, among, optimizer=False) == "plain"
    assert tuning.label(law, among, optimizer=False) == "inverse before"
    assert tuning.label(late, [PLAIN, late]) == "sgd, geometric"


ARMS = ("hardsync()", "k_async(1)")


def grid_of_arms(best_rate, **changes):
    """Rows of two arms, each with a step size of its own that is best."""
    rows = []
    for arm in ARMS:
        loss = best_at({0: best_rate[arm]})
        rows += grid(loss, delays=(0,), delay_law="trace", arm=arm, **changes)
    return rows


def test_each_arm_is_tuned_by_itself_and_fixed_at_the_first_arm_s_step():
    plain = grid_of_arms({"hardsync()": 0.4, "k_async(1)": 0.1})
    law = grid_of_arms(dict.fromkeys(ARMS, 0.2), modulation="inverse")
    curves = tuning.curves(plain + law, "train_loss")
    assert len(curves) == 2 * 4
    for arm, best in zip(ARMS, (0.4, 0.1), strict=True):
        series = PLAIN._replace(delay_law="trace", arm=arm)
        fixed, tuned = pair(curves, series)
        assert fixed.points[0].learning_rate == 0.4
        assert tuned.points[0].learning_rate == best
        fixed, tuned = pair(curves, series._replace(modulation="inverse"))
        assert fixed.points[0].learning_rate == 0.4
        assert tuned.points[0].learning_rate == 0.2


def test_without_a_plain_baseline_the_first_arm_is_the_law_s_own():
    best = {"hardsync()": 0.4, "k_async(1)": 0.1}
    rows = grid_of_arms(best, modulation="inverse")
    for curve in tuning.curves(rows, "train_loss"):
        wanted = best[curve.series.arm] if curve.retuned else 0.4
        assert curve.points[0].learning_rate == wanted


def test_an_arm_on_the_edge_is_named_without_a_delay():
    rows = grid_of_arms({"hardsync()": 0.4, "k_async(1)": 0.2})
    (sentence,) = tuning.edge_warnings(tuning.curves(rows, "train_loss"))
    assert sentence.startswith("sgd, hardsync(): the best step size is 0.4, the larges")


def test_the_time_to_a_target_may_choose_the_step():
    def loss(rate, delay, seed):
        return rate

    rows = grid(loss, delays=(0,), delay_law="trace", arm="hardsync()")
    seconds = {0.1: math.inf, 0.2: 30.0, 0.4: 50.0}
    rows = [
        dataclasses.replace(row, seconds_to_target=seconds[row.learning_rate])
        for row in rows
    ]
    found = tuning.curves(rows, "seconds_to_target", select_by="seconds_to_target")
    assert [curve.points[0].mean for curve in found] == [30.0, 30.0]
    (slowest,) = (
        point
        for curve in tuning.curves(rows, "seconds_to_target")
        if curve.retuned
        for point in curve.points
    )
    assert slowest.mean == math.inf and slowest.spread == (math.inf, math.inf)


def test_where_no_step_reaches_the_target_the_loss_chooses():
    rows = [
        dataclasses.replace(row, seconds_to_target=math.inf)
        for row in grid(best_at({0: 0.2}), delays=(0,), delay_law="trace", arm="k()")
    ]
    found = tuning.curves(rows, "train_loss", select_by="seconds_to_target")
    assert [curve.points[0].learning_rate for curve in found] == [0.2, 0.2]


def test_rows_of_both_tables_have_one_series():
    (row,) = grid(
        lambda *_: 1.0, rates=(0.1,), delays=(0,), seeds=(0,), arm="k_sync(2)"
    )
    assert tuning.series(row) == PLAIN._replace(arm="k_sync(2)")
    unused = dataclasses.replace(row, placement="before", strength=3.0)
    assert tuning.series(unused) == tuning.series(row)


def test_names_tell_arms_apart():
    arms = [PLAIN._replace(arm=arm) for arm in ARMS]
    law = arms[1]._replace(modulation="inverse")
    names = [tuning.label(series, [*arms, law]) for series in (*arms, law)]
    assert names == [
        *("sgd, hardsync()", "sgd, k_async(1)", "sgd, k_async(1), inverse after"),
    ]
    assert tuning.label(arms[0], arms, optimizer=False) == "hardsync()"
