"""Intervals decide statements of sources; spreads decide records."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results import claims, measures
from experiments.results.claims import (
    DEMONSTRATION,
    NO_OPTIMUM,
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    SAME_DIRECTION,
    UNDECIDED,
    Judged,
    Published,
    Record,
)
from experiments.results.estimates import Estimate, estimate, holm
from experiments.results.metrics import LargestStable, TimeTo
from experiments.results.runs import Run
from experiments.results.selection import Selection

VALUES = (0.9, 1.0, 1.1)
"""Mean 1, standard error 0.1 / sqrt(3), t = 4.303: from 0.752 to 1.248."""


def result(values=VALUES):
    rows = [("a", seed, value) for seed, value in enumerate(values)]
    results = pd.DataFrame(rows, columns=["arm", "seed", "loss"])
    return Run(results, results.iloc[:0])


def mean(result):
    return result.results["loss"].mean()


def statement(**bounds):
    options = dict(text="It is so", source="Doe (2020)", said="so", measure=mean)
    return Published(**options | bounds)


def test_where_a_seed_is_never_there_the_median_is_shown_and_no_mean():
    def shown(seeds):
        never = Estimate(0.0, np.nan, seeds, "median", ((0.1, 0.4),) * seeds)
        return Judged(statement(at_most=1.0), never, REPRODUCED).shown

    assert shown(6) == "0.1 to 0.4, the median over seeds"
    assert shown(5) == "0"  # at 95 %, no interval decides


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        (dict(at_most=1.25), REPRODUCED),
        (dict(at_most=1.24), UNDECIDED),
        (dict(at_most=0.76), UNDECIDED),
        (dict(at_most=0.75), NOT_REPRODUCED),
        (dict(at_least=0.75), REPRODUCED),
        (dict(at_least=0.76), UNDECIDED),
        (dict(at_least=1.24), UNDECIDED),
        (dict(at_least=1.25), NOT_REPRODUCED),
        (dict(at_least=0.75, at_most=1.25), REPRODUCED),
        (dict(at_least=0.76, at_most=1.25), UNDECIDED),
        (dict(at_least=0.9, at_most=1.1), UNDECIDED),
        (dict(at_least=2.0, at_most=3.0), NOT_REPRODUCED),
    ],
    ids=str,
)
def test_the_interval_decides(bounds, verdict):
    (judged,) = claims.judge([statement(**bounds)], result())
    assert judged.verdict == verdict
    assert judged.shown == "1 (0.752 to 1.25)"
    ours = statement(bound_is_ours=True, **bounds)
    (judged,) = claims.judge([ours], result())
    assert judged.verdict == (SAME_DIRECTION if verdict == REPRODUCED else verdict)
    shown = statement(demonstration=True, **bounds)
    (judged,) = claims.judge([shown], result())
    assert judged.verdict == (DEMONSTRATION if verdict == REPRODUCED else verdict)
    assert np.isnan(judged.chance) == (verdict == REPRODUCED)


@pytest.mark.parametrize(
    ("bounds", "verdict", "decided_at"),
    [
        (dict(at_most=1.3, no_effect=2.0), REPRODUCED, 1.3),
        (dict(at_most=0.5, no_effect=1.3), SAME_DIRECTION, 1.3),
        (dict(at_most=0.9, no_effect=1.3), SAME_DIRECTION, 1.3),  # 0.9 is undecided
        (dict(at_most=0.5, no_effect=1.2), UNDECIDED, 1.2),
        (dict(at_most=0.5, no_effect=0.7), NOT_REPRODUCED, 0.7),
        (dict(at_least=4.0, no_effect=0.7), SAME_DIRECTION, 0.7),
        (dict(at_least=4.0, no_effect=1.3), NOT_REPRODUCED, 1.3),
    ],
    ids=str,
)
def test_too_small_an_effect_has_the_direction_of_the_source(
    bounds, verdict, decided_at
):
    """The p-value is about the bound that decides."""
    (judged,) = claims.judge([statement(**bounds)], result())
    assert judged.verdict == verdict
    alpha = stats.ttest_1samp(VALUES, decided_at).pvalue
    assert judged.chance == pytest.approx(min(3 * alpha, 1.0))
    assert judged.claim.expected.endswith(f"; no effect at {bounds['no_effect']:g}")


@pytest.mark.parametrize(
    "bounds",
    [
        dict(at_most=1.0, no_effect=0.5),
        dict(at_least=1.0, no_effect=1.0),
        dict(at_most=0.5, no_effect=1.0, bound_is_ours=True),
    ],
    ids=str,
)
def test_no_effect_lies_outside_of_a_bound_of_the_source(bounds):
    with pytest.raises(ValueError, match=r"`no_effect=.* outside of a bound"):
        statement(**bounds)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        (dict(at_most=0.5, no_effect=1.0), UNDECIDED),  # no effect is possible
        (dict(at_most=0.5, no_effect=1.1), SAME_DIRECTION),
        (dict(at_most=0.2), UNDECIDED),  # so is the bound
        (dict(at_most=0.1), NOT_REPRODUCED),
    ],
    ids=str,
)
def test_an_interval_that_ends_at_a_bound_does_not_decide_against_it(bounds, verdict):
    """Errors of few examples tie: the median of the others is from 0.2 to 1."""
    errors = [0.2] * 10 + [1.0] * 10 + [math.nan]

    def measured(run):
        return run.results["loss"].mean(skipna=False)

    (judged,) = claims.judge([statement(measure=measured, **bounds)], result(errors))
    assert judged.measured.interval() == (0.2, 1.0)
    assert judged.verdict == verdict


@pytest.mark.parametrize("is_shown", [True, False])
def test_all_seeds_outside_of_a_bound_refute_it_without_any_chance(is_shown):
    """A wrong identity is not undecided; a right one has no p-value."""
    below = statement(at_most=1.0, demonstration=is_shown)
    (judged,) = claims.judge([below], result((2.0, 2.0, 2.0)))
    assert judged.verdict == NOT_REPRODUCED and judged.chance == 0.0
    (judged,) = claims.judge([below], result((0.5, 0.5, 0.5)))
    assert judged.verdict == (DEMONSTRATION if is_shown else REPRODUCED)
    assert np.isnan(judged.chance)


@pytest.mark.parametrize("values", [(1.0,), (1.0, np.nan, 1.0)], ids=str)
def test_one_seed_and_no_value_decide_nothing(values):
    def strict(result):
        return result.results["loss"].mean(skipna=False)

    (judged,) = claims.judge([statement(measure=strict, at_most=9.0)], result(values))
    assert judged.verdict == UNDECIDED


def test_the_p_value_of_a_verdict_is_the_t_test_s_times_three_looks():
    """(1 - 0.7) / (0.1 / sqrt(3)) with 2 degrees of freedom."""
    (judged,) = claims.judge([statement(at_least=0.7)], result())
    alpha = stats.ttest_1samp(VALUES, 0.7).pvalue
    assert judged.chance == pytest.approx(3 * alpha) and 3 * alpha > 0.05 > alpha
    assert judged.verdict == REPRODUCED  # before the correction
    (judged,) = claims.judge([statement(at_least=0.99)], result())
    assert judged.chance == 1.0
    (judged,) = claims.judge([statement(measure=None, tried="a pod")], result())
    assert np.isnan(judged.chance)
    (judged,) = claims.judge([statement(at_least=0.7)], result((1.0,)))
    assert np.isnan(judged.chance)
    no_optimum = Judged(statement(at_least=0.7), Estimate(1.0, 0.1, 3), NO_OPTIMUM)
    assert np.isnan(no_optimum.chance)


def test_a_number_that_all_seeds_agree_on_has_no_p_value():
    """There is no randomness, so no test has a p-value."""
    (judged,) = claims.judge([statement(at_least=0.7)], result((1.0, 1.0, 1.0 + 1e-15)))
    assert judged.verdict == REPRODUCED and np.isnan(judged.chance)
    one_seed_more = Judged(
        statement(at_least=0.5), Estimate(1.0, 0.0, 9, "share"), REPRODUCED
    )
    # a share: nine of nine in 1/2 to 1 have 2 / 2^9, whatever the spread is
    assert one_seed_more.chance == pytest.approx(3 * 2 / 2**9)


def test_with_three_looks_the_error_of_a_family_of_true_bounds_is_below_5_percent():
    """Five headlines, each at its bound, with up to three looks until it is decided."""
    rng = np.random.default_rng(0)
    families, alone, wrong = 200, 0, 0
    claim = statement(at_least=1.0)
    for _ in range(families):
        chances = []
        for _ in range(5):
            values = rng.normal(1.0, 0.1, size=5 * max(claims.LOOKS))
            for times in claims.LOOKS:
                part = values[: 5 * times]
                error = part.std(ddof=1) / len(part) ** 0.5
                estimate = Estimate(part.mean(), error, len(part))
                if estimate.side(claim.at_least, claim.at_most):
                    alone += 1
                    break
            chances.append(Judged(claim, estimate, "").chance)
        wrong += (holm(np.array(chances)) <= 0.05).any()
    assert alone / (5 * families) > 0.08  # three looks at 5 % without a correction
    assert 0 < wrong / families < 0.05


def test_what_cannot_be_measured_says_why():
    broken = statement(measure=lambda result: result.nothing, at_most=1.0)
    untested = statement(measure=None, tried="it needs 256 GPUs")
    first, second = claims.judge([broken, untested], result())
    assert first.verdict == UNDECIDED and "no attribute 'nothing'" in first.shown
    assert second.verdict == NOT_TESTED and second.shown == "it needs 256 GPUs"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(), "`measure` with `at_least` or `at_most`"),
        (dict(at_least=float("nan"), at_most=1.0), "got nan and 1.0"),
        (dict(measure=None), "say in `tried` why"),
    ],
    ids=str,
)
def test_a_statement_that_cannot_be_judged_is_refused(options, word):
    with pytest.raises(ValueError, match=word):
        statement(**options)


@pytest.mark.parametrize(
    ("value", "spread", "met"),
    [
        (1.0, 0.0, True),
        (1.0009, 0.0, True),
        (1.002, 0.0, False),
        (1.04, 0.01, True),
        (1.042, 0.01, False),
        (0.96, 0.01, True),
        (0.958, 0.01, False),
    ],
    ids=str,
)
def test_a_record_bears_four_spreads_and_a_thousandth(value, spread, met):
    (compared,) = claims.compare([Record("loss", mean, value, spread)], result())
    assert compared.met == met
    assert str(compared).startswith("met" if met else "MISSED")


def test_a_record_that_is_not_measured_or_has_no_value_is_missed():
    rows = [
        Record("a", lambda result: result.nothing, 1.0, 9.0),
        Record("b", lambda result: float("nan"), 1.0, 9.0),
    ]
    first, second = claims.compare(rows, result())
    assert not first.met and "not measured (AttributeError" in str(first)
    assert not second.met and "no value" in str(second)


@pytest.mark.parametrize(
    ("by", "relative", "measure", "ends"),
    [
        ("loss", True, measures.ratio, np.exp([-0.2, 0.2])),
        ("loss", False, measures.difference, np.array([-0.2, 0.2])),
        ("loss", False, measures.ratio, None),  # searched by differences
        ("loss", True, measures.difference, None),
        ("error", True, measures.ratio, None),  # searched for another metric
    ],
)
def test_the_interval_has_the_tolerance_of_the_search(by, relative, measure, ends):
    rows = [
        (rule, seed, loss + seed / 100 * (rule == "a"))
        for rule, loss in (("a", 1.0), ("b", 2.0))
        for seed in range(3)
    ]
    results = pd.DataFrame(rows, columns=["rule", "seed", "loss"])
    search = {"tolerance": 0.2, "relative": relative}
    run = Run(results, results, Selection((), by), info={"search": search})
    both = measure(*(measures.tuned("loss", rule=rule) for rule in "ab"))
    claim = statement(measure=both, at_most=9.0)
    (judged,) = claims.judge([claim], run)
    exact = estimate(both, run).interval()
    if ends is None:
        assert judged.measured.interval() == exact
    else:
        longer = exact * ends if relative else exact + ends
        np.testing.assert_allclose(judged.measured.interval(), longer)
        # a bound within the tolerance is not decided by any number of seeds
        near = 0.5 * np.exp(0.1) if relative else -0.9
        (judged,) = claims.judge([statement(measure=both, at_most=near)], run)
        assert judged.verdict == UNDECIDED and judged.chance == 1.0


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_alone_has_the_tolerance_of_either_search(relative, sign):
    """A mean of 1 with seeds 0.9, 1 and 1.1, searched to 0.2 or to 20 percent."""
    search = {"tolerance": 0.2, "relative": relative}
    values = sign * np.array(VALUES)
    run = dataclasses.replace(
        result(values), selection=Selection((), "loss"), info={"search": search}
    )
    claim = statement(measure=measures.tuned("loss"), at_most=9.0)
    (judged,) = claims.judge([claim], run)
    exact = np.array(estimate(claim.measure, run).interval())
    longer = np.array(judged.measured.interval())
    if sign == 1:  # as an amount, which is compared by its logarithm
        np.testing.assert_allclose(longer, exact * np.exp([-0.2, 0.2]))
    elif relative:  # logarithms of numbers below zero were not searched
        np.testing.assert_allclose(longer, exact)
    else:
        np.testing.assert_allclose(longer, np.add(exact, [-0.2, 0.2]))


def searched(tuning):
    """Rule a, whose optimum was found, and rule b, whose optimum was not."""
    rows = [
        (rule, rate, seed, loss + seed / 100, 0)
        for rule, rate, loss in (("a", 0.1, 1.0), ("b", 0.2, 2.0))
        for seed in range(3)
    ]
    columns = ["rule", "rate", "seed", "train_loss", "diverged"]
    results = pd.DataFrame(rows, columns=columns)
    curves = results.assign(update=results["train_loss"])
    optima = results.drop_duplicates("rule").assign(score=1.0, found=[True, False])
    selection = Selection(("rate",), optima=optima[["rule", "rate", "score", "found"]])
    if tuning:
        first, last = (t.assign(seed=t["seed"] + 9) for t in (results, curves))
        selection = selection._replace(results=first, curves=last)
    return Run(results, curves, selection)


TIME = TimeTo("train_loss", 9.0, along="update")


READS = [
    lambda **of: measures.tuned("train_loss", **of),
    lambda **of: measures.tuned(TIME, **of),
    lambda **of: measures.soonest(TIME, **of),
    lambda **of: measures.mean("train_loss", **of),
    lambda **of: measures.kept("train_loss", best_at={"rule": "a"}, **of),
    lambda **of: measures.kept("rate", best_at=of, rule="a"),
    lambda **of: measures.tuned(LargestStable("rate"), **of),
    lambda **of: measures.share("diverged", **of),
    lambda **of: measures.ratio(*[measures.mean("train_loss", **of)] * 2),
    lambda **of: lambda result: result.where(**of).results["train_loss"].mean(),
    lambda **of: lambda result: result.where(**of).curves["train_loss"].mean(),
    lambda **of: lambda result: result.where(**of).best["train_loss"].mean(),
    lambda **of: lambda result: result.where(**of).selection.optima["rate"].min(),
    lambda **of: lambda result: (result.where(**of).results["train_loss"] < 9).mean(),
]
READS_TUNING = [
    lambda **of: measures.least([measures.mean("train_loss", **of)]),
    lambda **of: measures.least(
        [measures.mean("train_loss", rule="a"), measures.mean("train_loss", **of)]
    ),
    lambda **of: lambda result: result.tuning.where(**of).results["seed"].min(),
]
READ = [
    *itertools.product([True], READS + READS_TUNING),
    *itertools.product([False], READS_TUNING),
]


@pytest.mark.parametrize(("tuning", "of_rule"), READ)
def test_what_reads_a_series_without_an_optimum_has_no_verdict(tuning, of_rule):
    tables = searched(tuning)
    for rule, is_found in (("a", True), ("b", False)):
        measure = of_rule(rule=rule)
        claim = statement(measure=measure, at_most=99.0)
        (judged,) = claims.judge([claim], tables)
        (compared,) = claims.compare([Record("a", measure, 1.0, 99.0)], tables)
        assert (judged.verdict != NO_OPTIMUM) == is_found == compared.met
        if not is_found:
            assert "no optimum is found" in judged.shown
            assert "not measured (no optimum is found)" in str(compared)


@pytest.mark.parametrize(
    "read",
    [
        lambda result: result.results["train_loss"].mean(),
        lambda result: result.results.query("rule == 'a'")["train_loss"].mean(),
        lambda result: result.gains("a")["gain"].item(),
        lambda result: (
            dataclasses.replace(result, selection=Selection()).best["rate"].mean()
        ),
        measures.mean("train_loss"),
    ],
)
def test_what_reads_all_rows_reads_the_series_without_an_optimum(read):
    (judged,) = claims.judge([statement(measure=read, at_most=9.0)], searched(False))
    assert judged.verdict == NO_OPTIMUM


@pytest.mark.parametrize("numbers", [(1.0, np.inf), (1.0, -0.1)])
def test_a_record_needs_numbers(numbers):
    with pytest.raises(ValueError, match="finite value and spread"):
        Record("loss", mean, *numbers)


def test_the_digest_changes_with_each_part_of_a_statement_and_not_with_what_was_tried():
    first = statement(at_most=1.0, at_least=0.0)
    copy = dataclasses.replace(first, tried="more seeds")
    assert claims.digest([first]) == claims.digest([copy])
    edits = dict(
        text="a", source="b", said="c", setting="d", at_most=2.0, at_least=-1.0
    )
    others = {
        claims.digest([dataclasses.replace(first, **{name: value})])
        for name, value in edits.items()
    }
    assert len(others | {claims.digest([first]), claims.digest([])}) == len(edits) + 2
