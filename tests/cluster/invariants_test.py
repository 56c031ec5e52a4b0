"""Laws that hold in all cases: A.3 of the papers, and run times in closed form.

Tests with about fifty comparisons of one kind allow 4 standard errors.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from delayjax import cluster
from delayjax.cluster import protocols

SEEDS = [1, 2, 3]
MANY = range(20)
P = 6

# workers with different speeds, none a multiple of another
STAGGERED = [cluster.constant(math.sqrt(prime)) for prime in (2, 3, 5, 7, 11, 13)]
SPECS = {
    "constant": cluster.Cluster(P, STAGGERED),
    "exponential": cluster.Cluster(P, cluster.exponential(1.0)),
    "lognormal": cluster.Cluster(P, cluster.lognormal(1.0, 0.2)),
    "gamma": cluster.Cluster(P, cluster.gamma(1.0, 3.0)),
    "pareto": cluster.Cluster(P, cluster.pareto(1.0, 3.0)),
    "mixed": cluster.Cluster(
        P, cluster.lognormal(1.0, 0.5), slowdown=(1, 1, 0.5, 2, 1.5, 9)
    ),
}


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


def ages(trace):
    return trace.update - trace.read_version


def assert_mean(samples, expected, deviations=4.0, edge=0.0):
    """The mean of independent runs is right within so many of its standard errors."""
    samples = np.asarray(samples, float)
    error = samples.std(ddof=1) / math.sqrt(len(samples))
    assert abs(samples.mean() - expected) <= deviations * error + edge


# name: how many gradients of others become older by one at an update
AGED = {
    protocols.k_batch_async(4): P - 1,
    protocols.n_softsync(3): P - 1,
    protocols.k_async(1): P - 1,
    protocols.k_async(4): P - 4,  # K idle
    protocols.ssp(math.inf): P - 1,
    protocols.ssp(0): (P - 1) / 2,  # read together, applied one after another
    protocols.round_robin(): P - 1,
    protocols.groups(3): P - P // 3,  # a group's are applied together
    protocols.fedbuff(1, concurrency=1): 0,
    protocols.fedbuff(3, concurrency=4): 4 - 1,
    # with the ages of refused gradients
    protocols.bounded_staleness(4): P - 1,
    protocols.event_triggered(0.3): P - 1,
}


@pytest.mark.parametrize("protocol", AGED, ids=repr)
def test_an_update_ages_every_gradient_in_flight(protocol):
    # I1, I2, I5, to the last gradient, so mean tau is AGED over the gradients of an
    # update: (P - 1) / K, P / K - 1, (C - 1) / K, G - 1, p (P - 1)
    T = 50 * P
    for spec in SPECS.values():
        # gradients in flight at T arrive later
        trace = cluster.simulate(spec, protocol, 3 * T, seed=1)
        used, refused = trace.update, trace.dropped.version
        ended = np.concatenate([used, refused])
        read = np.concatenate([trace.read_version, trace.dropped.read_version])
        aged = np.minimum(ended, T) - np.minimum(read, T)
        assert aged.sum() == AGED[protocol] * T


def test_clients_train_as_often_as_the_product_of_their_times_says():
    # C of P train: a set S with probability ~ prod_S E T, for any service times; so
    # client i delivers e_{C-1}(times without its own) / e_C(times) deltas a second
    times = np.array([1.0, 1.0, 2.0, 0.5, 4.0, 1.5])
    running, buffer, T = 2, 3, 1500

    def symmetric(k, values):
        return sum(math.prod(chosen) for chosen in itertools.combinations(values, k))

    rates = [
        symmetric(running - 1, np.delete(times, i)) / symmetric(running, times)
        for i in range(P)
    ]
    for service in (cluster.constant(1.0), cluster.pareto(1.0, 3.0)):
        spec = cluster.Cluster(P, service, slowdown=times)
        protocol = protocols.fedbuff(buffer, concurrency=running)
        runs = [cluster.simulate(spec, protocol, T, seed=seed) for seed in range(8)]
        for i in range(P):
            counts = [run.summary().gradients[i] / run.seconds[-1] for run in runs]
            assert_mean(counts, rates[i] / service.mean, deviations=5.0)
    # equal clients: each makes as many, together C / (K E T) updates a second
    spec = cluster.Cluster(P, cluster.gamma(2.0, 3.0))
    runs = [cluster.simulate(spec, protocol, T, seed=seed) for seed in range(8)]
    speeds = [run.summary().updates_per_second for run in runs]
    assert_mean(speeds, running / (buffer * 2.0))
    shares = np.sum([run.summary().gradients for run in runs], axis=0) / (
        8 * T * buffer
    )
    assert abs(shares * P - 1).max() < 4 * math.sqrt(P / (8 * T * buffer))


def test_a_slower_group_is_staler_by_as_much():
    # I4: two groups of period 1, one of 1 + d; (G - 1)(1 + d) for the slow one
    for d in (0.5, 2.0, 7.0):
        slow = [1.0] * 4 + [1.0 + d] * 2
        spec = cluster.Cluster(P, cluster.lognormal(1.0, 0.01), slowdown=slow)
        trace = cluster.simulate(spec, protocols.groups(3), 800, seed=1)
        ages = trace.summary().per_worker
        assert abs(ages[5] - 2 * (1 + d)) < 1
        assert ages[4] == ages[5] > ages[0]
        staleness = trace.staleness_law(burn_in=50)
        assert abs(staleness.mean - 2) < 0.1


@pytest.mark.parametrize("num_workers", [1, 2, 7])
def test_equal_constant_times_make_a_round_robin(num_workers):
    # I6, with a staggered start or all at once
    tau = np.minimum(np.arange(50), num_workers - 1)

    def staggered(rng, worker):
        yield np.concatenate([[1.0 + worker / num_workers], np.ones(100)])

    for service in (cluster.constant(1.0), staggered):
        spec = cluster.Cluster(num_workers, service)
        trace = cluster.simulate(spec, protocols.k_async(1), 50, seed=0)
        np.testing.assert_array_equal(trace.staleness[:, 0], tau)
        np.testing.assert_array_equal(trace.worker, np.arange(50) % num_workers)


@pytest.mark.parametrize("num_workers", [2, 5])
def test_memoryless_workers_are_geometrically_stale(num_workers):
    # I7: P(tau = k) = (1/P)(1 - 1/P)^k
    spec = cluster.Cluster(num_workers, cluster.exponential(2.0))
    pmfs = [
        cluster.simulate(spec, protocols.k_async(1), 1500, seed=seed)
        .staleness_law(burn_in=60)
        .pmf
        for seed in MANY
    ]
    for k in range(12):
        share = [pmf[k] if k < len(pmf) else 0.0 for pmf in pmfs]
        assert_mean(share, (1 - 1 / num_workers) ** k / num_workers)


def test_memoryless_workers_arrive_in_any_order_alike():
    # consecutive pairs of workers are uniform: chi-square at 4 standard deviations
    n, cells = 12_000, P**2
    spec = SPECS["exponential"]
    trace = cluster.simulate(spec, protocols.k_async(1), n, seed=1)
    pairs = np.bincount(trace.worker[::2] * P + trace.worker[1::2], minlength=cells)
    expected = n / 2 / cells
    statistic = ((pairs - expected) ** 2 / expected).sum()
    assert abs(statistic - (cells - 1)) < 4 * math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("k", [2, 4])
def test_memoryless_k_async_is_fresh_with_probability_k_over_p(k):
    # I8
    fresh = []
    for seed in MANY:
        protocol = protocols.k_async(k)
        trace = cluster.simulate(SPECS["exponential"], protocol, 800, seed=seed)
        fresh.append((ages(trace)[trace.update >= 50] == 0).mean())
    assert_mean(fresh, k / P)


# I15


@pytest.mark.parametrize("service", SPECS)
def test_bounds_hold_and_are_reached(service):
    spec, clocks = SPECS[service], {}
    for bound in (0, 1, 4):
        trace = cluster.simulate(spec, protocols.ssp(bound), 400, seed=1)
        done = np.zeros(P, int)
        spread = 0
        for worker in trace.worker:
            done[worker] += 1
            spread = max(spread, done.max() - done.min())
        clocks[bound] = spread
    # a worker may start at `bound` ahead, and then ends its task
    assert all(spread <= bound + 1 for bound, spread in clocks.items())
    if service != "lognormal":  # workers with regular times do not differ so much
        assert clocks == {0: 1, 1: 2, 4: 5}
    for bound in (1, 4):
        for late in ("drop", "restart", "wait"):
            bounded = protocols.bounded_staleness(bound, late=late)
            trace = cluster.simulate(spec, bounded, 400, seed=1)
            assert trace.max_staleness <= bound
            if late != "wait":
                assert trace.max_staleness == bound
        for stop in (False, True):
            ringmaster = protocols.ringmaster(bound, stop=stop)
            trace = cluster.simulate(spec, ringmaster, 400, seed=1)
            assert trace.max_staleness == bound - 1
            adaptive = protocols.ringmaster(lambda t: max(1, math.isqrt(t)), stop=stop)
            trace = cluster.simulate(spec, adaptive, 400, seed=1)
            room = np.maximum(1, np.floor(np.sqrt(np.arange(400)))) - 1 - ages(trace)
            assert room.min() == 0 and (room[4:] == 0).any()  # also where R > 1
    trace = cluster.simulate(spec, protocols.ringleader(), 600, seed=1)
    assert P - 1 <= trace.max_staleness <= 2 * P - 2


@pytest.mark.parametrize("seed", SEEDS)
def test_ringleader_s_bound_is_tight(seed):
    spec = SPECS["exponential"]
    trace = cluster.simulate(spec, protocols.ringleader(), 3000, seed=seed)
    assert trace.max_staleness == 2 * P - 2
    # a round: P updates, each of another worker, who delivers in every one of them
    for first in range(0, 3000, P):
        rows = (trace.update >= first) & (trace.update < first + P)
        assert set(trace.worker[rows]) == set(range(P))


@pytest.mark.parametrize("seed", SEEDS)
def test_softsync_s_staleness_of_regular_learners_stays_below_twice_n(seed):
    # papers B.2, P = 30: {0, 1, 2} at n = 1; P(tau > 2n) negligible; mean (P - 1)/K
    # with K = floor(P / n), so 29/7 at n = 4
    spec = cluster.Cluster(30, cluster.lognormal(1.0, 0.2))
    for n, num_updates in {1: 60, 4: 300, 15: 1000, 30: 2000}.items():
        trace = cluster.simulate(spec, protocols.n_softsync(n), num_updates, seed=seed)
        result = trace.staleness_law(burn_in=num_updates // 10)
        assert (ages(trace) > 2 * n).mean() < 2e-3
        assert abs(result.mean - 29 / (30 // n)) < 0.02 * 29 / (30 // n)
    # memoryless ones: (1 - 1/P)^(2P + 1), about e^-2
    spec = cluster.Cluster(30, cluster.exponential(1.0))
    trace = cluster.simulate(spec, protocols.n_softsync(30), 8000, seed=seed)
    share = (ages(trace)[400:] > 60).mean()
    assert abs(share - (1 - 1 / 30) ** 61) < 0.03


# Seconds an update takes. I9, B.3, B.12, B.14, E.12.


def two_coded_clusters(mean, load, size):
    """E of the later of two clusters of memoryless workers (B.14)."""
    need = size - load + 1

    def still_waiting(t):
        done = scipy.stats.binom.sf(need - 1, size, -math.expm1(-t / mean))
        return 1 - done**2

    return load * scipy.integrate.quad(still_waiting, 0, math.inf)[0]


EXPONENTIAL = cluster.exponential(2.0)
PARETO = cluster.pareto(2.0, 3.0)
UNIFORM = cluster.independent(lambda rng, size: rng.uniform(0.0, 2.0, size))


# name: (service, P, protocol, seconds per update)
# (schemes that count to K: protocols/k_scheme_test)
RUN_TIMES = {
    "half of the gradients sent, exponential": (
        EXPONENTIAL,
        *(8, protocols.event_triggered(0.5), 2 * 2.0 / 8),
    ),
    "ASGD, times of its own each": (
        [EXPONENTIAL, PARETO, UNIFORM, cluster.constant(7.0)],
        *(4, protocols.k_async(1), 1 / (1 / 2 + 1 / 3 + 1 + 1 / 7)),
    ),
    "ssp(0), exponential": (EXPONENTIAL, 4, protocols.ssp(0), 2.0 * harmonic(4) / 4),
    "gradient coding, one cluster": (
        EXPONENTIAL,
        6,
        protocols.gradient_coding(1, 3),
        # the fourth of six, three times as much work
        3 * 2.0 * (harmonic(6) - harmonic(2)),
    ),
    "gradient coding, two clusters": (
        EXPONENTIAL,
        *(6, protocols.gradient_coding(2, 2), two_coded_clusters(2.0, 2, 3)),
    ),
    # B.12: E min(T, c) a trial, of a memoryless worker E T for each success
    "MindFlayer, a hanging worker": (
        cluster.infinite_bernoulli(1.0, 0.3),
        *(1, protocols.mindflayer(4, 1.5), 4 * (0.7 * 1.0 + 0.3 * 1.5)),
    ),
    "MindFlayer, memoryless": (
        EXPONENTIAL,
        *(1, protocols.mindflayer(3, 0.8), 3 * 2.0 * -math.expm1(-0.4)),
    ),
}


@pytest.mark.parametrize("name", RUN_TIMES)
def test_an_update_takes_as_long_as_the_formula_says(name):
    # blocks much longer than a task, after the start
    service, num_workers, protocol, expected = RUN_TIMES[name]
    spec = cluster.Cluster(num_workers, service)
    trace = cluster.simulate(spec, protocol, 4001, seed=1)
    blocks = np.diff(trace.seconds[::200])[1:] / 200
    assert_mean(blocks, expected)
    # standard errors of at most about one per cent, or the test would say nothing
    assert blocks.std() / math.sqrt(len(blocks)) < 0.03 * expected


@pytest.mark.parametrize(("groups", "d"), [(2, 1.0), (4, 3.0), (4, 100.0)])
def test_groups_share_a_straggler_s_work_where_data_is_dynamic(groups, d):
    # B.8: time over that without delay 1 / (1 - d / (G (1 + d))); static: 1 + d
    slow = [1.0 + d] * (8 // groups) + [1.0] * (8 - 8 // groups)
    spec = cluster.Cluster(8, cluster.constant(1.0), slowdown=slow)
    n = 400 * groups
    dynamic = cluster.simulate(spec, protocols.groups(groups), n, seed=0)
    ratio = dynamic.seconds[-1] / (n / groups)
    expected = 1 / (1 - d / (groups * (1 + d)))
    assert abs(ratio / expected - 1) < 0.01
    static = cluster.simulate(spec, protocols.groups(groups, data="static"), n, seed=0)
    assert math.isclose(static.seconds[-1] / (n / groups), 1 + d, rel_tol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_rennala_and_ringmaster_gain_nothing_and_lose_nothing_by_slow_workers(seed):
    # B.9, B.10: the time of n accepted gradients does not grow with their number
    def seconds(num_slow, protocol):
        factors = [1.0] * 5 + [400.0] * num_slow
        spec = cluster.Cluster(5 + num_slow, cluster.exponential(1.0), slowdown=factors)
        return cluster.simulate(spec, protocol, 300, seed=seed).seconds[-1]

    for protocol in (protocols.rennala(8), protocols.ringmaster(10)):
        alone, crowded = seconds(0, protocol), seconds(10, protocol)
        assert abs(crowded / alone - 1) < 0.1
    # a barrier does: the largest of ten exponential times of mean 400
    assert seconds(10, protocols.hardsync()) > 100 * seconds(0, protocols.hardsync())


def test_ringmaster_refuses_more_with_more_workers():
    shares = []
    for num_workers in (3, 6, 12, 24):
        spec = cluster.Cluster(num_workers, cluster.exponential(1.0))
        trace = cluster.simulate(spec, protocols.ringmaster(4), 2000, seed=1)
        shares.append(trace.summary().dropped / (2000 + trace.summary().dropped))
    assert shares == sorted(shares) and shares[0] < 0.25 < 0.6 < shares[-1]


# B.6: 200 workers for 200 s, a step takes 1 + Exp(1).


def steps_of(protocol):
    spec = cluster.Cluster(200, cluster.shifted_exponential(1.0, 1.0))
    trace = cluster.simulate(spec, protocol, 10**6, seed=1, seconds=200.0)
    assert trace.seconds[-1] <= 200
    return trace.summary().gradients


def test_sampled_barriers_lie_between_none_and_all():
    steps = {
        "BSP": steps_of(protocols.ssp(0)),
        "pBSP(10)": steps_of(protocols.psp(10, 0)),
        "pBSP(4)": steps_of(protocols.psp(4, 0)),
        "pBSP(1)": steps_of(protocols.psp(1, 0)),
        "ASP": steps_of(protocols.psp(0, 0)),
    }
    means = [times.mean() for times in steps.values()]
    spreads = [times.std() for times in steps.values()]
    assert means == sorted(means)
    assert max(spreads[:3]) < spreads[3] < spreads[4]
    # 200 / 2 and 200 / (1 + Har(200)) steps, the latter of one run and rounded down
    assert abs(means[-1] - 100) < 1
    assert abs(means[0] - 200 / (1 + harmonic(200))) < 3
    assert np.ptp(steps["BSP"]) <= 1 and np.ptp(steps["ASP"]) > 20
    # pSSP: the same sample with slack is faster
    assert steps_of(protocols.psp(10, 4)).mean() > means[1]


def test_slack_raises_the_rate_ever_less():
    # B.5: increasing and concave
    spec = cluster.Cluster(8, cluster.exponential(1.0))
    rates = [
        cluster.simulate(spec, protocols.ssp(bound), 4000, seed=1)
        .summary()
        .updates_per_second
        for bound in (0, 1, 2, 8, math.inf)
    ]
    assert rates == sorted(rates)
    gains = np.diff(rates[:3])
    assert gains[0] > gains[1] > 0
