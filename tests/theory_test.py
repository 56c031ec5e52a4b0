"""What theory says of an arm: formulas are the means that simulations have."""

import inspect
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special

from configs import default
from delayjax import cluster
from delayjax.cluster import protocols
from experiments import arms, build, theory
from experiments.build import clusters
from experiments.build.methods import METHODS
from tests import timetable_test

P = 8
# of every protocol with a formula, at least one
AGES = {
    "hardsync()": 0.0,
    "n_softsync(1)": (P - 1) / P,
    "n_softsync(3)": (P - 1) / 2,  # K = 8 // 3
    "n_softsync(n=8)": P - 1.0,
    "k_sync(3)": 0.0,
    "k_batch_sync(3)": 0.0,
    "k_async(2)": P / 2 - 1,
    "k_batch_async(2)": (P - 1) / 2,
    "ssp(0)": (P - 1) / 2,
    "ssp(inf)": P - 1.0,
    "psp(0, 3)": P - 1.0,
    "psp(2, inf)": P - 1.0,
    "psp(7, 0)": (P - 1) / 2,
    "psp(7, 0, poll_seconds=1.0)": (P - 1) / 2,
    "psp(0, 0, poll_seconds=1.0)": P - 1.0,
    "round_robin()": P - 1.0,
    "groups(1)": 0.0,
    "groups(4)": 3.0,
    "groups(8, data='dynamic')": P - 1.0,
    "rennala(4)": 0.0,
    "mindflayer(2, 1.0)": 0.0,
    "gradient_coding(2, 2, dynamic=True)": 0.0,
    "event_triggered(0.25)": (P - 1) / 4,
}
NO_AGE = (
    *("ssp(2)", "psp(2, 1)", "psp(6, 0, poll_seconds=1.0)"),
    *("groups(3)", "groups(2, data='static')", "progressive_groups(8)"),
    *("ringmaster(4)", "ringleader()", "bounded_staleness(4)"),
)
# sums of 1 / i for the order statistics of eight memoryless times
LAST_FOUR = 1 / 5 + 1 / 6 + 1 / 7 + 1 / 8
ALL = LAST_FOUR + 1 + 1 / 2 + 1 / 3 + 1 / 4
# (service, arm) -> seconds
SECONDS = {
    ("exponential(2.0)", "k_sync(4)"): 2 * LAST_FOUR,
    ("exponential(2.0)", "k_async(4)"): 2 * LAST_FOUR,
    ("exponential(2.0)", "k_batch_sync(4)"): 2 * 4 / P,
    ("exponential(2.0)", "hardsync()"): 2 * ALL,
    ("exponential(2.0)", "k_async(8)"): 2 * ALL,
    ("exponential(2.0)", "ssp(0)"): 2 * ALL / P,
    ("exponential(2.0)", "event_triggered(0.5)"): 2 * 2 / P,
    ("shifted_exponential(1.0, 2.0)", "k_sync(4)"): 1 + 2 * LAST_FOUR,
    ("shifted_exponential(1.0, 2.0)", "k_async(8)"): 1 + 2 * ALL,
    ("shifted_exponential(1.0, 2.0)", "k_batch_async(4)"): 3 * 4 / P,
    ("shifted_exponential(1.0, 2.0)", "n_softsync(2)"): 3 * 4 / P,
    # the smallest of eight is Pareto with eight times the exponent: its mean is 24 / 23
    ("pareto(1.0, 3.0)", "k_sync(1)"): 24 / 23,
    # and each further one longer than the last by 3 i / (3 i - 1), i = 7 .. 5
    ("pareto(1.0, 3.0)", "k_sync(4)"): 24 / 23 * 21 / 20 * 18 / 17 * 15 / 14,
    ("pareto(1.0, 3.0)", "k_async(1)"): 3 / 2 / P,
    ("pareto(1.0, 3.0)", "ssp(inf)"): 3 / 2 / P,
    ("constant(2.0)", "hardsync()"): 2.0,
    ("constant(2.0)", "k_batch_async(2)"): 2.0 * 2 / P,
    # all eight take 3 s in one of 2^8 cases that are as probable
    ("empirical((1.0, 3.0))", "k_sync(1)"): 1 + 2 / 2**P,
    ("empirical((1.0, 3.0))", "k_async(8)"): 3 - 2 / 2**P,
    ("empirical((1.0, 3.0))", "k_batch_async(4)"): 2.0 * 4 / P,
}


def shifted_k_batch_sync(k, shift, mean):
    """int P(fewer than K gradients by t) dt: n of them take n shifts and a gamma."""

    def short(t):
        n = np.arange(1, k + 1)
        by = special.gammainc(n, np.maximum(t - n * shift, 0) / mean)
        one = -np.diff(by, prepend=1.0)  # P(n), n < K
        every = np.ones(1)
        for _ in range(P):
            every = np.convolve(every, one)[:k]
        return every.sum()

    corners = [*(shift * np.arange(k + 1)), shift * k + 20 * mean]
    pieces = [integrate.quad(short, *ends)[0] for ends in itertools.pairwise(corners)]
    return math.fsum(pieces)


# integrals on a grid: to 1e-4
ON_A_GRID = {
    ("shifted_exponential(1.0, 2.0)", "k_batch_sync(2)"): shifted_k_batch_sync(2, 1, 2),
    ("shifted_exponential(1.0, 2.0)", "k_batch_sync(4)"): shifted_k_batch_sync(4, 1, 2),
    ("constant(2.0)", "k_batch_sync(8)"): 2.0,
    # both take 1 s, or both 3; or one is twice done at 2, by whom 1 s follows in 1 of 2
    ("empirical((1.0, 3.0))", "k_batch_sync(2) workers=2"): (1 + 2 * 2.5 + 3) / 4,
    ("pareto(1.0, 3.0)", "k_batch_sync(4)"): None,  # only simulated
}
NO_TIME = (
    ("shifted_exponential(1.0, 2.0)", "k_async(4)"),
    ("pareto(1.0, 0.2)", "k_batch_sync(4)"),  # too heavy a tail for the integral
    ("sleepers(0.4, 0.32, 8)", "k_sync(4)"),
    ("sleepers(0.4, 0.32, 8)", "k_batch_sync(4)"),
    ("exponential(2.0)", "rennala(4)"),  # who is late goes on, in vain
    ("gamma(1.0, 2.0)", "k_async(2)"),
    ("infinite_bernoulli(1.0, 0.1)", "k_sync(2)"),
    ("infinite_bernoulli(1.0, 0.1)", "k_batch_async(2)"),
    ("infinite_bernoulli(1.0, 0.1)", "ssp(0)"),
    ("exponential(2.0)", "ssp(2)"),
    ("exponential(2.0)", "groups(4)"),
    ("exponential(2.0)", "ringmaster(4)"),
)


def section(**changes):
    return default.get_config().cluster.to_dict() | {"workers": P} | changes


def simulated(arm, service, updates, slowdown=None):
    machine = cluster.Cluster(P, service, slowdown=slowdown)
    rule = build.protocol(arms.parse(arm))
    return cluster.simulate(machine, rule, updates, seed=1)


@pytest.mark.parametrize(("arm", "mean"), AGES.items())
def test_staleness_is_the_mean_that_a_simulation_has(arm, mean):
    assert theory.mean_staleness(arm, section()) == mean
    # on workers that differ in speed: it holds for any
    speeds = [1.0, 2.0] * (P // 2)
    trace = simulated(arm, cluster.gamma(1.0, 2.0), 3000, slowdown=speeds)
    # what the gradients in flight at the end have aged is missing, and the beginning
    slack = 2 * P * (trace.max_staleness + 1) / len(trace.worker)
    if arm.startswith("event"):  # who uploads is drawn: four standard errors
        ages = trace.update - trace.read_version
        slack += 4 * ages.std() / math.sqrt(len(ages))
    assert trace.summary().mean == pytest.approx(mean, abs=slack)


@pytest.mark.parametrize(("case", "seconds"), SECONDS.items())
def test_seconds_are_the_mean_of_a_long_simulation(case, seconds):
    service, arm = case
    assert theory.update_seconds(arm, section(service=service)) == pytest.approx(
        seconds, rel=1e-12
    )
    trace = simulated(arm, clusters.service(service), 100_000)
    assert trace.seconds[-1] / 100_000 == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(("case", "seconds"), ON_A_GRID.items())
def test_seconds_of_k_batch_sync_are_an_integral_and_the_mean_of_a_simulation(
    case, seconds
):
    service, arm = case
    found = theory.update_seconds(arm, section(service=service))
    if seconds is not None:
        assert found == pytest.approx(seconds, rel=1e-4)
    workers = arms.parse(arm).changes.get("workers", P)
    machine = cluster.Cluster(workers, clusters.service(service))
    rule = build.protocol(arms.parse(arm))
    trace = cluster.simulate(machine, rule, 20_000, seed=1)
    assert trace.seconds[-1] / 20_000 == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize(
    ("arm", "service", "seconds"),
    [
        ("allreduce_sgd()", "exponential(1.0)", math.fsum(1 / k for k in range(1, 9))),
        ("allreduce_sgd()", "sleepers(0.4, 0.32, 8)", 0.72),
        ("ad_psgd()", "sleepers(0.4, 0.32, 8)", 0.4 + 0.32 * (1 - (7 / 8) ** 2)),
        ("gossip()", "gamma(2.0, 3.0)", 2.0),
    ],
)
def test_seconds_of_replicas_are_the_mean_of_a_long_timetable(arm, service, seconds):
    free = {"latency_seconds": 0.0, "message_bytes": 0.0}
    found = timetable_test.of(arm, 10_000, service=service, **free).seconds[-1]
    assert found / 10_000 == pytest.approx(seconds, rel=0.01)
    known = theory.update_seconds(arm, section(service=service, workers=8))
    assert known == pytest.approx(seconds, rel=1e-12)


def test_the_last_of_heavy_tails_may_take_for_ever():
    # E T_{P:P} of P(T > t) = t^-a is infinite for a <= 1, E T_{P-1:P} for a <= 1/2
    heavy = section(service="pareto(1.0, 0.5)")
    assert theory.update_seconds("hardsync()", heavy) == math.inf
    assert theory.update_seconds("k_sync(7)", heavy) == math.inf
    assert theory.update_seconds("k_sync(6)", heavy) < math.inf
    assert theory.update_seconds("k_async(1)", heavy) == math.inf


@pytest.mark.parametrize("arm", NO_AGE)
def test_where_theory_knows_no_staleness_it_says_none(arm):
    assert theory.mean_staleness(arm, section()) is None


@pytest.mark.parametrize(("service", "arm"), NO_TIME)
def test_where_theory_knows_no_time_it_says_none(service, arm):
    assert theory.update_seconds(arm, section(service=service)) is None


@pytest.mark.parametrize("table", [theory._STALENESS, theory._SECONDS])
def test_formulas_take_what_their_protocols_take(table):
    def arguments(function):
        return [
            (p.name, p.default) for p in inspect.signature(function).parameters.values()
        ]

    for name, formula in table.items():
        named = METHODS.get(name) or getattr(protocols, name)
        assert arguments(formula)[1:] == arguments(named)


def test_seconds_of_sleepers_take_what_their_service_takes():
    own = [
        parameter.name
        for parameter in inspect.signature(theory._sleepers).parameters.values()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    ]
    assert own == list(inspect.signature(cluster.sleepers).parameters)


def test_order_statistics_rise_with_k_and_their_mean_is_the_law_s():
    own = "empirical((1.0, 3.0, 3.5))"
    closed = "exponential(2.0)", "pareto(1.0, 3.0)", "constant(2.0)", own
    for service in (*closed, "gamma(2.0, 3.0)", "lognormal(2.0, 0.5)", "uniform(1, 2)"):
        every = [
            theory.update_seconds(f"k_sync({k})", section(service=service))
            for k in range(1, P + 1)
        ]
        assert every == sorted(every)
        # sum_k E T_{K:P} = P E T
        one = theory.update_seconds("hardsync() workers=1", section(service=service))
        np.testing.assert_allclose(sum(every), P * one, rtol=1e-12)


@pytest.mark.parametrize(
    "change", ["service=infinite_bernoulli(1.0,0.1)", "serial=True"]
)
def test_workers_that_hang_or_queue_have_no_known_staleness(change):
    assert theory.mean_staleness(f"k_async(1) {change}", section()) is None
    key, value = change.split("=")
    whole = section(**{key: value if key == "service" else True})
    assert theory.mean_staleness("k_async(1)", whole) is None


@pytest.mark.parametrize(
    "change",
    [
        *("speeds=linear", "slow_workers=1 slow_factor=2.0", "latency_seconds=0.1"),
        "message_bytes=1.0 bytes_per_second=1.0",
    ],
)
def test_unequal_workers_and_messages_have_no_known_time(change):
    assert theory.update_seconds(f"k_async(1) {change}", section()) is None


@pytest.mark.parametrize(
    "change", ["slow_workers=1", "slow_factor=2.0", "message_bytes=1.0"]
)
def test_what_slows_nobody_changes_no_time(change):
    assert theory.update_seconds(f"k_async(1) {change}", section()) == 1 / P


def test_an_arm_may_have_a_cluster_of_its_own():
    assert theory.mean_staleness("k_async(1) workers=4", section()) == 3.0
    assert theory.update_seconds("k_async(1) workers=4", section()) == 0.25


def test_a_log_has_no_theory():
    assert theory.mean_staleness(arms.LOGGED, section()) is None
    assert theory.update_seconds(arms.LOGGED, section()) is None
