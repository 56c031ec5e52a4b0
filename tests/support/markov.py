"""Linear TD(0): stochastic approximation along a Markov chain."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

DISCOUNT = 0.9


class Walk(NamedTuple):
    """What is seen along one walk through the states."""

    features: np.ndarray  # of the state at each step, [T, 4]
    next_features: np.ndarray  # of the state after it, [T, 4]
    rewards: np.ndarray  # [T]
    solution: np.ndarray  # the fixed point of TD(0), [4]


def walk(seed, steps, *, states=10):
    """A walk on a random chain of `states` states with 4 features of norm 1.

    The fixed point solves A x = b, with A = Phi' D (Phi - gamma P Phi), b = Phi' D r
    and D the chain's stationary law.
    """
    chain = np.random.default_rng(0)
    law = chain.random((states, states)) ** 3
    law /= law.sum(axis=1, keepdims=True)
    rewards, features = chain.normal(size=states), chain.normal(size=(states, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    stationary = np.linalg.matrix_power(law, 1000)[0]
    weighted = features.T * stationary
    matrix = weighted @ (features - DISCOUNT * law @ features)
    solution = np.linalg.solve(matrix, weighted @ rewards)

    draws = np.random.default_rng(seed).random(steps)
    visited = [0]
    for draw in draws:
        visited.append(int(np.searchsorted(law[visited[-1]].cumsum(), draw)))
    now, then = visited[:-1], visited[1:]
    return Walk(
        *(features[rows].astype(np.float32) for rows in (now, then)),
        rewards[now].astype(np.float32),
        solution,
    )


def gradient(x, features, next_features, reward):
    """-delta phi(s), delta the error of TD: the direction that SGD descends."""
    delta = reward + DISCOUNT * jnp.dot(next_features, x) - jnp.dot(features, x)
    return -delta * features
