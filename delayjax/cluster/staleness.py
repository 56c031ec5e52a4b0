"""The staleness that theory predicts for a cluster."""

import math

import numpy as np

from delayjax import base
from delayjax.cluster.cluster import Cluster, Speed
from delayjax.cluster.trace import StalenessLaw, law_of

_TAIL = 12.0  # standard deviations of a Poisson law that are kept


def staleness_law(
    cluster: Cluster, *, draws: int = 100_000, seed: int = 0
) -> StalenessLaw:
    """The staleness of plain asynchronous SGD, one update a gradient.

    While a worker computes for T seconds, the others' gradients arrive, seen from it
    as independent events. With nu_i the rate of worker i and nu that of all,

        tau | i, T ~ Poisson((nu - nu_i) T),   i with probability nu_i / nu

    For equal workers the mean is P - 1 whatever the law, and the variance

        (P - 1) + (P - 1)^2 cv^2

    Exponential times give the geometric law exactly; for nearly constant times the
    picture has too much spread (constant ones have tau = P - 1 throughout).

    Args:
        cluster: its laws and constant slow-downs count; communication and slow-downs
            that begin or end do not.
        draws: of service times, over all workers.
        seed: of the draws.

    Returns:
        Mean and variance in updates, and the pmf up to a negligible tail.

    Raises:
        ValueError: if slow-downs change over time, there is communication, or a worker
            has no finite mean time.

    Example:
        >>> from delayjax.cluster import exponential
        >>> law = staleness_law(Cluster(4, exponential(1.0)))
        >>> bool(abs(law.mean - 3.0) < 0.05), bool(abs(law.pmf[0] - 0.25) < 0.01)
        (True, True)

    References:
        Yu, Chen and Poor, Distributed stochastic gradient descent with staleness,
        arXiv:2406.11159 (the renewal picture).
    """
    if not isinstance(cluster, Cluster):
        raise TypeError(f"`cluster` must be a cluster.Cluster, got {cluster!r}.")
    workers = cluster.workers
    draws = base.check_bound("draws", draws, at_least=1)
    seed = base.check_bound("seed", seed)
    each = max(draws // workers, 1)
    if cluster.communication is not None:
        raise ValueError(
            "`cluster` must be without communication, got"
            f" {cluster.communication!r}: simulate it, and take Trace.staleness_law()."
        )
    seconds = np.stack(
        [
            _draw(cluster, worker, speed, each, seed)
            for worker, speed in enumerate(cluster.speeds())
        ]
    )
    rates = 1.0 / seconds.mean(axis=1)
    expected = (rates.sum() - rates)[:, None] * seconds  # arrivals of the others
    weights = np.repeat(rates / rates.sum() / each, each)
    return law_of(_mixed_poisson(expected.ravel(), weights))


def _draw(
    cluster: Cluster, worker: int, speed: Speed, draws: int, seed: int
) -> np.ndarray:
    if len(speed.factors) != 1:
        raise ValueError(
            f"`cluster` must not change over time, but worker {worker} does: simulate"
            " it, and take Trace.staleness_law()."
        )
    seconds = cluster.draw(worker, draws, seed=seed) * speed.factors[0]
    if not np.isfinite(seconds).all() or not seconds.mean() > 0:
        raise ValueError(
            f"`service` must have a finite, positive mean, but worker {worker} drew"
            f" {seconds.max()} s."
        )
    return seconds


def _mixed_poisson(means: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The pmf of a Poisson law whose mean is drawn from `means` with `weights`."""
    # a histogram of the means, so that the cost does not grow with the draws
    edges = np.quantile(means, np.linspace(0.0, 1.0, 2001))
    cell = np.clip(np.searchsorted(edges, means, side="right") - 1, 0, 1999)
    weight = np.bincount(cell, weights, 2000)
    centre = np.bincount(cell, weights * means, 2000)[weight > 0] / weight[weight > 0]
    weight = weight[weight > 0]
    largest = math.ceil(means.max() + _TAIL * math.sqrt(means.max()) + _TAIL)
    pmf = np.zeros(largest + 1)
    log_centre, log_term = np.log(np.maximum(centre, 1e-300)), np.log(weight) - centre
    for k in range(largest + 1):
        pmf[k] = np.exp(log_term).sum()
        log_term = log_term + log_centre - math.log(k + 1)
    return pmf / pmf.sum()
