"""The staleness of equal asynchronous workers, exactly, by renewal theory.

While a worker computes for T, each of the P - 1 others delivers N(T) gradients. They
wait for none, so that each is a renewal process of its own, which at any moment of
the others has gone on for ever: what is left of its first time has the density P(T > t)
/ E T, the times after it are whole. Thus

    P(N(t) >= n) = (rest * F^{*(n-1)})(t),    E u^tau = E [ (E u^{N(T)})^{P-1} ]
"""

import numpy as np
from scipy import signal

CELLS = 300  # of a mean time
NOTHING = 1e-9


def staleness(survival, workers):
    """The probabilities of staleness 0, 1, ..., float64 [n].

    Args:
        survival: t -> P(T > t), of mean 1.
        workers: P.

    Raises:
        ValueError: if times may be longer than the grid, 50 means.
    """
    if survival(np.array([50.0]))[0] >= NOTHING:
        raise ValueError("`survival` must be below 1e-9 from 50 means on.")
    edges = np.arange(50 * CELLS) / CELLS
    edges = edges[: np.argmax(survival(edges) < NOTHING) + 2]
    whole = -np.diff(survival(np.append(edges, edges[-1] + 1 / CELLS) - 0.5 / CELLS))
    left = survival(edges)
    rest = np.append(0.0, (left[1:] + left[:-1]) / (2 * CELLS))
    at_least = np.cumsum(rest)  # P(N(t) >= 1)
    size = 64 * workers
    u = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    counted = np.ones((len(u), len(edges)), complex)  # E u^N(t)
    n = 1
    while at_least[-1] > NOTHING:
        counted += np.outer(u**n - u ** (n - 1), at_least)
        at_least = signal.fftconvolve(at_least, whole)[: len(edges)]
        n += 1
    pmf = np.fft.irfft(counted ** (workers - 1) @ whole, size)
    pmf = pmf[: np.flatnonzero(pmf > NOTHING)[-1] + 1]
    return np.maximum(pmf, 0) / pmf.sum()
