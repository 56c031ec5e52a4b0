"""TD(0): the fixed point, the gradient and the walks of the agents."""

import jax
import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import temporal_difference

DISCOUNT = 0.9


def test_the_fixed_point_solves_the_projected_bellman_equation():
    chain = temporal_difference.random_chain()
    law, rewards, features = chain
    x = temporal_difference.fixed_point(chain, DISCOUNT)
    # the stationary law is the left eigenvector of P of eigenvalue 1
    values, vectors = np.linalg.eig(law.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    root = np.sqrt(stationary / stationary.sum())
    backed_up = rewards + DISCOUNT * law @ features @ x
    nearest, *_ = np.linalg.lstsq(root[:, None] * features, root * backed_up)
    np.testing.assert_allclose(nearest, x, rtol=1e-9)


def test_with_a_feature_for_each_state_the_fixed_point_is_the_value_function():
    chain = temporal_difference.random_chain(5)._replace(features=np.eye(5))
    x = temporal_difference.fixed_point(chain, DISCOUNT)
    values = np.linalg.solve(np.eye(5) - DISCOUNT * chain.law, chain.rewards)
    np.testing.assert_allclose(x, values, rtol=1e-9)


def test_the_gradient_of_a_batch_is_the_mean_step_of_td():
    task = tasks.linear_td(3)
    _, rewards, features = temporal_difference.random_chain()
    x = np.float32([0.5, -1.0, 2.0, 0.1])
    batch = now, then = np.int32([2, 7, 0]), np.int32([7, 7, 9])
    expected = np.zeros(4)
    for s, after in zip(now, then, strict=True):
        delta = rewards[s] + DISCOUNT * features[after] @ x - features[s] @ x
        expected -= delta * features[s] / 3
    np.testing.assert_allclose(jax.grad(task.loss)(x, batch), expected, rtol=1e-4)


def test_agents_walk_by_the_law_of_the_chain_and_each_batch_continues_the_last():
    law = temporal_difference.random_chain().law
    now, then = tasks.linear_td(50).batches(3, 0, 400)
    np.testing.assert_array_equal(now[0], 0)
    np.testing.assert_array_equal(now[1:], then[:-1])
    counts = np.zeros_like(law)
    np.add.at(counts, (now, then), 1)
    seen = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(seen, law, atol=5 / np.sqrt(counts.sum(axis=1).min()))
    # a pure function of its arguments, also in a new process
    part = tasks.linear_td(50).batches(3, 100, 250)
    np.testing.assert_array_equal(part, (now[100:250], then[100:250]))


def test_a_run_starts_at_the_chosen_distance_from_the_fixed_point():
    task = tasks.linear_td(2, distance=1.5)
    metrics = task.evaluate(task.init(jax.random.key(0)))
    chain = temporal_difference.random_chain()
    fixed = temporal_difference.fixed_point(chain, DISCOUNT)
    np.testing.assert_allclose(task.init(jax.random.key(0)), fixed + 1.5, rtol=1e-5)
    np.testing.assert_allclose(metrics["distance"], 1.5 * np.sqrt(4), rtol=1e-5)
    np.testing.assert_allclose(metrics["train_loss"], 0.5 * 1.5**2 * 4, rtol=1e-5)


def test_no_agent_is_refused():
    with pytest.raises(ValueError, match="`agents` must be at least 1, got 0"):
        tasks.linear_td(0)
