"""The measures that claims use, on small tables written by hand."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from experiments import Run
from experiments.results import claims, measures
from experiments.results.estimates import estimate
from experiments.results.metrics import LargestStable, TimeTo
from experiments.results.selection import Selection


def result(rows, columns, curves=()):
    tables = pd.DataFrame(rows, columns=columns), pd.DataFrame(curves)
    return Run(*tables, Selection(("learning_rate",)))


COLUMNS = ["learning_rate", "delay", "seed", "train_loss", "diverged"]
# a step size of 0.3 is the best without delay, and diverges with a delay of 4
GRID = result(
    [
        (rate, delay, seed, loss, int(rate == 0.3 and delay == 4))
        for rate, delay, loss in (
            *((0.1, 0, 2.0), (0.3, 0, 1.0), (1.0, 0, 3.0)),
            *((0.1, 4, 5.0), (0.3, 4, 9.0), (1.0, 4, 7.0)),
        )
        for seed in (0, 1)
    ],
    COLUMNS,
)


def test_tuned_is_the_mean_at_the_best_step_of_each_setting():
    assert measures.tuned("train_loss", delay=0)(GRID) == 1.0
    assert measures.tuned("train_loss", delay=4)(GRID) == 5.0
    assert measures.tuned("learning_rate", delay=4)(GRID) == pytest.approx(0.1)


def test_tuning_seeds_choose_the_step_and_are_not_reported():
    rows = [(0.1, 0, 0, 3.0, 0), (0.1, 0, 1, 1.5, 0), (0.3, 0, 0, 2.0, 0)]
    run = result([*rows, (0.3, 0, 1, 2.0, 0)], COLUMNS)
    assert measures.tuned("train_loss", delay=0)(run) == 2.0
    others = pd.DataFrame([(0.1, 0, 7, 1.0, 0), (0.3, 0, 7, 9.0, 0)], columns=COLUMNS)
    run = dataclasses.replace(run, selection=run.selection._replace(results=others))
    assert measures.tuned("train_loss", delay=0)(run) == (3.0 + 1.5) / 2
    assert measures.tuned("learning_rate", delay=0)(run) == pytest.approx(0.1)
    kept = measures.kept("train_loss", best_at=dict(delay=0), delay=0)
    assert kept(run) == (3.0 + 1.5) / 2


def test_the_soonest_time_is_at_the_step_that_is_soonest_under_tuning_seeds():
    """Step size 0.3 reaches the loss after 1 update; 0.1 after 2, but ends lower."""
    columns = ["learning_rate", "seed", "update", "train_loss"]

    def tables(seed, slow, fast):
        lines = {0.1: (9.0, 5.0, slow), 0.3: (9.0, fast, 3.0)}
        rows = [(step, seed, t, y) for step in lines for t, y in enumerate(lines[step])]
        curves = pd.DataFrame(rows, columns=columns)
        return curves[curves["update"] == 2], curves

    time = TimeTo("train_loss", 4.0, along="update")
    run = Run(*tables(0, 1.0, 4.0), Selection(("learning_rate",)))
    assert measures.tuned(time)(run) > measures.soonest(time)(run) == 1.0
    results, curves = tables(7, 1.0, 4.5)  # the time under seed 7 selects
    curves.loc[
        (curves["learning_rate"] == 0.1) & (curves["update"] == 1), "train_loss"
    ] = 4.0
    selection = run.selection._replace(results=results, curves=curves)
    other = dataclasses.replace(run, selection=selection)
    assert measures.soonest(time)(other) == measures.tuned(time, learning_rate=0.1)(run)


def test_tuning_seeds_choose_the_least_of_several_measures():
    rows = [(0.1, 0, 0, 3.0, 0), (0.1, 4, 0, 2.0, 0), (0.1, 8, 0, 1.0, 1)]
    each = [measures.tuned("train_loss", delay=delay) for delay in (0, 4, 8)]
    run = result(rows, COLUMNS)
    assert measures.least(each)(run) == 2.0
    others = [(0.1, 0, 7, 1.0, 0), (0.1, 4, 7, 9.0, 0), (0.1, 8, 7, 1.0, 1)]
    selection = run.selection._replace(
        results=pd.DataFrame(others, columns=COLUMNS), curves=pd.DataFrame()
    )
    assert measures.least(each)(dataclasses.replace(run, selection=selection)) == 3.0


def test_without_tuning_seeds_each_half_of_the_seeds_chooses_for_the_other():
    each = [measures.tuned("train_loss", delay=delay) for delay in (0, 4)]
    losses = {0: (1.0, 3.0, 1.0, 3.0), 4: (3.0, 1.0, 3.0, 1.0)}
    rows = [(0.1, d, seed, x, 0) for d in losses for seed, x in enumerate(losses[d])]
    # the even seeds choose delay 0, where the odd seeds have 3; and the other way round
    assert measures.least(each)(result(rows, COLUMNS)) == 3.0
    clear = [(*row[:3], row[3] + 9 * (row[1] == 4), 0) for row in rows]
    assert measures.least(each)(result(clear, COLUMNS)) == 2.0  # as the mean of delay 0


def test_a_clear_choice_has_the_interval_of_its_measure():
    """A seed that is left out leaves the other seeds in their halves."""
    noise = np.random.default_rng(1).normal(0.0, 0.1, (2, 9))
    rows = [(0.1, d, s, d + noise[d // 4, s], 0) for d in (0, 4) for s in range(9)]
    each = [measures.tuned("train_loss", delay=delay) for delay in (0, 4)]
    chosen, alone = (
        estimate(one, result(rows, COLUMNS)) for one in (measures.least(each), each[0])
    )
    assert math.isclose(chosen.value, alone.value)
    assert math.isclose(chosen.error, alone.error)


def test_a_kept_step_may_diverge_elsewhere():
    kept = measures.kept("train_loss", best_at=dict(delay=0), delay=4)
    assert math.isnan(kept(GRID))
    loss = measures.kept("train_loss", best_at=dict(delay=4), delay=0)
    assert loss(GRID) == 2.0


def test_a_seed_that_diverged_may_count_as_a_number():
    kept = measures.kept("train_loss", best_at=dict(delay=0), lost=8.0, delay=4)
    assert kept(GRID) == 8.0
    rows = [(0.1, 0, 0, 1.0, 0), (0.1, 0, 1, 5.0, 1)]
    run = result(rows, COLUMNS)
    assert math.isnan(measures.tuned("train_loss", delay=0)(run))
    assert measures.tuned("train_loss", lost=4.0, delay=0)(run) == (1.0 + 4.0) / 2
    assert measures.tuned("diverged", lost=4.0, delay=0)(run) == 0.5  # no metric


def test_a_seed_that_ends_higher_counts_as_lost_too_and_is_not_stable():
    """Its loss is bounded: it did not diverge."""
    rows = [(0.1, 0, 0, 1.0, 0, 0), (0.1, 0, 1, 5.0, 0, 1), (0.01, 0, 0, 3.0, 0, 0)]
    run = result([*rows, (0.01, 0, 1, 3.0, 0, 0)], [*COLUMNS, "ended_higher"])
    loss = dict(delay=0, learning_rate=0.1)
    assert math.isnan(measures.tuned("train_loss", **loss)(run))
    assert measures.tuned("train_loss", lost=4.0, **loss)(run) == (1.0 + 4.0) / 2
    assert measures.tuned("ended_higher", **loss)(run) == 0.5
    assert measures.tuned("diverged", **loss)(run) == 0.0
    assert measures.tuned("learning_rate", delay=0)(run) == pytest.approx(0.01)
    stable = measures.tuned(LargestStable("learning_rate"), delay=0)
    assert stable(run) == pytest.approx((0.1 + 0.01) / 2)


@pytest.mark.parametrize(("choose", "expected"), [(np.max, 7.0), (np.min, -2.0)])
def test_an_extreme_is_of_all_measures_and_of_none_if_one_is_nan(choose, expected):
    numbers = [lambda result, x=x: x for x in (3.0, 7.0, -2.0)]
    measure = measures.extreme(choose, numbers)
    assert measure(GRID) == expected and measure.form == "mean"
    for place in range(4):
        nan = [*numbers[:place], lambda result: math.nan, *numbers[place:]]
        assert math.isnan(measures.extreme(choose, nan)(GRID))


def test_an_extreme_of_ratios_has_the_interval_of_a_ratio():
    times = [measures.ratio(lambda f, x=x: x, lambda f: 2.0) for x in (3.0, 8.0)]
    assert measures.extreme(np.min, times).form == "ratio"
    assert measures.extreme(np.min, times)(GRID) == 1.5
    mixed = [*times, measures.difference(*times)]
    assert measures.extreme(np.min, mixed).form == "mean"


def test_a_measure_has_the_metric_that_all_its_numbers_share():
    loss, error = (measures.tuned(name) for name in ("train_loss", "test_error"))
    slow = measures.soonest(TimeTo("train_loss", 1.0))
    pairs = {
        "train_loss": [loss, loss],
        TimeTo("train_loss", 1.0): [slow, slow],
        None: [loss, error],
    }
    for metric, pair in pairs.items():
        each = [measures.ratio(*pair), measures.difference(*pair)]
        each += [measures.least(pair), measures.extreme(np.max, pair)]
        assert [one.metric for one in each] == [metric] * 4
    # numbers that are not at the optimum of their series
    assert measures.mean("train_loss").metric is None
    assert measures.kept("train_loss", best_at={}).metric is None
    assert measures.ratio(loss, measures.mean("train_loss")).metric is None


def test_a_ratio_to_what_never_arrives_is_0_and_with_few_seeds_decides_nothing():
    """A ratio of 0 shows only a direction; see the tests of estimates."""
    ratio = measures.ratio(lambda result: 3.0, lambda result: math.inf)
    assert ratio(GRID) == 0.0
    assert math.isnan(measures.ratio(lambda f: math.inf, lambda f: math.inf)(GRID))
    assert measures.ratio(lambda result: math.inf, lambda result: 3.0)(GRID) == math.inf
    assert measures.ratio(lambda result: 3.0, lambda result: 4.0)(GRID) == 0.75
    fields = dict(text="It is sooner", source="Doe (2020)", said="sooner")
    for measure in (ratio, measures.ratio(lambda result: math.inf, lambda result: 3.0)):
        for bound in (dict(at_most=1.0), dict(at_least=1.0)):
            stated = claims.Published(measure=measure, **fields, **bound)
            (judged,) = claims.judge([stated], GRID)
            assert judged.verdict == claims.UNDECIDED


def test_the_largest_stable_step_is_a_mean_over_seeds_and_has_no_diverged_one_below():
    stable = measures.tuned(LargestStable("learning_rate"), delay=0)
    assert stable(GRID) == 1.0
    stable = measures.tuned(LargestStable("learning_rate"), delay=4)
    assert stable(GRID) == pytest.approx(0.1)
    hopeless = result([(0.1, 0, 0, np.nan, 1)], COLUMNS)
    stable = measures.tuned(LargestStable("learning_rate"), delay=0)
    assert stable(hopeless) == 0.0


def test_facts_are_means_over_cells_even_if_they_diverged():
    rows = [(0.1, 0, 60.0, 0.5, 1), (0.1, 1, 62.0, 0.5, 0)]
    run = result(rows, ["learning_rate", "seed", "seconds", "train_loss", "diverged"])
    assert measures.mean("seconds")(run) == 61.0
    assert math.isnan(measures.mean("train_loss")(run))


def test_the_first_time_is_that_of_the_chosen_step():
    curves = [
        dict(learning_rate=rate, seed=seed, update=u, seconds=10.0 * u, train_loss=loss)
        for rate, losses in ((0.1, (4.0, 2.0, 1.0)), (0.3, (4.0, 1.0, 0.5)))
        for seed in (0, 1)
        for u, loss in enumerate(losses)
    ]
    rows = [(rate, 0, seed, 1.0 - rate, 0) for rate in (0.1, 0.3) for seed in (0, 1)]
    run = result(rows, COLUMNS, curves)
    run = dataclasses.replace(run, results=run.results.drop(columns="delay"))
    for metric in ("train_loss", TimeTo("train_loss", 1.0)):
        run = dataclasses.replace(run, selection=run.selection._replace(by=metric))
        assert measures.tuned(TimeTo("train_loss", 1.0))(run) == 10.0
        assert measures.tuned(TimeTo("train_loss", 2.5))(run) == pytest.approx(5.0)
        assert measures.tuned(TimeTo("train_loss", 0.1))(run) == math.inf
    slow = run.results.assign(train_loss=run.results.learning_rate)
    run = dataclasses.replace(
        run, results=slow, selection=run.selection._replace(by="train_loss")
    )
    assert measures.tuned(TimeTo("train_loss", 1.0))(run) == 20.0


def test_numbers_may_be_compared():
    undelayed, late = (measures.tuned("train_loss", delay=d) for d in (0, 4))
    assert measures.ratio(late, undelayed)(GRID) == 5.0
    assert measures.difference(late, undelayed)(GRID) == 4.0


def test_a_ratio_of_numbers_below_zero_has_no_value():
    for above, below in ((-1.0, -2.0), (-1.0, 2.0), (1.0, -2.0)):
        ratio = measures.ratio(lambda run, a=above: a, lambda run, b=below: b)
        assert math.isnan(ratio(GRID))
