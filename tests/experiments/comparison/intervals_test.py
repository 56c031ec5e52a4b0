"""Intervals cover as often as they say, and families of findings are adjusted."""

import numpy as np
import pytest
from scipy import stats

from experiments.comparison.intervals import holm, two_way

SEARCHES, SEEDS = 4, 20


@pytest.mark.parametrize(
    ("search", "seed", "rest"),
    [(1.0, 0.0, 0.3), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.3, 1.0, 1.0), (0, 0, 1.0)],
)
def test_an_interval_covers_the_mean_as_often_as_it_says(search, seed, rest):
    rng = np.random.default_rng(0)
    draws = 1000

    def values():
        return (
            search * rng.normal(size=(SEARCHES, 1))
            + seed * rng.normal(size=(1, SEEDS))
            + rest * rng.normal(size=(SEARCHES, SEEDS))
        )

    intervals = [two_way(values()) for _ in range(draws)]
    covered = np.mean([own.low <= 0.0 <= own.high for own in intervals])
    assert 0.92 <= covered <= 0.985
    # a p-value below 0.05 is an interval that misses 0
    for own in intervals[:50]:
        assert (own.p_value < 0.05) == (not own.low <= 0.0 <= own.high)


def test_one_search_gives_the_t_interval_over_seeds():
    values = np.random.default_rng(1).normal(size=(1, SEEDS))
    ours = two_way(values)
    theirs = stats.ttest_1samp(values[0], 0.0)
    low, high = theirs.confidence_interval(0.95)
    np.testing.assert_allclose([ours.low, ours.high], [low, high])
    assert ours.p_value == pytest.approx(theirs.pvalue)


def test_searches_that_differ_much_make_the_interval():
    # the mean of four searches, each known exactly
    means = np.array([0.0, 1.0, 2.0, 5.0])
    ours = two_way(np.repeat(means[:, None], SEEDS, axis=1))
    theirs = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([ours.low, ours.high], theirs)


def test_holm_adjusts_as_its_table():
    # Holm 1979: the smallest of m is multiplied by m, the next by m - 1, ...
    raw = np.array([0.03, 0.005, 0.011, 0.9])
    np.testing.assert_allclose(holm(raw), [0.06, 0.02, 0.033, 0.9])
    assert (holm(np.full(50, 0.04)) == 1.0).all()
