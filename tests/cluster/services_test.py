import itertools
import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols

SEEDS = [1, 2, 3]
DRAWS = 40_000


def generator(seed, worker):
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(worker,)))


def draw(service, size, *, seed=0, worker=0):
    """The first tasks of the worker, for any blocks of the service."""
    rows, left = [], size
    blocks = service(generator(seed, worker), worker)
    while left > 0:
        block = next(blocks)
        assert block.dtype == np.float64 and block.ndim == 1 and block.size
        rows.append(block)
        left -= block.size
    return np.concatenate(rows)[:size]


def test_infinite_bernoulli_hangs_with_its_probability():
    seconds = draw(cluster.infinite_bernoulli(2.0, 0.3), DRAWS, seed=1)
    hangs = np.isinf(seconds)
    assert set(seconds[~hangs]) == {2.0}
    assert abs(hangs.mean() - 0.3) < 4 * math.sqrt(0.21 / DRAWS)
    assert not np.isinf(draw(cluster.infinite_bernoulli(2.0, 0.0), 1000)).any()


def test_any_sampler_makes_tasks_one_block_after_the_other():
    service = cluster.independent(lambda rng, size: rng.uniform(0.0, 2.0, size))
    expected = generator(3, 1).uniform(0.0, 2.0, 5000)
    np.testing.assert_array_equal(draw(service, 5000, seed=3, worker=1), expected)


@pytest.mark.parametrize(("enter", "leave"), [(0.1, 0.3), (0.6, 0.7)])
def test_a_markov_straggler_has_its_share_and_its_memory(enter, leave):
    service = cluster.markov_stragglers(cluster.constant(2.0), 3.0, enter, leave)
    seconds = draw(service, DRAWS, seed=1)
    assert set(seconds) == {2.0, 6.0}
    slow = (seconds == 6.0).astype(float)
    share, memory = enter / (enter + leave), 1 - enter - leave
    # 4 standard errors of the mean of a chain with this memory
    variance = share * (1 - share)
    error = math.sqrt(variance * (1 + memory) / (1 - memory) / DRAWS)
    assert abs(slow.mean() - share) < 4 * error
    entered = slow[1:][slow[:-1] == 0]
    left = 1 - slow[1:][slow[:-1] == 1]
    for seen, probability in ((entered, enter), (left, leave)):
        error = math.sqrt(probability * (1 - probability) / seen.size)
        assert abs(seen.mean() - probability) < 4 * error
    centered = slow - share
    for lag in (1, 3):
        correlation = (centered[lag:] * centered[:-lag]).mean() / variance
        assert abs(correlation - memory**lag) < 4 / math.sqrt(DRAWS * leave)


def test_a_markov_straggler_starts_stationary():
    service = cluster.markov_stragglers(cluster.exponential(1.0), 4.0, 0.1, 0.3)
    workers = 4000
    first = np.array([next(service(generator(5, w), w))[0] for w in range(workers)])
    # a quarter is slow: mean 3/4 + 4/4, second moment 2 (3/4 + 16/4)
    variance = 2 * (3 / 4 + 4) - 1.75**2
    assert abs(first.mean() - 1.75) < 4 * math.sqrt(variance / workers)


def test_a_markov_straggler_s_fast_tasks_are_those_of_the_base_service():
    base = cluster.exponential(1.0)
    service = cluster.markov_stragglers(base, 4.0, 0.1, 0.3)
    factors = draw(service, 3000, seed=2) / draw(base, 3000, seed=2)
    assert {1.0, 4.0} == set(factors.round(9))


def test_a_markov_straggler_may_never_leave():
    service = cluster.markov_stragglers(cluster.constant(1.0), 5.0, 0.2, 0.0)
    assert set(draw(service, 500)) == {5.0}
    service = cluster.markov_stragglers(cluster.constant(1.0), 5.0, 0.0, 0.2)
    assert set(draw(service, 500)) == {1.0}


def test_a_task_may_take_what_its_batch_says():
    def seconds_of(worker, tasks):
        assert tasks.dtype == np.int64 and tasks.ndim == 1
        return 1.0 + worker + tasks % 3

    service = cluster.by_batch(seconds_of)
    expected = 1.0 + 4 + np.arange(5000) % 3
    np.testing.assert_array_equal(draw(service, 5000, worker=4), expected)


def test_two_ranks_are_drawn_for_each_task_and_all_workers_know_which():
    service, workers = cluster.sleepers(1.0, 0.5, 4), 4
    spec = cluster.Cluster(workers, service)
    seconds = np.stack([spec.draw(w, DRAWS, seed=1) for w in range(workers)])
    assert set(np.unique(seconds)) == {1.0, 1.5}
    asleep = (seconds > 1.0).sum(axis=0)
    assert set(asleep) == {1, 2}  # perhaps the same rank twice
    share = (asleep == 1).mean()
    assert abs(share - 1 / 4) < 5 * math.sqrt(1 / 4 * 3 / 4 / DRAWS)
    others = np.stack([spec.draw(w, DRAWS, seed=1, stream=1) for w in range(workers)])
    for different in (others, np.roll(seconds, 1, axis=1)):
        assert (different != seconds).any(axis=0).mean() > 0.5
    assert set((others > 1.0).sum(axis=0)) == {1, 2}


def test_sleepers_that_the_workers_would_not_agree_on_are_refused():
    # if each worker had its seed, 0 to P would sleep at a task, and not only 1 or 2
    service, another_worker_s = cluster.sleepers(1.0, 0.5, 4), generator(0, 2)
    for rng in (np.random.default_rng(0), np.random.default_rng(), another_worker_s):
        with pytest.raises(ValueError, match=r"`rng` .*worker 3.*Cluster\(workers, "):
            next(service(rng, 3))


def test_sleepers_below_other_services_are_the_same_for_all_workers():
    service = cluster.markov_stragglers(
        cluster.sleepers(1.0, 0.5, 4, asleep=1), 9, 0.1, 0.4
    )
    spec = cluster.Cluster(4, service)
    seconds = np.stack([spec.draw(w, 500, seed=1) for w in range(4)])
    slept = np.isin(seconds, (1.5, 9 * 1.5)).sum(axis=0)
    assert (slept == 1).all()


def durations(trace, worker):
    """The durations of the worker's tasks that arrived, in order: arrived - begun."""
    rows = trace.worker == worker
    return (trace.arrived - trace.begun)[rows]


SPECS = {
    "one service": cluster.exponential(1.0),
    "markov": cluster.markov_stragglers(cluster.gamma(1.0, 3.0), 4.0, 0.1, 0.2),
    "a service each": [
        cluster.exponential(1.0),
        cluster.lognormal(3.0, 0.3),
        cluster.pareto(1.0, 3.0),
    ],
}


@pytest.mark.parametrize("name", SPECS)
def test_every_protocol_sees_the_same_tasks(name):
    service, seed = SPECS[name], 3
    spec = cluster.Cluster(3, service)
    tried = [
        protocols.hardsync(),
        protocols.k_async(1),
        protocols.k_async(2),
        protocols.k_batch_async(3),
        protocols.ssp(2),
        protocols.round_robin(),
        protocols.ringleader(),
    ]
    for protocol, worker in itertools.product(tried, range(3)):
        trace = cluster.simulate(spec, protocol, 300, seed=seed)
        law = service[worker] if isinstance(service, list) else service
        seen = durations(trace, worker)
        expected = draw(law, seen.size, seed=seed, worker=worker)
        # a difference of clocks of at most some thousand seconds
        np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-11)


def test_seeds_and_workers_draw_apart():
    rows = [
        draw(cluster.exponential(1.0), 2000, seed=seed, worker=worker)
        for seed in SEEDS
        for worker in range(3)
    ]
    correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert (abs(correlation) < 4 / math.sqrt(2000)).all()


def test_rescaling_all_seconds_changes_no_staleness():
    scale = 2.0**-20  # a power of two, so that equal times stay equal
    services = [
        lambda unit: cluster.exponential(unit),
        lambda unit: cluster.lognormal(unit, 0.5),
        lambda unit: cluster.pareto(unit, 2.5),
        lambda unit: cluster.constant(unit),
    ]
    tried = [protocols.k_async(1), protocols.k_async(2), protocols.ssp(1)]
    for service, protocol in itertools.product(services, tried):
        one, other = (
            cluster.simulate(
                cluster.Cluster(5, service(unit), slowdown=(1, 1, 2, 1, 7)),
                protocol,
                100,
                seed=1,
            )
            for unit in (1.0, scale)
        )
        np.testing.assert_array_equal(one.staleness, other.staleness)
        np.testing.assert_array_equal(one.workers, other.workers)
        np.testing.assert_allclose(one.seconds * scale, other.seconds, rtol=1e-12)


def yields(*blocks, worker):
    """A service that is correct, except that one worker has these blocks."""

    def service(rng, number):
        yield from blocks if number == worker else [np.ones(1000)]

    return service


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([np.array([-1.0])], r"vectors of times.*-1.*worker 2"),
        ([np.ones(3), np.array([1.0, math.nan])], r"vectors of times.*nan.*worker 2"),
        ([np.float64(1.0)], r"vectors of times.*worker 2"),
        ([np.ones(5)], r"no more times for worker 2"),
    ],
)
def test_a_service_that_yields_no_time_is_refused_with_its_worker(blocks, message):
    spec = cluster.Cluster(4, yields(*blocks, worker=2))
    with pytest.raises(ValueError, match=message):
        cluster.simulate(spec, protocols.k_async(1), 100, seed=0)
