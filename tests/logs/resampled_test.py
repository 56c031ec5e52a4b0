"""Recorded times drawn again: what a worker's tasks are, and which go together."""

import math

import numpy as np
import pytest

from delayjax import cluster

WORKERS, STEPS, DRAWS = 3, 50, 40_000
# each entry tells its worker and its step
NAMES = 1000.0 * np.arange(1, WORKERS + 1)[:, None] + np.arange(STEPS)
KINDS = ["wrap", "steps", "block", 7]


def draw(seconds, resample, size=DRAWS, *, seed=1, stream=0, workers=None):
    service = cluster.Recorded(seconds).service(resample)
    spec = cluster.Cluster(workers or len(seconds), service)
    options = dict(seed=seed, stream=stream)
    return np.stack([spec.draw(w, size, **options) for w in range(spec.workers)])


def steps_of(drawn):
    """The recorded step of each task, the same for all workers."""
    worker, step = np.divmod(drawn, 1000.0)
    np.testing.assert_array_equal(
        worker, np.arange(1, len(drawn) + 1)[:, None] + 0 * step
    )
    assert (step == step[0]).all()
    return step[0].astype(int)


def autoregression(memory, size, rng, workers=1):
    """x_k = memory x_{k-1} + noise, of mean 10."""
    noise, rows = rng.standard_normal((size, workers)), np.zeros((size, workers))
    for k in range(1, size):
        rows[k] = memory * rows[k - 1] + noise[k]
    return 10.0 + rows.T * math.sqrt(1 - memory**2)


@pytest.mark.parametrize("resample", KINDS)
def test_all_workers_take_the_same_step_at_their_k_th_task(resample):
    steps = steps_of(draw(NAMES, resample))
    assert set(steps) == set(range(STEPS))


@pytest.mark.parametrize("resample", ["steps", 7])
def test_another_seed_or_stream_draws_other_steps(resample):
    first = draw(NAMES, resample)
    for options in (dict(seed=2), dict(stream=1)):
        other = steps_of(draw(NAMES, resample, **options))
        assert (other != steps_of(first)).mean() > 0.9
    np.testing.assert_array_equal(first, draw(NAMES, resample))


def test_in_the_recorded_order_the_times_are_those_of_the_record_again_and_again():
    steps = steps_of(draw(NAMES, "wrap", 3 * STEPS))
    np.testing.assert_array_equal(steps, np.tile(np.arange(STEPS), 3))


def test_in_the_recorded_order_the_statistics_of_each_worker_are_the_recorded_ones():
    seconds = np.random.default_rng(0).gamma(3.0, 1.0, (WORKERS, STEPS))
    drawn = draw(seconds, "wrap", STEPS)
    for statistic in (np.mean, np.var, np.max, np.median):
        np.testing.assert_array_equal(
            statistic(drawn, axis=1), statistic(seconds, axis=1)
        )


def test_each_step_is_equally_likely():
    counts = np.bincount(steps_of(draw(NAMES, "steps")), minlength=STEPS)
    error = math.sqrt(DRAWS / STEPS * (1 - 1 / STEPS))
    assert (abs(counts - DRAWS / STEPS) < 4.5 * error).all()


@pytest.mark.parametrize("resample", ["steps", 7])
def test_workers_that_were_slow_together_are_slow_together(resample):
    rng = np.random.default_rng(3)
    common = rng.exponential(1.0, STEPS)
    seconds = np.stack([1 + common, 2 + common, rng.exponential(1.0, STEPS)])
    drawn = draw(seconds, resample)
    product = drawn[0] * drawn[1:]
    # b steps in a row: at most b times the variance of independent steps
    block = 1 if resample == "steps" else resample
    error = product.std(axis=1) * math.sqrt(block / DRAWS)
    weights = np.ones(STEPS)
    if block > 1:  # how many of the blocks have this step
        weights = np.convolve(np.ones(STEPS - block + 1), np.ones(block))
    expected = (seconds[0] * seconds[1:]) @ weights / weights.sum()
    assert (abs(product.mean(axis=1) - expected) < 4 * error).all()


@pytest.mark.parametrize("block", [1, 2, 7, STEPS])
def test_a_block_is_consecutive_steps_from_any_first_one(block):
    steps = steps_of(draw(NAMES, block, 400 * block)).reshape(400, block)
    assert (np.diff(steps, axis=1) == 1).all()
    assert set(steps[:, 0]) == set(range(STEPS - block + 1))


@pytest.mark.parametrize("block", [1, 2, 5, 20])
def test_blocks_keep_one_part_in_b_less_of_the_correlation_at_lag_1(block):
    memory, size = 0.7, 20_000
    seconds = autoregression(memory, size, np.random.default_rng(4))
    (drawn,) = draw(seconds, block, 200_000)
    (kept,) = np.corrcoef(drawn[1:], drawn[:-1])[:1, 1]
    (recorded,) = np.corrcoef(seconds[0, 1:], seconds[0, :-1])[:1, 1]
    # products are correlated over some 1 / (1 - memory^2) steps
    error = math.sqrt((1 + memory**2) / (1 - memory**2) / 200_000)
    assert abs(kept - (1 - 1 / block) * recorded) < 4 * error


@pytest.mark.parametrize("workers", [2, 7])
def test_another_number_of_workers_takes_rows_again_and_a_warning_says_so(workers):
    message = rf"3 recorded workers, but there are {workers}: .* worker w % 3"
    with pytest.warns(UserWarning, match=message) as warned:
        drawn = draw(NAMES, "steps", 100, workers=workers)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    times = draw(NAMES, "steps", 100)
    np.testing.assert_array_equal(drawn, times[np.arange(workers) % 3])


def test_recorded_times_may_lie_below_another_service():
    service = cluster.Recorded(NAMES).service("steps")
    slowed = cluster.markov_stragglers(service, 0.5, 0.0, 0.0 + 1e-9)
    spec = cluster.Cluster(WORKERS, slowed)
    times = draw(NAMES, "steps", 100)
    for worker in range(WORKERS):
        np.testing.assert_array_equal(spec.draw(worker, 100, seed=1), times[worker])


def test_steps_that_the_workers_would_not_agree_on_are_refused():
    service = cluster.Recorded(NAMES).service("steps")
    for rng in (np.random.default_rng(0), np.random.default_rng()):
        with pytest.raises(ValueError, match=r"`rng` .*worker 2.*recorded.service\("):
            next(service(rng, 2))
