"""The objective of workers whose data differ has a known least value."""

import jax
import numpy as np
import optax

from experiments.tasks import batches, digits_mlp
from experiments.tasks.unequal_digits import optimum, unequal_digits

L2 = 0.1  # a descent is short


def test_the_objective_is_the_mean_of_the_workers_means_and_its_least_excess_is_zero():
    """Without parameters each class has the chance 1/10: the loss is log 10."""
    split = dict(workers=8, concentration=0.05)
    task = unequal_digits(l2=L2, **split)

    def excess(params):
        return task.evaluate(params)["excess_loss"]

    nothing = jax.tree.map(np.zeros_like, task.init(jax.random.key(0)))
    drawn = digits_mlp(batch_size=0).batches(0, 0, 1)
    examples = {name: leaf[0] for name, leaf in drawn.items()}
    owner = batches.dirichlet(examples["label"], **split, seed=0)
    least = optimum(examples, owner, L2)
    np.testing.assert_allclose(excess(nothing), np.log(10) - least, rtol=1e-5)

    def step(_, params):
        grads = jax.grad(excess)(params)
        return jax.tree.map(lambda x, g: x - g, params, grads)

    params = jax.jit(lambda params: jax.lax.fori_loop(0, 300, step, params))(nothing)
    np.testing.assert_allclose(excess(params), 0.0, atol=2e-6)


def test_a_batch_has_the_penalty():
    task, plain = unequal_digits(l2=L2), digits_mlp(depth=0, batch_size=8)
    params = plain.init(jax.random.key(0))
    batch = jax.tree.map(lambda x: x[0], plain.batches(0, 0, 1))
    penalty = L2 / 2 * optax.tree.norm(params, squared=True)
    np.testing.assert_allclose(
        task.loss(params, batch), plain.loss(params, batch) + penalty, rtol=1e-6
    )
