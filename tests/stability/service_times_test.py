"""Order statistics are what the laws of the times give."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy import integrate, stats

from delayjax import cluster, stability
from delayjax.cluster import protocols
from delayjax.stability import service_times, update_times

P = 8
SAMPLES = [0.5, 1.0, 1.0, 2.5]
LAWS = {
    "exponential": (service_times.exponential(2.0), cluster.exponential(2.0)),
    "shifted": (
        service_times.shifted_exponential(1.0, 2.0),
        cluster.shifted_exponential(1.0, 2.0),
    ),
    "pareto": (service_times.pareto(2.0, 3.0), cluster.pareto(2.0, 3.0)),
    "uniform": (
        service_times.uniform(1.0, 4.0),
        cluster.independent(lambda rng, size: rng.uniform(1.0, 4.0, size)),
    ),
    "empirical": (service_times.empirical(SAMPLES), cluster.empirical(SAMPLES)),
}
KS = (1, 3, 8)


@pytest.fixture(params=LAWS)
def laws(request):
    return LAWS[request.param]


@pytest.mark.parametrize("k", KS)
def test_the_kth_of_p_is_the_integral_of_its_survival(laws, k):
    times, _ = laws

    # fewer than K of P are done: of a count that is binomial
    def survival(seconds):
        return stats.binom.cdf(k - 1, P, 1 - times.beyond(np.asarray(seconds)))

    corners = (0.0, *sorted(set(SAMPLES)), 4.0, 400.0)
    pieces = [
        integrate.quad(survival, low, high, limit=200)[0]
        for low, high in itertools.pairwise(corners)
    ]
    # Pareto's last is beyond t with 8 (2/t)^3
    tail = 8 * 2**3 / (2 * 400**2) if times is LAWS["pareto"][0] and k == P else 0.0
    assert times.kth(k, P) == pytest.approx(math.fsum(pieces) + tail, rel=1e-6)


def test_all_of_p_together_take_p_means(laws):
    times, _ = laws
    every = [times.kth(k, P) for k in range(1, P + 1)]
    assert every == sorted(every)
    assert math.fsum(every) == pytest.approx(P * times.mean_seconds, rel=1e-12)
    assert times.kth(1, 1) == pytest.approx(times.mean_seconds, rel=1e-12)


@pytest.mark.parametrize("k", KS)
def test_k_sync_takes_the_kth_of_p_in_a_simulation(laws, k):
    times, service = laws
    updates = 40_000 // k
    trace = cluster.simulate(
        cluster.Cluster(P, service), protocols.k_sync(k), updates, seed=k
    )
    seconds = update_times.k_sync_seconds(k, P, times)
    assert trace.seconds[-1] / updates == pytest.approx(seconds, rel=0.01)


def test_the_other_forms_of_a_law_that_are_pointed_to_have_its_mean():
    pointers = re.findall(r"`(\w+)\.(\w+)`", service_times.__doc__)
    forms = {"service_times": service_times, "cluster": cluster, "stability": stability}
    named = {name: getattr(forms[module], name) for module, name in pointers}
    assert {module for module, _ in pointers} == set(forms)
    assert named["exponential_delay"](2.0).mean == 2.0
    assert service_times.exponential(2.0).mean_seconds == 2.0
    drawn = cluster.simulate(
        cluster.Cluster(1, cluster.exponential(2.0)),
        protocols.k_sync(1),
        20_000,
        seed=1,
    )
    assert drawn.seconds[-1] / 20_000 == pytest.approx(2.0, rel=0.03)
    for pointed in (r"`cluster`", r"`stability.DelayLaw`"):
        assert pointed in service_times.ServiceTimes.__doc__


def test_formulas_are_the_papers():
    last_three = 1 / 6 + 1 / 7 + 1 / 8
    assert service_times.exponential(2.0).kth(3, 8) == pytest.approx(2 * last_three)
    shifted = service_times.shifted_exponential(1.0, 2.0)
    assert shifted.kth(3, 8) == pytest.approx(1 + 2 * last_three)
    # the first of eight is Pareto with eight times the exponent, and each further one
    # longer than the last by 3 i / (3 i - 1), i = 7, 6
    assert service_times.pareto(2.0, 3.0).kth(3, 8) == pytest.approx(
        2 * 24 / 23 * 21 / 20 * 18 / 17
    )
    assert service_times.uniform(0.0, 2 * 5.0).kth(3, 8) == 2 * 5.0 * 3 / 9


def test_the_last_of_heavy_tails_may_take_for_ever():
    # E T_{K:P} of P(T > t) = t^-1/2 needs P - K + 1 > 2
    heavy = service_times.pareto(1.0, 0.5)
    assert heavy.mean_seconds == math.inf
    assert [heavy.kth(k, P) < math.inf for k in (6, 7, 8)] == [True, False, False]


def test_one_sample_is_a_constant_time():
    constant = service_times.empirical([3.0])
    assert [constant.kth(k, P) for k in KS] == [3.0] * 3
    assert constant.beyond(np.array([2.9, 3.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        ("exponential", (0.0,), "`mean_seconds` must be finite and positive, got 0.0"),
        ("exponential", (math.inf,), "`mean_seconds` must be finite"),
        ("shifted_exponential", (-1.0, 1.0), "`shift_seconds` must be .* got -1.0"),
        ("shifted_exponential", (1.0, 0.0), "`mean_seconds` must be"),
        ("pareto", (0.0, 2.0), "`scale_seconds` must be"),
        ("pareto", (1.0, -2.0), "`shape` must be"),
        ("uniform", (-1.0, 2.0), "`low_seconds` must be"),
        ("uniform", (0.0, 0.0), "`high_seconds` must be finite and positive"),
        ("uniform", (2.0, 2.0), "`high_seconds` must be above .* use empirical"),
        ("empirical", ([],), "`samples` must be a row of positive seconds"),
        ("empirical", ([[1.0]],), "`samples` must be a row of positive seconds"),
        ("empirical", ([1.0, 0.0],), "`samples` must be a row of positive seconds"),
        ("empirical", ([1.0, math.nan],), "`samples` must be finite, got nan"),
        ("empirical", ([1.0, math.inf],), "`samples` must be finite, got inf"),
    ],
)
def test_impossible_times_are_refused(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(service_times, factory)(*arguments)
