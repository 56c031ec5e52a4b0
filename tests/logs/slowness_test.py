"""The length of a block follows from the correlation of the recorded times."""

import numpy as np
import pytest

from delayjax import cluster
from tests.logs.resampled_test import autoregression


def length(seconds):
    return cluster.Recorded(seconds).block_length()


@pytest.mark.parametrize("memory", [0.3, 0.6, 0.8])
def test_a_chain_with_memory_has_the_length_of_its_formula(memory):
    size = 20_000
    seconds = autoregression(memory, size, np.random.default_rng(1), workers=4)
    # R(k) ~ m^|k|: sum_k |k| R(k) / sum_k R(k) = 2 m / (1 - m^2)
    ratio = 2 * memory / (1 - memory**2)
    expected = (1.5 * size * ratio**2) ** (1 / 3)
    assert length(seconds) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("times", [3, 10])
def test_times_that_repeat_have_the_length_of_their_triangle(times):
    rng, size = np.random.default_rng(2), 30_000
    seconds = np.repeat(rng.uniform(1.0, 2.0, (4, size // times)), times, axis=1)
    # R(k) ~ 1 - |k| / times: sums (times^2 - 1) / 3 and times
    expected = (1.5 * size * ((times**2 - 1) / 3 / times) ** 2) ** (1 / 3)
    assert length(seconds) == pytest.approx(expected, rel=0.1)


def test_independent_and_constant_times_need_no_blocks():
    assert length(np.random.default_rng(0).uniform(1.0, 2.0, (8, 2000))) == 1
    assert length(np.full((2, 9), 3.0)) == 1
    assert length([[1.0]]) == 1


def test_the_unit_of_time_changes_nothing():
    seconds = autoregression(0.5, 500, np.random.default_rng(3))
    assert length(seconds) == length(1024.0 * seconds) > 1


@pytest.mark.parametrize("phase", [3, 20])
def test_a_block_is_at_most_three_roots_and_a_third_of_the_record(phase):
    # phases that come back again and again are correlated for ever
    for periods in (2, 10):
        seconds = np.tile(np.repeat([1.0, 2.0], phase), periods)
        size = seconds.size
        assert length([seconds]) <= np.ceil(min(3 * np.sqrt(size), size / 3))
    assert length([np.tile(np.repeat([1.0, 2.0], 20), 10)]) == 3 * 20


def test_a_lag_without_a_correlation_does_not_end_the_search():
    # two chains in turn: R(k) ~ m^(k / 2) at even lags, 0 at odd ones
    memory, size = 0.6, 20_000
    rng = np.random.default_rng(5)
    chains = [autoregression(memory, size // 2, rng, workers=4) for _ in range(2)]
    seconds = np.stack(chains, axis=2).reshape(4, size)
    expected = (1.5 * size * (4 * memory / (1 - memory**2)) ** 2) ** (1 / 3)
    assert length(seconds) == pytest.approx(expected, rel=0.15)


def test_a_worker_of_constant_times_changes_nothing():
    seconds = autoregression(0.5, 500, np.random.default_rng(3))
    assert length([*seconds, np.full(500, 9.0)]) == length(seconds)


def test_the_block_service_has_this_length():
    seconds = autoregression(0.5, 500, np.random.default_rng(3))
    recorded = cluster.Recorded(seconds)
    by_name = cluster.Cluster(1, recorded.service("block"))
    by_number = cluster.Cluster(1, recorded.service(recorded.block_length()))
    np.testing.assert_array_equal(
        by_name.draw(0, 200, seed=0), by_number.draw(0, 200, seed=0)
    )
