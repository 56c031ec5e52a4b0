"""Effects agree with t tests of the same numbers; readings of made-up intervals."""

import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results import effects
from experiments.results.effects import Effect
from experiments.results.metrics import Computed, LargestStable, TimeTo
from experiments.results.runs import Run
from experiments.results.selection import Selection
from experiments.results.sizes import amount, percent, points

RNG = np.random.default_rng(0)
FRESH, LATE = 0.1 + 0.01 * RNG.normal(size=(2, 6))


def result(rows, columns, curves=(), selection=None):
    results = pd.DataFrame(rows, columns=columns)
    return Run(results, pd.DataFrame(curves), selection or Selection())


def of_delays(fresh, late):
    rows = [
        (delay, seed, loss)
        for delay, losses in ((0, fresh), (8, late))
        for seed, loss in enumerate(losses)
    ]
    return result(rows, ["delay", "seed", "train_loss"])


def one(metric="train_loss", against=None, size=None, **more):
    against = {"delay": 0} if against is None else against
    return Effect(metric=metric, against=against, size=size or percent(10), **more)


def test_a_difference_has_the_interval_of_the_paired_t_test():
    (row,) = one(size=points(1)).table(of_delays(FRESH, LATE)).to_dict("records")
    expected = stats.ttest_rel(LATE, FRESH).confidence_interval(0.95)
    assert row["effect"] == pytest.approx(LATE.mean() - FRESH.mean())
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_runs_with_fewer_seeds_have_the_intervals_that_they_have_alone():
    rng = np.random.default_rng(1)
    columns = ["run", "delay", "seed", "train_loss"]
    rows = [
        (run, delay, seed, 1.0 + delay + rng.normal())
        for run, seeds in (("a", 2), ("b", 12))
        for delay in (0, 8)
        for seed in range(seeds)
    ]
    both = result(rows, columns)
    effect = one(size=amount(1))
    table = effect.table(both).set_index("run")
    for run, seeds in (("a", 2), ("b", 12)):
        alone = effect.table(both.where(run=run)).iloc[0]
        ends = table.loc[run, ["effect", "low", "high"]]
        np.testing.assert_allclose(ends.astype(float), alone[ends.index].astype(float))
        late, fresh = (both.where(run=run, delay=d).results for d in (8, 0))
        expected = stats.ttest_rel(late["train_loss"], fresh["train_loss"])
        low, high = expected.confidence_interval(0.95)
        np.testing.assert_allclose([ends["low"], ends["high"]], [low, high])
        assert len(late) == seeds


def test_a_series_of_few_seeds_has_their_degrees_of_freedom():
    """Ten seeds of the other series do not shorten the interval of two seeds."""
    rng = np.random.default_rng(2)
    late, fresh = rng.normal(size=2), rng.normal(size=10)
    (row,) = one(size=amount(1)).table(of_delays(fresh, late)).to_dict("records")
    half = stats.t.ppf(0.975, 1) * stats.sem(late)
    assert row["high"] - row["low"] >= 2 * half


def test_each_rule_keeps_the_step_that_is_best_for_itself():
    """Plain delay is best at step 1 without delay, the damped rule at step 3."""
    columns = ["rule", "delay", "learning_rate", "seed", "train_loss"]
    rows = [
        (rule, delay, rate, seed, 1.0 + abs(rate - best) + 0.1 * delay)
        for rule, best in (("plain", 1), ("damped", 3))
        for delay in (0, 8)
        for rate in (1, 3)
        for seed in (0, 1)
    ]
    run = result(rows, columns, selection=Selection(("learning_rate",)))
    effect = one(against={"rule": "plain"}, size=amount(1), kept={"delay": 0})
    table = effect.table(run)
    assert table["here"].tolist() == table["there"].tolist() == [1.0, 1.8]


def test_a_ratio_of_two_numbers_below_zero_has_no_value():
    """-1 is higher than -2, and the ratio would be a half."""
    run = of_delays((-2.0, -2.1), (-1.0, -1.1))
    assert one().table(run)["effect"].isna().all()
    assert str(one().answer(run)).endswith("which has no ratio, at delay=8.")
    assert one(size=amount(0.1)).table(run)["reading"].tolist() == ["higher"]


@pytest.mark.parametrize("relative", [False, True])
def test_the_interval_has_the_tolerance_of_a_search_that_compared_the_same(relative):
    """Not at the best numbers of another series: those were not searched here."""
    run = of_delays(FRESH, LATE)
    search = {"tolerance": 0.2, "relative": relative}
    searched = dataclasses.replace(run, info={"search": search})
    for size in (percent(10), points(1)):
        for kept in ({}, {"delay": 0}):
            effect = one(size=size, kept=kept)
            (exact,), (loose,) = (
                effect.table(each)[["low", "high"]].to_numpy()
                for each in (run, searched)
            )
            if size.ratio:
                exact, loose = np.log(exact), np.log(loose)
            slack = 0.2 * (size.ratio == relative and not kept)
            np.testing.assert_allclose(loose, np.add(exact, [-slack, slack]))
    other = dataclasses.replace(searched, selection=Selection((), "test_loss"))
    assert other.slack("train_loss", relative=relative) == 0.0
    assert other.slack(None, relative=relative) == 0.0


def test_a_ratio_has_the_interval_of_the_logarithm_by_the_jackknife():
    (row,) = one().table(of_delays(FRESH, LATE)).to_dict("records")
    count = len(FRESH)
    parts = [np.delete(x, i).mean() for x in (LATE, FRESH) for i in range(count)]
    logs = np.log(parts[:count]) - np.log(parts[count:])
    error = np.sqrt((count - 1) / count * ((logs - logs.mean()) ** 2).sum())
    middle = np.log(LATE.mean() / FRESH.mean())
    half = stats.t.ppf(0.975, count - 1) * error
    assert row["effect"] == pytest.approx(np.exp(middle))
    assert row["low"] == pytest.approx(np.exp(middle - half))
    assert row["high"] == pytest.approx(np.exp(middle + half))


@pytest.mark.parametrize(
    ("late", "reading"),
    [
        ((0.20, 0.21, 0.22), "higher"),
        ((0.05, 0.051, 0.052), "lower"),
        ((0.102, 0.100, 0.101), "within"),
        ((0.08, 0.13, 0.16), "undecided"),
        ((0.11, math.nan, 0.11), "lost"),
    ],
)
def test_the_interval_decides_beside_the_size_that_matters(late, reading):
    table = one().table(of_delays((0.100, 0.101, 0.102), late))
    assert table["reading"].tolist() == [reading]


def test_one_seed_decides_nothing_and_no_comparison_without_a_base():
    assert one().table(of_delays([0.1], [0.9]))["reading"].tolist() == ["undecided"]
    bad = of_delays([math.nan] * 3, [0.1, 0.2, 0.3])
    assert one().table(bad)["reading"].tolist() == ["nothing to compare with"]


def test_each_series_is_compared_with_the_one_that_equals_it_in_all_else():
    columns = ["law", "delay", "seed", "train_loss"]
    rows = [
        (law, delay, seed, loss + 0.1 * (delay == 4))
        for law, loss in (("none", 1.0), ("inverse", 2.0), ("hinge", 3.0))
        for delay in (0, 4)
        for seed in range(3)
    ]
    table = one(against={"law": "none"}, size=amount(0.1)).table(result(rows, columns))
    shown = table[["law", "delay", "effect"]].to_numpy().tolist()
    assert shown == [
        ["inverse", 0, pytest.approx(1.0)],
        ["inverse", 4, pytest.approx(1.0)],
        ["hinge", 0, pytest.approx(2.0)],
        ["hinge", 4, pytest.approx(2.0)],
    ]


def test_a_base_that_lacks_a_setting_is_compared_with_every_value_of_it():
    columns = ["rule", "power", "seed", "train_loss"]
    rows = [("plain", math.nan, s, 1.0) for s in range(2)]
    rows += [("law", power, s, power) for power in (2.0, 3.0) for s in range(2)]
    table = one(against={"rule": "plain"}).table(result(rows, columns))
    assert table["effect"].tolist() == pytest.approx([2.0, 3.0])


def test_a_theory_is_compared_where_it_says_something():
    rows = [(d, s, 2.0 * (d + 1)) for d in (0, 1, 2) for s in range(3)]
    run = result(rows, ["delay", "seed", "train_loss"])

    def theory(delay):
        return None if delay == 1 else delay + 1.0

    table = one(against=theory).table(run)
    assert table["delay"].tolist() == [0, 2]
    assert table["effect"].tolist() == pytest.approx([2.0, 2.0])


def times(arrivals, end):
    """Curves that fall to 0 at a time of arrival; with None, they never do."""
    rows, curves = [], []
    for delay, each in arrivals.items():
        for seed, when in enumerate(each):
            for second in range(end + 1):
                arrived = when is not None and second >= when
                curves.append((delay, seed, second, second, 0.0 if arrived else 1.0))
            rows.append((delay, seed, curves[-1][-1]))
    names = ["delay", "seed", "update", "seconds", "train_loss"]
    return result(
        rows, ["delay", "seed", "train_loss"], pd.DataFrame(curves, columns=names)
    )


def test_a_time_that_costs_less_a_second_is_cheaper_though_it_is_longer():
    """4 s at 1 / 8 of the cost are cheaper than 2 s; the end, 10 s, has a price too."""
    price = Computed("bytes", lambda delay: 16.0 if delay == 0 else 2.0)
    time = TimeTo("train_loss", 0.0, cost=price)
    assert time.name == "bytes_to_train_loss_0"
    table = one(metric=time).table(times({0: (2, 2, 2), 8: (4, 4, 4)}, end=10))
    columns = ["here", "there", "effect", "reading"]
    assert table[columns].values.tolist() == [[8.0, 32.0, 0.25, "lower"]]
    table = one(metric=time).table(times({0: (2, 2, 2), 8: (None,) * 3}, end=10))
    assert table[["here", "effect"]].values.tolist() == [[np.inf, 20.0 / 32.0]]


@pytest.mark.parametrize(
    ("base", "other", "reading"),
    [
        ((2, 2, 2), (None, None, None), "higher"),
        ((2, 2, 2), (8, None, 9), "higher"),
        # 10 s is the end of the run: the true time may be 5 % longer, or infinite
        ((9, 10, 9), (10, None, 10), "undecided"),
        ((None, None, None), (2, 2, 2), "lower"),
        ((None, None, None), (10, 10, 9), "undecided"),
        ((None, None, None), (None, None, None), "undecided"),
    ],
)
def test_never_counts_as_later_than_the_end_and_as_no_more(base, other, reading):
    time = TimeTo("train_loss", 0.0)
    table = one(metric=time).table(times({0: base, 8: other}, end=10))
    assert table["reading"].tolist() == [reading]
    assert np.isinf(table["here"][0]) == (None in other)


def test_the_largest_stable_step_is_below_the_first_that_fails():
    columns = ["delay", "learning_rate", "seed", "train_loss", "ended_higher"]
    rows = [
        (0, rate, seed, rate, int(rate == 0.3))  # 1.0 is beyond a step size that fails
        for rate in (0.1, 0.2, 0.3, 1.0)
        for seed in range(2)
    ]
    run = result(rows, columns, selection=Selection(("learning_rate",)))
    table = one(LargestStable("learning_rate"), against=lambda delay: 0.1).table(run)
    assert table[["here", "effect"]].to_numpy().tolist() == [[0.2, pytest.approx(2.0)]]
    below = LargestStable("learning_rate", {"train_loss": 0.15})
    assert one(below, against=lambda: 0.1).table(run)["here"].tolist() == [0.1]


def test_a_computed_metric_is_taken_at_the_best_value_of_what_is_tuned():
    columns = ["learning_rate", "seed", "train_loss"]
    rows = [(rate, seed, rate) for rate in (0.1, 0.2) for seed in range(2)]
    run = result(rows, columns, selection=Selection(("learning_rate",)))
    metric = Computed("twice", lambda learning_rate: 2 * learning_rate)
    table = one(metric, against=lambda: 0.1).table(run)
    assert table["here"].tolist() == [pytest.approx(0.2)]


def test_the_answer_names_settings_and_intervals():
    answer = one().answer(of_delays((0.1, 0.1, 0.1), (0.2, 0.2, 0.2)))
    assert answer.text == (
        "Training loss, compared with delay=0 (0.1): more than 10 % higher at delay=8"
        " (2 to 2 times)."
    )
    assert answer.shown["verdict (size 10 %)"].tolist() == ["higher"]


def test_a_series_without_an_optimum_has_no_verdict():
    run = of_delays((0.1, 0.1, 0.1), (0.2, 0.2, 0.2))
    results = run.results.assign(learning_rate=0.1)
    results = results[["delay", "learning_rate", "seed", "train_loss"]]
    optima = pd.DataFrame(
        {"delay": [0, 8], "learning_rate": [0.1, 0.1], "found": [True, False]}
    ).assign(score=0.1)
    selection = Selection(("learning_rate",), optima=optima)
    table = one().table(Run(results, pd.DataFrame(), selection))
    assert table["reading"].tolist() == ["no optimum"]


def test_without_an_effect_each_series_is_compared_with_the_first():
    (answer,) = effects.answers(of_delays((0.1, 0.1), (0.2, 0.2)), ())
    assert answer.table["delay"].tolist() == [8]
    assert effects.answers(of_delays([0.1], []), ()) == []


def test_points_are_shown_as_points():
    answer = one(size=points(1)).answer(of_delays((0.1,) * 3, (0.2,) * 3))
    assert "more than 1 point higher at delay=8 (+10 to +10 points)" in answer.text
    assert answer.table["low"].tolist() == [pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(against={"law": "none"}), r"no law: `against` names \['law'\]"),
        (dict(where={"dleay": 3}), "KeyError: 'dleay'"),
        (dict(where={"delay": 5}), "with delay=0: no row has"),
        (dict(metric="test_acuracy"), "KeyError: 'test_acuracy'"),
        (dict(metric=TimeTo("train_loss", 0.1)), "KeyError: 'seconds'"),
        (dict(metric=LargestStable("rate")), "KeyError: 'rate'"),
        (dict(mean_over=("dleay",)), r"\['dleay'\] not found"),
        (dict(kept={"dleay": 3}), "KeyError: 'dleay'"),
    ],
)
def test_an_answer_says_which_name_is_not_there(changes, message):
    (answer,) = effects.answers(of_delays([1.0], [2.0]), [one(**changes)])
    assert isinstance(answer, str) and "cannot be compared with" in answer
    assert re.search(message, answer)


class Own:
    """An answer of a user's class, which is no `Effect`."""

    def __init__(self, made):
        self._made = made

    def answer(self, result):
        return self._made(result)


def failing(result):
    raise RuntimeError("no\nnumber")


@pytest.mark.parametrize(
    ("effect", "message"),
    [
        (Own(failing), r"Own has no answer: .*_test.py, line \d+: RuntimeError: no"),
        (Own(lambda result: 3), "Own has no answer: TypeError: it returned 3, and no"),
        (one(metric=3), "3 cannot be compared with delay=0: AttributeError: "),
    ],
)
def test_an_answer_that_fails_is_one_line_and_the_others_are_made(effect, message):
    run = of_delays((0.1, 0.1), (0.2, 0.2))
    text, other = effects.answers(run, [effect, one()])
    assert re.match(message, text) and "\n" not in text
    assert other.table["reading"].tolist() == ["higher"]
    (shown,) = effects.answers(run, [Own(one().answer)])
    assert shown.text == other.text


def test_a_ratio_matters_from_its_factor_on_and_not_from_its_logarithm():
    """log 1.103 is below 0.1, and 1.103 is above 1.1."""
    for factor, reading in ((1.103, "higher"), (1.097, "within"), (1 / 1.103, "lower")):
        table = one().table(of_delays((0.1,) * 3, (0.1 * factor,) * 3))
        assert table["reading"].tolist() == [reading]


def test_a_series_of_which_a_seed_ends_higher_than_it_began_is_lost():
    run = of_delays((0.1,) * 3, (0.2,) * 3)
    fates = (run.results["delay"] == 8) & (run.results["seed"] == 1)
    run = dataclasses.replace(
        run, results=run.results.assign(ended_higher=fates.astype(int))
    )
    assert one().table(run)["reading"].tolist() == ["lost"]
    assert one("delay", size=amount(1)).table(run)["reading"].tolist() == ["higher"]


@pytest.mark.parametrize(("short", "long"), [(0, 8), (8, 0)])
def test_a_time_beyond_the_end_of_a_short_curve_may_be_longer_than_any(short, long):
    """After 5 s it has not arrived: whether it takes 9 s is not known."""
    time = TimeTo("train_loss", 0.0)
    brief = times({short: (None,) * 3}, end=5)
    whole = times({long: (9, 9, 9)}, end=10)
    run = dataclasses.replace(
        brief,
        results=pd.concat([brief.results, whole.results], ignore_index=True),
        curves=pd.concat([brief.curves, whole.curves], ignore_index=True),
    )
    assert one(metric=time).table(run)["reading"].tolist() == ["undecided"]


def test_a_sentence_has_the_interval_of_each_of_eight_series_and_the_largest_of_more():
    for count, intervals in ((8, 8), (9, 1)):
        delays = range(1 + count)
        rows = [(d, s, 1.0 + d) for d in delays for s in range(2)]
        answer = one().answer(result(rows, ["delay", "seed", "train_loss"]))
        assert str(answer).count(" times)") == intervals
        assert ("(largest at delay=9: 10 to 10 times)" in str(answer)) == (count == 9)


def test_the_shown_table_has_words_and_units_above_its_columns():
    rows = [(d, s, 0.1 + d) for d in (0, 8) for s in (0, 1)]
    answer = one("test_error").answer(result(rows, ["delay", "seed", "test_error"]))
    assert [*answer.shown][:3] == ["series", "test error (share)", "compared with"]


@pytest.mark.parametrize(
    ("here", "there", "text"),
    [
        (np.inf, 2.0, "not in time"),
        (2.0, np.inf, "only this one in time"),
        (3.0, 2.0, "+1 s, no interval"),
    ],
)
def test_one_seed_has_no_interval_of_a_time(here, there, text):
    row = dict(here=here, there=there, effect=1.0, low=np.nan, high=np.nan)
    assert amount(1, "s").interval(row) == text
