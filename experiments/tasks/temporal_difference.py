"""TD(0) with linear values, by agents that walk through one Markov chain."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tasks.task import Task, at_least

DISCOUNT = 0.9
"""Gamma of `linear_td`."""


class Chain(NamedTuple):
    """A Markov chain with rewards.

    Attributes:
        law: P, the probability of each next state (column) in each state (row), float64
            [states, states].
        rewards: r, the reward in each state, float64 [states].
        features: Phi, the features of each state, float64 [states, features].
    """

    law: np.ndarray
    rewards: np.ndarray
    features: np.ndarray


def random_chain(states: int = 10, features: int = 4) -> Chain:
    """A random chain, whose features have norm 1 in each state; the same each time."""
    draws = np.random.default_rng(0)
    law = draws.random((states, states)) ** 3
    law /= law.sum(axis=1, keepdims=True)
    rewards, phi = draws.normal(size=states), draws.normal(size=(states, features))
    return Chain(law, rewards, phi / np.linalg.norm(phi, axis=1, keepdims=True))


def fixed_point(chain: Chain, discount: float) -> np.ndarray:
    """The parameters x at which the mean step of TD(0) is zero.

        Phi' D (Phi - gamma P Phi) x = Phi' D r

    D is the stationary law of the chain. These values solve the Bellman equation,
    projected on the features: Phi x is the nearest point to r + gamma P Phi x.

    Args:
        chain: the chain.
        discount: gamma.

    Returns:
        The parameters, float64 [features].
    """
    law, rewards, features = chain
    weighted = features.T * np.linalg.matrix_power(law, 1000)[0]
    matrix = weighted @ (features - discount * law @ features)
    return np.linalg.solve(matrix, weighted @ rewards)


def linear_td(agents: int, *, distance: float = 1.0) -> Task:
    """The task of learning the values of states by TD(0), with linear values.

        delta = r(s) + gamma phi(s') . x - phi(s) . x
        loss(x, s, s') = 1/2 delta^2, in which r(s) + gamma phi(s') . x is constant

    so that its gradient is -delta phi(s) (Sutton and Barto, "Reinforcement Learning",
    Section 9.4, as Dal Fabbro et al., arXiv:2403.17247, take it for several agents).
    The chain is `random_chain()`, and gamma is `DISCOUNT`.
    Each agent walks on its own, from state 0 on, so consecutive batches are dependent.
    A run starts at `distance` from the fixed point in each parameter, whatever its key.

    Args:
        agents: the number of agents, each with one transition in a batch.
        distance: from the fixed point in each parameter, at the start.

    Returns:
        The task; its parameters are one vector x [features]. A batch is a pair of the
        states s and s', int32 [agents]. The metric `distance` is the distance from
        `fixed_point`, and `train_loss` is half its square.

    Raises:
        ValueError: if `agents` is less than 1.
    """
    at_least("agents", agents, 1)
    chain = random_chain()
    upper = chain.law.cumsum(axis=1)
    solution = fixed_point(chain, DISCOUNT).astype(np.float32)

    @functools.cache
    def visited(seed, steps):
        states = [np.zeros(agents, np.int32)]
        for draws in np.random.default_rng(seed).random((steps, agents, 1)):
            states.append((draws > upper[states[-1]]).sum(axis=1, dtype=np.int32))
        return np.array(states)

    def batches(seed, start, stop):
        states = visited(seed, 1 << stop.bit_length())  # a longer walk begins equally
        return states[start:stop], states[start + 1 : stop + 1]

    rewards, features = jnp.float32(chain.rewards), jnp.float32(chain.features)

    def loss(x, batch):
        now, then = batch
        values = features @ x
        wanted = jax.lax.stop_gradient(rewards[now] + DISCOUNT * values[then])
        return 0.5 * jnp.mean((wanted - values[now]) ** 2)

    def evaluate(x):
        away = jnp.linalg.norm(x - solution)
        return {"train_loss": 0.5 * away**2, "distance": away}

    begin = jnp.asarray(solution + distance)
    return Task(lambda key: begin, loss, batches=batches, evaluate=evaluate)
