"""The jackknife over seeds, against formulas and by simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.results import analysis
from experiments.results.estimates import Estimate, estimate, holm
from experiments.results.measures import difference, least, ratio, tuned
from experiments.results.measures import mean as mean_of
from experiments.results.runs import Run
from experiments.results.selection import Selection


def table(values):
    rows = [("a", seed, value) for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["arm", "seed", "train_loss"])


def result(values, selection=None):
    curves = table(values).assign(update=1)
    return Run(table(values), curves, selection or Selection())


def mean(result):
    return result.results["train_loss"].mean()


def test_of_a_mean_it_is_the_usual_standard_error():
    values = np.array([1.0, 2.0, 4.0, 8.0])
    number = estimate(mean, result(values))
    assert number.value == values.mean() and number.seeds == 4
    assert number.error == pytest.approx(values.std(ddof=1) / np.sqrt(4))
    low, high = number.interval()
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_of_a_ratio_of_means_it_is_the_formula_of_the_delta_method():
    rng = np.random.default_rng(0)
    above, below = 3.0 + 0.1 * rng.normal(size=(2, 500))

    def ratio(result):
        rows = result.results["seed"]
        return above[rows].mean() / below[rows].mean()

    number = estimate(ratio, result(above))
    r = above.mean() / below.mean()
    residual = (above - r * below) / below.mean()
    assert number.error == pytest.approx(residual.std() / np.sqrt(500), rel=0.01)


@pytest.mark.parametrize(
    "measure",
    [
        tuned("train_loss"),
        mean_of("train_loss"),
        least([tuned("train_loss"), mean_of("train_loss", arm="a")]),
    ],
)
def test_the_interval_of_an_amount_is_that_of_the_tables(measure):
    """A loss, an error and a time are at least 0, and so are the ends of intervals."""
    for values in ([0.001, 0.002, 0.2], [0.0, 0.0, 3.0], [0.0] * 3, [1.0, 1.1, 1.2]):
        number = estimate(measure, result(values))
        (row,) = analysis.spread(table(values), "train_loss", []).to_dict("records")
        assert number.interval() == pytest.approx((row["low"], row["high"]), abs=1e-12)
        assert number.interval()[0] >= 0
    # a number that may be negative, such as a gap, has the interval of a mean
    gap = result([-0.001, 0.002, 0.2])
    number = estimate(measure, gap)
    assert number == estimate(mean, gap) and number.interval()[0] < 0
    of_both = difference(measure, lambda result: 0.0)
    assert estimate(of_both, result([0.001, 0.002, 0.2])).form == "mean"


def test_curves_lose_the_seed_too():
    def both(result):
        assert set(result.results["seed"]) == set(result.curves["seed"])
        return len(result.curves)

    assert estimate(both, result([1.0, 2.0, 3.0])).value == 3


def test_one_seed_has_no_interval():
    number = estimate(mean, result([2.0]))
    assert number.value == 2.0 and np.isnan(number.error)
    assert np.isnan(number.interval()).all()


@pytest.mark.parametrize("values", [[np.inf] * 3, [1.0, 2.0, np.inf]])
def test_an_infinite_number_has_no_interval(values):
    number = estimate(mean, result(values))
    assert number.value == np.inf and np.isnan(number.error) and number.seeds == 3
    assert np.isnan(number.interval()).all()


def test_a_number_that_one_part_makes_infinite_has_no_interval():
    """Without seed 0, no seed has a loss of at least 8, and the ratio is infinite."""

    def eight_over_most(result):
        most = result.results["train_loss"].max()
        return 8.0 / most if most >= 8.0 else np.inf

    number = estimate(eight_over_most, result([8.0, 2.0, 1.0]))
    assert number.value == 1.0 and np.isnan(number.error)


def test_each_part_chooses_its_best_value_where_the_reported_seeds_choose():
    """Step 1 is best because of seed 2; without that seed, step 2 is best."""
    losses = {1: (3.0, 3.0, 0.0), 2: (2.5, 2.5, 2.5)}
    rows = [
        (step, seed, loss)
        for step, row in losses.items()
        for seed, loss in enumerate(row)
    ]
    results = pd.DataFrame(rows, columns=["step", "seed", "train_loss"])
    curves = results.iloc[:0]
    measure = tuned("train_loss")
    chosen = estimate(measure, Run(results, curves, Selection(("step",))))
    # without seed 0, without seed 1: step 1, (3 + 0) / 2; without seed 2: step 2
    parts = np.array([1.5, 1.5, 2.5])
    expected = np.sqrt(2 / 3 * ((parts - parts.mean()) ** 2).sum())
    assert chosen.value == 2.0 and chosen.error == pytest.approx(expected)
    # if other seeds choose the step, each part has the same step
    tuning = results.assign(seed=results["seed"] + 1000)
    choice = Selection(("step",), results=tuning, curves=curves)
    assert estimate(measure, Run(results, curves, choice)).error == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [5, 8])
def test_the_interval_of_a_ratio_covers_as_often_as_it_says(seeds):
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        above = 2.0 * np.exp(0.3 * rng.normal(size=seeds))
        below = np.exp(0.3 * rng.normal(size=seeds))
        number = _ratio(above, below)
        low, high = number.interval()
        hits += low <= 2.0 <= high
    assert 0.92 <= hits / 400 <= 0.98


def _ratio(above, below) -> Estimate:
    def measure(result):
        rows = result.results["seed"].to_numpy()
        return above[rows].mean() / below[rows].mean()

    return estimate(measure, result(above))


@pytest.mark.parametrize(
    ("at_least", "at_most"),
    [(1.0, np.inf), (-np.inf, 3.0), (1.9, 2.2), (-np.inf, 1.9), (2.4, 9.0)],
)
def test_the_least_alpha_of_a_mean_is_the_p_value_of_the_t_test(at_least, at_most):
    """The nearer one of the two bounds decides: its p-value is the larger one."""
    values = np.array([1.8, 2.2, 2.0, 2.1])
    number = estimate(mean, result(values))
    p_values = [
        stats.ttest_1samp(values, bound).pvalue
        for bound in (at_least, at_most)
        if np.isfinite(bound)
    ]
    is_within = at_least <= number.value <= at_most
    alpha = number.least_alpha(at_least, at_most)
    assert alpha == pytest.approx(max(p_values), abs=1e-9)
    side = 1 if is_within else -1
    assert number.side(at_least, at_most, 1 - alpha * 1.001) == side
    assert number.side(at_least, at_most, 1 - alpha * 0.999) == 0


def test_the_least_alpha_of_a_ratio_and_of_a_share_are_their_tests():
    number = Estimate(2.0, 0.5, 5, "ratio")
    t = np.log(2.0 / 1.25) / (0.5 / 2.0)
    assert number.least_alpha(1.25, np.inf) == pytest.approx(2 * stats.t.sf(t, 4))
    all_of_8 = Estimate(1.0, 0.0, 8, "share")
    # 2 P(8 of 8), if each has the probability 0.6
    assert all_of_8.least_alpha(0.6, np.inf) == pytest.approx(2 * 0.6**8)


def test_without_an_interval_no_alpha_decides_and_without_an_error_each_does():
    assert np.isnan(Estimate(2.0, np.nan, 1).least_alpha(1.0, np.inf))
    assert Estimate(2.0, 0.5, 5).least_alpha(2.0, np.inf) == pytest.approx(1.0)
    assert Estimate(2.0, 0.0, 5).least_alpha(1.0, np.inf) < 1e-14


def test_slack_moves_both_ends_and_decides_nothing_within_it():
    """exp(-+ (t error / value + slack)), and value -+ (t error + slack)."""
    exact = Estimate(2.0, 0.5, 5, "ratio")
    loose = exact._replace(slack=0.1)
    ends = np.array(exact.interval()) * np.exp([-0.1, 0.1])
    np.testing.assert_allclose(loose.interval(), ends)
    exact = Estimate(2.0, 0.5, 5)
    loose = exact._replace(slack=0.25)
    np.testing.assert_allclose(
        loose.interval(), np.add(exact.interval(), [-0.25, 0.25])
    )
    # the t test of a bound that is nearer by the slack
    assert loose.least_alpha(1.0, np.inf) == pytest.approx(exact.least_alpha(1.25, 9e9))
    assert loose.least_alpha(1.8, np.inf) == 1.0


def test_holm_multiplies_the_smallest_by_all_and_the_largest_by_one():
    raw = np.array([0.03, 0.005, 0.011, 0.9])
    np.testing.assert_allclose(holm(raw), [0.06, 0.02, 0.033, 0.9])
    assert (holm(np.full(50, 0.04)) == 1.0).all()
    assert holm(np.array([])).size == 0


def arrivals(*times):
    """A run: for each seed, the seconds of "a" and of "b"."""
    rows = [(seed, *pair) for seed, pair in enumerate(times)]
    results = pd.DataFrame(rows, columns=["seed", "a", "b"])
    return Run(results, results.iloc[:0])


def slower():
    """The measure "mean seconds of a, divided by the mean seconds of b"."""
    return ratio(*(lambda result, c=c: result.results[c].mean() for c in "ab"))


NEVER = np.inf


@pytest.mark.parametrize(
    ("times", "side"),
    [
        ([(NEVER, 3.0)] * 6, 1),
        ([(3.0, NEVER)] * 6, -1),
        ([(NEVER, 3.0)] * 5, 0),  # 2 / 2^5 > 5 %
        ([(NEVER, NEVER)] * 9, 0),
        ([(NEVER, 3.0)] * 8 + [(3.0, 6.0)], 1),  # 2 (1 + 9) / 2^9 < 5 %
        ([(NEVER, 3.0)] * 8 + [(NEVER, NEVER)], 1),
        ([(NEVER, 3.0)] * 7 + [(3.0, 6.0)] * 2, 0),
        ([(3.0, NEVER)] * 8 + [(NEVER, 3.0)], -1),
    ],
    ids=str,
)
def test_never_is_a_value_of_which_the_sign_test_takes_the_direction(times, side):
    """If k of n seeds disagree, 2 P(at most k heads of n coins) <= 5 % decides."""
    number = estimate(slower(), arrivals(*times))
    assert number.form == "median"
    assert number.side(1.0, np.inf) == side
    assert number.side(-np.inf, 1.0) == -side
    wrong = sum(not a > b for a, b in times), sum(not a < b for a, b in times)
    chance = 2 * stats.binom.cdf(min(wrong), len(times), 0.5)
    if side:
        assert number.least_alpha(1.0, np.inf) == pytest.approx(chance, abs=1e-9)
    else:
        assert chance > 0.05


def test_never_says_nothing_of_a_bound_beyond_the_direction():
    """How long "never" is, is unknown: 1.01 times as long as the run, or 100 times."""
    number = estimate(slower(), arrivals(*[(NEVER, 3.0)] * 20))
    assert number.value == np.inf
    assert number.interval() == (pytest.approx(1.0), np.inf)
    assert number.side(2.5, np.inf) == 0
    less = estimate(slower(), arrivals(*[(3.0, NEVER)] * 20))
    assert less.value == 0.0 and less.interval() == (0.0, pytest.approx(1.0))
    assert less.side(-np.inf, 0.5) == 0


def test_where_one_of_many_seeds_never_arrives_the_others_bound_the_median():
    """No moments are needed: order statistics bound it, and 2 P(B < 2) = 0.0215."""
    ratios = [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    number = estimate(slower(), arrivals((NEVER, 3.0), *((r, 1.0) for r in ratios)))
    # of the seed that never arrives, the ratio lies between 1 and infinity
    assert number.interval() == (1.1, 1.9) and number.value == np.inf


def test_the_interval_of_a_median_covers_as_often_as_it_says():
    """The coverage with n seeds is 1 - 2 P(B < k): 0.961 for n = 9 and k = 2."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(1000):
        times = np.exp(rng.normal(size=9))
        ranges = tuple((float(t), float(t)) for t in times)
        low, high = Estimate(1.0, np.nan, 9, "median", ranges).interval()
        hits += low <= 1.0 <= high
    assert abs(hits / 1000 - (1 - 2 * stats.binom.cdf(1, 9, 0.5))) < 0.015


def test_cells_with_different_seeds_are_refused():
    rows = [("a", 0, 1.0), ("a", 1, 2.0), ("b", 0, 1.0)]
    table = pd.DataFrame(rows, columns=["run", "seed", "loss"])
    run = Run(table, pd.DataFrame())
    with pytest.raises(ValueError, match="different seeds: read runs alone"):
        estimate(lambda run: 1.0, run)
