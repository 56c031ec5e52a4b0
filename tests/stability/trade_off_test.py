"""The bound of the error holds, and its floor is shared by the gradients."""

import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from delayjax.stability import Dynamics, error_bound

P = 8
PROBLEM = {"learning_rate": 0.1, "smallest": 0.5, "largest": 2.0, "noise": 3.0}


def test_the_error_falls_from_the_start_to_a_floor_that_is_shared_by_k():
    bound = error_bound([0.0, 1e6], 2.0, k=4, start=7.0, **PROBLEM)
    one = error_bound(1e6, 2.0, k=1, start=7.0, **PROBLEM)
    floor = 0.1 * 2.0 * 3.0**2 / (2 * 0.5)
    np.testing.assert_allclose(bound, [7.0, floor / 4], rtol=1e-12)
    assert isinstance(one, float)
    assert one == pytest.approx(floor)
    stale = error_bound(1e6, 2.0, k=4, start=7.0, agreement=0.5, **PROBLEM)
    assert stale == pytest.approx(2 * floor / 4)


@pytest.mark.parametrize("agreement", [1.0, 0.4])
def test_each_update_removes_the_same_share_of_what_is_above_the_floor(agreement):
    seconds = 3.0 * np.arange(5)
    errors = error_bound(seconds, 3.0, k=2, start=7.0, agreement=agreement, **PROBLEM)
    floor = 0.1 * 2.0 * 3.0**2 / (2 * 0.5 * agreement * 2)
    left = (errors - floor)[1:] / (errors - floor)[:-1]
    np.testing.assert_allclose(left, 1 - 0.1 * agreement * 0.5, rtol=1e-12)


@pytest.mark.parametrize("curvature", [0.5, 2.0])
@pytest.mark.parametrize("k", [1, 4])
def test_the_bound_is_above_the_exact_error_of_a_quadratic(curvature, k):
    # of one mode the second moment is known: E x_t^2 = V + (1 - a)^{2t} (x_0^2 - V)
    eta, noise = PROBLEM["learning_rate"], PROBLEM["noise"]
    step = eta * curvature
    kept = Dynamics(0).stationary_variance(step, noise=eta * noise / math.sqrt(k))
    updates = np.arange(0, 400)
    start = 3.0
    second = kept + (1 - step) ** (2 * updates) * (start - kept)
    bound = error_bound(
        updates * 0.25, 0.25, k=k, start=curvature / 2 * start, **PROBLEM
    )
    assert (curvature / 2 * second <= bound * (1 + 1e-12)).all()


def test_few_gradients_are_ahead_at_first_and_many_in_the_end():
    times = cluster.exponential(1.0)
    errors = [
        error_bound(
            [5.0, 500.0],
            protocols.k_sync(k).update_seconds(P, times),
            k=k,
            start=100.0,
            **PROBLEM,
        )
        for k in (1, 4, P)
    ]
    early, late = np.transpose(errors)
    assert early.argmin() == 0
    assert late.argmin() == 2
