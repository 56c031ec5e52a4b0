"""Which step sizes are chosen, what makes that unfair, and how series are named."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from experiments import tuning
from experiments.results import Row
from experiments.tuning import Series

PLAIN = Series("sgd", "constant", "none", "after", "none", 0.0)
ROW = Row(
    task="digits_mlp",
    optimizer="sgd",
    learning_rate=0.1,
    delay_law="constant",
    delay=0.0,
    modulation="none",
    placement="after",
    compensation="none",
    strength=0.0,
    seed=0,
    steps=600,
    diverged=False,
    diverged_step=-1,
    train_loss=0.5,
    test_loss=0.6,
    train_accuracy=0.9,
    test_accuracy=0.8,
    staleness_mean=0.0,
    staleness_p99=0.0,
    staleness_max=0.0,
    clipped=0.0,
    dropped=0.0,
)


def grid(loss, *, rates=(0.1, 0.2, 0.4), delays=(0, 4), seeds=(0, 1, 2), **changes):
    """Rows whose training loss is a function of step size, delay and seed."""
    return [
        dataclasses.replace(
            ROW,
            learning_rate=rate,
            delay=delay,
            seed=seed,
            train_loss=loss(rate, delay, seed),
            diverged=not math.isfinite(loss(rate, delay, seed)),
            **changes,
        )
        for rate, delay, seed in itertools.product(rates, delays, seeds)
    ]


def best_at(rate_at_delay):
    """A loss that is least at a given step size of each delay."""
    return lambda rate, delay, seed: 0.1 + abs(math.log(rate / rate_at_delay[delay]))


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
