"""The objective of workers whose data differ has a known least value."""

import jax
import numpy as np
import optax
import pytest

from experiments.tasks import batches, digits_mlp
from experiments.tasks.unequal_digits import unequal_digits

L2 = 0.1  # a descent is short
SPLIT = dict(workers=8, concentration=0.05)


@pytest.fixture(scope="module")
def task():
    return unequal_digits(l2=L2, **SPLIT)


def objective(params):
    """The mean of the workers' mean losses and the penalty, in NumPy."""
    examples = digits_mlp(batch_size=0).batches(0, 0, 1)
    images, labels = examples["image"][0], examples["label"][0]
    owner = batches.dirichlet(labels, **SPLIT, seed=0)
    kernel, bias = (
        np.asarray(params["Dense_0"][name], np.float64) for name in ("kernel", "bias")
    )
    logits = images.reshape(len(labels), -1) @ kernel + bias
    chosen = logits[np.arange(len(labels)), labels]
    losses = np.log(np.exp(logits).sum(axis=1)) - chosen
    means = [losses[owner == worker].mean() for worker in range(SPLIT["workers"])]
    return np.mean(means) + L2 / 2 * (np.sum(kernel**2) + np.sum(bias**2))


def test_the_objective_is_the_mean_of_the_workers_means_and_its_least_excess_is_zero(
    task,
):
    """Without parameters each class has the chance 1/10: the loss is log 10."""

    def excess(params):
        return task.evaluate(params)["excess_loss"]

    nothing = jax.tree.map(np.zeros_like, task.init(jax.random.key(0)))

    def step(_, params):
        grads = jax.grad(excess)(params)
        return jax.tree.map(lambda x, g: x - g, params, grads)

    params = jax.jit(lambda params: jax.lax.fori_loop(0, 300, step, params))(nothing)
    np.testing.assert_allclose(excess(params), 0.0, atol=2e-6)
    least = objective(params)
    np.testing.assert_allclose(excess(nothing), np.log(10) - least, rtol=1e-5)


def test_a_batch_has_the_penalty(task):
    plain = digits_mlp(depth=0, batch_size=8)
    params = plain.init(jax.random.key(0))
    batch = jax.tree.map(lambda x: x[0], plain.batches(0, 0, 1))
    penalty = L2 / 2 * optax.tree.norm(params, squared=True)
    np.testing.assert_allclose(
        task.loss(params, batch), plain.loss(params, batch) + penalty, rtol=1e-6
    )
