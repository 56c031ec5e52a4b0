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
    """The worker's first tasks, whatever the service's blocks."""
    rows, left = [], size
    blocks = service(generator(seed, worker), worker)
    while left > 0:
        block = next(blocks)
        assert block.dtype == np.float64 and block.ndim == 1 and block.size
        rows.append(block)
        left -= block.size
    return np.concatenate(rows)[:size]


def pareto_moment(scale, shape, power):
    return shape * scale**power / (shape - power)


# service: mean and variance of a task, and P(T > at) at some `at`
SERVICES = {
    "exponential(2)": (cluster.exponential(2.0), 2.0, 4.0, 3.0, math.exp(-3 / 2)),
    "shifted_exponential(1, 3)": (
        cluster.shifted_exponential(1.0, 3.0),
        *(4.0, 9.0, 2.0, math.exp(-1 / 3)),
    ),
    # Erlang: P(T > t) = e^(-4t/m) sum_(i<4) (4t/m)^i / i!
    "gamma(3, 4)": (
        cluster.gamma(3.0, 4.0),
        *(3.0, 9 / 4, 4.5),
        math.exp(-6) * sum(6**i / math.factorial(i) for i in range(4)),
    ),
    # median m / sqrt(1 + cv^2)
    "lognormal(2, 0.2)": (
        cluster.lognormal(2.0, 0.2),
        *(2.0, 0.16, 2 / math.sqrt(1.04), 0.5),
    ),
    "lognormal(5, 0.8)": (
        cluster.lognormal(5.0, 0.8),
        *(5.0, 16.0, 5 / math.sqrt(1.64), 0.5),
    ),
    "pareto(2, 5)": (
        cluster.pareto(2.0, 5.0),
        pareto_moment(2.0, 5.0, 1),
        pareto_moment(2.0, 5.0, 2) - pareto_moment(2.0, 5.0, 1) ** 2,
        *(3.0, (2 / 3) ** 5),
    ),
    "empirical([1, 2, 6])": (
        cluster.empirical([1.0, 2.0, 6.0]),
        *(3.0, (4 + 1 + 9) / 3, 1.5, 2 / 3),
    ),
    "independent(uniform)": (
        cluster.independent(lambda rng, size: rng.uniform(0.0, 2.0, size)),
        *(1.0, 1 / 3, 0.5, 0.75),
    ),
}


@pytest.mark.parametrize("name", SERVICES)
def test_tasks_have_their_mean_their_variance_and_their_tail(name):
    service, mean, variance, at, tail = SERVICES[name]
    seconds = draw(service, DRAWS, seed=2)
    # 4 standard errors; the variance's own from the fourth moment of the sample
    assert abs(seconds.mean() - mean) < 4 * math.sqrt(variance / DRAWS)
    squares = (seconds - mean) ** 2
    assert abs(squares.mean() - variance) < 4 * squares.std() / math.sqrt(DRAWS)
    error = math.sqrt(tail * (1 - tail) / DRAWS)
    assert abs((seconds > at).mean() - tail) < 4 * error


@pytest.mark.parametrize("name", SERVICES)
def test_tasks_are_independent_of_each_other(name):
    service, mean, variance, *_ = SERVICES[name]
    centered = draw(service, DRAWS, seed=1) - mean
    for lag in (1, 2, 7):
        correlation = (centered[lag:] * centered[:-lag]).mean() / variance
        assert abs(correlation) < 4 / math.sqrt(DRAWS)


def test_constant_tasks_take_their_seconds():
    assert set(draw(cluster.constant(1.25), 1000)) == {1.25}


def test_supports_begin_where_the_formula_says():
    assert draw(cluster.shifted_exponential(3.0, 1.0), DRAWS).min() >= 3.0
    assert draw(cluster.pareto(3.0, 2.5), DRAWS).min() >= 3.0
    assert set(draw(cluster.empirical([0.5, 7.0]), DRAWS)) == {0.5, 7.0}


def test_infinite_bernoulli_hangs_with_its_probability():
    seconds = draw(cluster.infinite_bernoulli(2.0, 0.3), DRAWS, seed=1)
    hangs = np.isinf(seconds)
    assert set(seconds[~hangs]) == {2.0}
    assert abs(hangs.mean() - 0.3) < 4 * math.sqrt(0.21 / DRAWS)
    assert not np.isinf(draw(cluster.infinite_bernoulli(2.0, 0.0), 1000)).any()


@pytest.mark.parametrize(("enter", "leave"), [(0.1, 0.3), (0.02, 0.05), (0.6, 0.7)])
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


def test_a_markov_straggler_starts_stationary_and_keeps_the_base_service():
    service = cluster.markov_stragglers(cluster.exponential(1.0), 4.0, 0.1, 0.3)
    workers = 20_000
    first = np.array([next(service(generator(5, w), w))[0] for w in range(workers)])
    # a quarter is slow: mean 3/4 + 4/4, second moment 2 (3/4 + 16/4)
    variance = 2 * (3 / 4 + 4) - 1.75**2
    assert abs(first.mean() - 1.75) < 4 * math.sqrt(variance / workers)
    tail = 0.75 * math.exp(-2) + 0.25 * math.exp(-0.5)
    error = math.sqrt(tail * (1 - tail) / workers)
    assert abs((first > 2).mean() - tail) < 4 * error


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


def test_each_task_of_a_batch_has_its_own_seconds():
    service = cluster.by_batch(lambda worker, tasks: np.ones(3))
    with pytest.raises(ValueError, match=r"shapes .*\(3,\).*\(8,\)"):
        next(service(np.random.default_rng(0), 0))


def test_two_ranks_are_drawn_for_each_task_and_all_workers_know_which():
    service, workers = cluster.sleepers(1.0, 0.5, 4), 4
    spec = cluster.Cluster(workers, service)
    seconds = np.stack([spec.draw(w, DRAWS, seed=1) for w in range(workers)])
    assert set(np.unique(seconds)) == {1.0, 1.5}
    asleep = (seconds > 1.0).sum(axis=0)
    assert set(asleep) == {1, 2}  # perhaps the same
    same = (asleep == 1).mean()
    assert abs(same - 1 / 4) < 5 * math.sqrt(1 / 4 * 3 / 4 / DRAWS)
    others = np.stack([spec.draw(w, DRAWS, seed=1, stream=1) for w in range(workers)])
    for different in (others, np.roll(seconds, 1, axis=1)):
        assert (different != seconds).any(axis=0).mean() > 0.5
    assert set((others > 1.0).sum(axis=0)) == {1, 2}


@pytest.mark.parametrize(
    "rng",
    [
        np.random.default_rng(0),
        np.random.default_rng(3),
        np.random.default_rng(),
        generator(0, 2),  # another worker's
        np.random.Generator(np.random.PCG64(1)),
    ],
)
def test_sleepers_that_the_workers_would_not_agree_on_are_refused(rng):
    # each worker with a seed of its own: between 0 and P slept at a task, not 1 or 2
    service = cluster.sleepers(1.0, 0.5, 4)
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


@pytest.mark.parametrize("workers", [2, 8])
def test_sleepers_of_another_number_of_workers_are_refused(workers):
    # some workers would never sleep, or sleepers be drawn that are not there
    asleep = cluster.sleepers(1.0, 0.5, 4)
    match = rf"`service` .* 4 workers.* {workers}: use sleepers\(.*workers={workers}"
    for service in (asleep, [asleep] * workers):
        with pytest.raises(ValueError, match=match):
            cluster.Cluster(workers, service)


def durations(trace, worker):
    """The worker's tasks that arrived, in order: arrived - begun."""
    own = trace.worker == worker
    return (trace.arrived - trace.begun)[own]


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
    made = [
        protocols.hardsync(),
        protocols.k_async(1),
        protocols.k_async(2),
        protocols.k_batch_async(3),
        protocols.ssp(2),
        protocols.round_robin(),
        protocols.ringleader(),
    ]
    for protocol, worker in itertools.product(made, range(3)):
        trace = cluster.simulate(spec, protocol, 300, seed=seed)
        own = service[worker] if isinstance(service, list) else service
        seen = durations(trace, worker)
        expected = draw(own, seen.size, seed=seed, worker=worker)
        # a difference of clocks of at most some thousand seconds
        np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-11)


def test_a_worker_more_changes_no_task_of_the_others():
    few, many = (
        cluster.simulate(
            cluster.Cluster(n, cluster.exponential(1.0)),
            protocols.hardsync(),
            50,
            seed=3,
        )
        for n in (2, 5)
    )
    for worker in range(2):
        np.testing.assert_allclose(
            durations(few, worker), durations(many, worker), atol=1e-12, rtol=0
        )


def test_seeds_and_workers_draw_apart():
    rows = [
        draw(cluster.exponential(1.0), 2000, seed=seed, worker=worker)
        for seed in SEEDS
        for worker in range(3)
    ]
    correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert (abs(correlation) < 4 / math.sqrt(2000)).all()


def test_the_same_seed_gives_the_same_trace():
    spec = cluster.Cluster(4, cluster.gamma(1.0, 2.0))
    protocol = protocols.psp(2, 1)
    first, again = (cluster.simulate(spec, protocol, 200, seed=7) for _ in range(2))
    for field in ("seconds", "update", "worker", "read_version", "begun", "arrived"):
        np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
    other = cluster.simulate(spec, protocol, 200, seed=8)
    assert (other.seconds != first.seconds).any()


@pytest.mark.parametrize("scale", [1024.0, 2.0**-20])
def test_rescaling_all_seconds_changes_no_staleness(scale):
    # powers of two, so that equal times stay equal
    services = [
        lambda unit: cluster.exponential(unit),
        lambda unit: cluster.lognormal(unit, 0.5),
        lambda unit: cluster.pareto(unit, 2.5),
        lambda unit: cluster.constant(unit),
    ]
    made = [protocols.k_async(1), protocols.k_async(2), protocols.ssp(1)]
    for service, protocol in itertools.product(services, made):
        one, other = (
            cluster.simulate(
                cluster.Cluster(5, service(unit), slowdown=(1, 1, 2, 1, 7)),
                protocol,
                200,
                seed=1,
            )
            for unit in (1.0, scale)
        )
        np.testing.assert_array_equal(one.staleness, other.staleness)
        np.testing.assert_array_equal(one.workers, other.workers)
        np.testing.assert_allclose(one.seconds * scale, other.seconds, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cluster.constant("1"), TypeError, r"`seconds`.* '1'"),
        (lambda: cluster.constant(-1.0), ValueError, r"`seconds`.* -1"),
        (lambda: cluster.lognormal(1.0, -0.1), ValueError, r"`cv`.* -0\.1"),
        (lambda: cluster.lognormal(0.0, 0.1), ValueError, r"`mean_seconds`.* 0"),
        (lambda: cluster.pareto(0.0, 1.0), ValueError, r"`scale_seconds`.* 0"),
        (
            lambda: cluster.infinite_bernoulli(1.0, 1.5),
            ValueError,
            r"`hang_probability`.* 1\.5",
        ),
        (
            lambda: cluster.infinite_bernoulli(1.0, math.nan),
            ValueError,
            r"`hang_probability`.* nan",
        ),
        (
            lambda: cluster.markov_stragglers(cluster.constant(1.0), 2.0, -0.1, 0.5),
            ValueError,
            r"`enter`.* -0\.1",
        ),
        (
            lambda: cluster.markov_stragglers(cluster.constant(1.0), 2.0, 0.1, 1.5),
            ValueError,
            r"`leave`.* 1\.5",
        ),
        (
            lambda: cluster.markov_stragglers(cluster.constant(1.0), 0.0, 0.1, 0.5),
            ValueError,
            r"`slowdown`.* 0",
        ),
        (
            lambda: cluster.markov_stragglers(cluster.constant(1.0), 2.0, 0.0, 0.0),
            ValueError,
            r"`enter`.*`leave`",
        ),
        (lambda: cluster.sleepers(1.0, 0.0, 4), ValueError, r"`sleep_seconds`.* 0"),
        (lambda: cluster.sleepers(0.0, 1.0, 4), ValueError, r"`seconds`.* 0"),
        (lambda: cluster.sleepers(1.0, 1.0, 0), ValueError, r"`workers`.* 0"),
        (
            lambda: cluster.sleepers(1.0, 1.0, 4, asleep=-1),
            ValueError,
            r"`asleep`.* -1",
        ),
    ],
)
def test_a_bad_service_is_refused_by_its_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("bad", "task"), [(-1.0, 0), (math.nan, 3), (-math.inf, 3)])
def test_a_service_that_yields_no_time_is_refused_with_its_worker(bad, task):
    def seconds_of(worker, tasks):
        return np.where((worker == 2) & (tasks == task), bad, 1.0)

    spec = cluster.Cluster(4, cluster.by_batch(seconds_of))
    with pytest.raises(ValueError, match=r"worker 2.*(nan|-1|-inf)|(nan|-1).*worker 2"):
        cluster.simulate(spec, protocols.k_async(1), 50, seed=0)


def test_a_service_that_runs_dry_is_refused_with_its_worker():
    def service(rng, worker):
        del rng
        yield np.ones(5 if worker == 1 else 1000)

    with pytest.raises(ValueError, match=r"worker 1"):
        cluster.simulate(cluster.Cluster(3, service), protocols.k_async(1), 100, seed=0)


def test_a_draw_of_the_wrong_shape_is_refused():
    spec = cluster.Cluster(2, cluster.independent(lambda rng, size: 1.0))
    with pytest.raises(ValueError, match=r"vectors of times.*worker 0"):
        cluster.simulate(spec, protocols.k_async(1), 10, seed=0)
