"""The objective of workers whose data differ has a known least value."""

import jax
import numpy as np
import optax
import pytest

from configs import heterogeneous_data as config_file
from experiments.tasks import batches, digits_mlp


@pytest.fixture(scope="module")
def config():
    config = config_file.get_config()
    config.l2 = 0.1  # its descent is short
    return config


def test_the_objective_is_the_mean_of_the_workers_means_and_its_least_excess_is_zero(
    config,
):
    """Without parameters each class has the chance 1/10: the loss is log 10."""
    task = config_file.task_of(config, min(config.concentration))

    def excess(params):
        return task.evaluate(params)["excess_loss"]

    nothing = jax.tree.map(np.zeros_like, task.init(jax.random.key(0)))
    drawn = digits_mlp(batch_size=0).batches(0, 0, 1)
    examples = {name: leaf[0] for name, leaf in drawn.items()}
    split = dict(workers=config.workers, concentration=min(config.concentration))
    owner = batches.dirichlet(examples["label"], **split, seed=0)
    least = config_file.optimum(examples, owner, config.l2)
    np.testing.assert_allclose(excess(nothing), np.log(10) - least, rtol=1e-5)

    def step(_, params):
        grads = jax.grad(excess)(params)
        return jax.tree.map(lambda x, g: x - g, params, grads)

    params = jax.jit(lambda params: jax.lax.fori_loop(0, 300, step, params))(nothing)
    np.testing.assert_allclose(excess(params), 0.0, atol=2e-6)


def test_a_batch_has_the_penalty(config):
    task = config_file.task_of(config, max(config.concentration))
    plain = digits_mlp(depth=0, batch_size=config.batch_size)
    params = plain.init(jax.random.key(0))
    batch = jax.tree.map(lambda x: x[0], plain.batches(0, 0, 1))
    penalty = config.l2 / 2 * optax.tree.norm(params, squared=True)
    np.testing.assert_allclose(
        task.loss(params, batch), plain.loss(params, batch) + penalty, rtol=1e-6
    )
