"""How far replicas stay apart under noise: each method against its mixing matrices."""

import functools

import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import seen_of

STEPS, ENTRIES, FROM = 80, 300, 20  # whole periods of ten, when all has settled
DEVIATION = 0.5


def near(workers, hops):
    """Each row of W: equal shares of a worker's own and of those so many ranks off."""
    matrix = np.zeros((workers, workers))
    for i in range(workers):
        for hop in (0, *hops):
            matrix[i, (i + hop) % workers] += 1 / (1 + len(hops))
    return matrix


def blocks(workers, bits):
    """W of groups whose ranks differ in these bits alone."""
    ranks = np.arange(workers)
    fixed = workers - 1 - sum(1 << bit for bit in bits)
    matrix = ((ranks[:, None] ^ ranks) & fixed) == 0
    return matrix / matrix.sum(axis=1, keepdims=True)


def every(period, matrix):
    eye = np.eye(len(matrix))
    return lambda t: matrix if (t + 1) % period == 0 else eye


# name: (transformation, (t, P) -> W): all mix after the local step
METHODS = {
    "WAGMA": (
        averaging.wagma(optax.sgd(1.0), period=10**6),
        lambda t, p: blocks(p, [t % 2 * 2, t % 2 * 2 + 1]),
    ),
    "SGP, two peers": (
        averaging.sgp(optax.sgd(1.0), peers=2),
        lambda t, p: near(p, [-(2 ** (t % 4)), -(2 ** ((t + 1) % 4))]),
    ),
    "SGP, one peer": (
        averaging.sgp(optax.sgd(1.0)),
        lambda t, p: near(p, [-(2 ** (t % 4))]),
    ),
    "D-PSGD": (
        averaging.d_psgd(optax.sgd(1.0), overlap=False),
        lambda t, p: near(p, [1, -1]),
    ),
    "local SGD": (
        averaging.local_sgd(optax.sgd(1.0), period=10),
        lambda t, p: every(10, np.full((p, p), 1 / p))(t),
    ),
}


def expected(name, workers):
    """C <- W (C + s^2 I) W', and the mean over workers of its deviation's variance."""
    _, matrix = METHODS[name]
    covariance, seen = np.zeros((workers, workers)), []
    centered = np.eye(workers) - 1 / workers
    for t in range(STEPS):
        w = matrix(t, workers)
        covariance = w @ (covariance + DEVIATION**2 * np.eye(workers)) @ w.T
        seen.append(np.trace(centered @ covariance @ centered) / workers)
    return np.mean(seen[FROM:])


SEEDS = [1, 2, 3]


@functools.cache
def measured(workers):
    """By method, one number a seed; all methods at once, on the same noise."""
    shape = STEPS, workers, ENTRIES
    draws = [np.random.default_rng(seed).normal(size=shape) for seed in SEEDS]
    noise = DEVIATION * np.concatenate(draws, axis=-1)
    txs = {name: tx for name, (tx, _) in METHODS.items()}
    seen = seen_of(txs, np.zeros(noise.shape[1:]), noise)
    apart = {n: x[FROM:] - x[FROM:].mean(1, keepdims=True) for n, x in seen.items()}
    return {
        name: np.mean(x.reshape(-1, len(SEEDS), ENTRIES) ** 2, axis=(0, 2))
        for name, x in apart.items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_replicas_disagree_as_their_mixing_matrices_say(name):
    # of each seed; entries are independent, and steps a mixing time apart
    seen = measured(16)[name]
    assert len(seen) == len(SEEDS)
    np.testing.assert_allclose(seen, expected(name, 16), rtol=0.06)


def test_wagma_s_is_a_group_s_share_of_the_noise_less_that_of_all():
    seen = expected("WAGMA", 16)
    np.testing.assert_allclose(seen, DEVIATION**2 * (1 / 4 - 1 / 16), rtol=1e-12)


def test_of_16_workers_wagma_s_stay_closest_and_those_of_local_sgd_least():
    order = ["WAGMA", "SGP, one peer", "D-PSGD", "local SGD"]
    seen = [expected(name, 16) for name in order]
    assert seen == sorted(seen)
    assert expected("SGP, two peers", 16) < expected("SGP, one peer", 16)
