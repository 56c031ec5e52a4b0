"""How far replicas stay apart under noise, by the matrices that the methods follow."""

import numpy as np
import pytest

from tests.averaging.neighbors_test import exponential, ring
from tests.averaging.wagma_test import group_matrix

WORKERS, STEPS, FROM = 16, 80, 20  # whole periods of ten, when all has settled
DEVIATION = 0.5


def of_all(t, workers, period=10):
    """Local SGD's: the mean every `period` steps."""
    due = (t + 1) % period == 0
    return np.full((workers, workers), 1 / workers) if due else np.eye(workers)


METHODS = {  # (t, P) -> W: all mix after the local step
    "WAGMA": lambda t, p: group_matrix(t, p, 4),
    "SGP, two peers": lambda t, p: exponential(t, 2, p),
    "SGP, one peer": lambda t, p: exponential(t, 1, p),
    "D-PSGD": ring,
    "local SGD": of_all,
}


def disagreement(name, workers=WORKERS):
    """C <- W (C + s^2 I) W', and the mean over workers of its deviation's variance."""
    covariance, seen = np.zeros((workers, workers)), []
    centered = np.eye(workers) - 1 / workers
    for t in range(STEPS):
        w = METHODS[name](t, workers)
        covariance = w @ (covariance + DEVIATION**2 * np.eye(workers)) @ w.T
        seen.append(np.trace(centered @ covariance @ centered) / workers)
    return np.mean(seen[FROM:])


@pytest.mark.parametrize(("workers", "size"), [(16, 4), (64, 8), (16, 16)])
def test_wagma_s_is_a_group_s_share_of_the_noise_less_that_of_all(
    workers, size, monkeypatch
):
    """The paper's noise model (D.11)."""
    monkeypatch.setitem(METHODS, "WAGMA", lambda t, p: group_matrix(t, p, size))
    expected = DEVIATION**2 * (1 / size - 1 / workers)
    seen = disagreement("WAGMA", workers)
    np.testing.assert_allclose(seen, expected, rtol=1e-12, atol=1e-15)


def test_of_16_workers_wagma_s_stay_closest_and_those_of_local_sgd_least():
    order = ["WAGMA", "SGP, one peer", "D-PSGD", "local SGD"]
    seen = [disagreement(name) for name in order]
    assert seen == sorted(seen)
    assert disagreement("SGP, two peers") < disagreement("SGP, one peer")


def test_the_ring_contracts_by_its_second_eigenvalue():
    """Of W of 8 workers: (1 + 2 cos(2 pi / 8)) / 3, a slowest mode of one period."""
    slowest = np.cos(2 * np.pi * np.arange(8) / 8)
    factor = (1 + 2 * np.cos(2 * np.pi / 8)) / 3
    np.testing.assert_allclose(ring(0, 8) @ slowest, factor * slowest, atol=1e-15)
    sizes = np.sort(np.abs(np.linalg.eigvals(ring(0, 8))))
    np.testing.assert_allclose(sizes[-3:], [factor, factor, 1.0], rtol=1e-12)
