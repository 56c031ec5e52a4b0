"""Clusters of which every task takes a given time."""

import functools

import numpy as np

from delayjax import cluster
from tests.cluster import oracle

SEEDS = [1, 2, 3]
UPDATES = 120
TASKS = 12_000  # MindFlayer draws 10 000 tasks of each worker beforehand

# no two multiples of these meet
STAGGERED = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0])

TIMES = {
    "constant": lambda rng, p: np.tile(STAGGERED[:p, None], TASKS),
    "exponential": lambda rng, p: rng.exponential(1.0, (p, TASKS)),
    "pareto": lambda rng, p: 1 + rng.pareto(2.5, (p, TASKS)),
    "straggler": lambda rng, p: (
        rng.gamma(4.0, 1 / 4, (p, TASKS))
        * np.where(np.arange(p) == p // 2, 9.0, 1.0)[:, None]
    ),
}


def contiguous(p, n):
    return [[int(w) for w in members] for members in np.array_split(np.arange(p), n)]


@functools.cache
def times_of(kind, p, seed):
    return TIMES[kind](np.random.default_rng(seed), p)


def simulate(times, protocol, num_updates=UPDATES, *, seed=0, **keywords):
    spec = cluster.Cluster(len(times), oracle.given(times), **keywords)
    return cluster.simulate(spec, protocol, num_updates, seed=seed)


# (workers, times, seed) on which a protocol is compared with its twin
CASES = [
    (1, "exponential", 1),
    (2, "pareto", 2),
    (7, "constant", 1),
    (7, "exponential", 3),
    (7, "straggler", 2),
]


def given_cases():
    """(P, times [P, tasks]) of each case."""
    return [(p, times_of(kind, p, seed)) for p, kind, seed in CASES]
