"""The spectrum and the noise are those that were chosen."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import tasks


def test_the_quadratic_has_the_chosen_spectrum(make):
    spectrum = (0.5, 3.0, 0.0, 1.0)
    task = make("quadratic", eigenvalues=spectrum)
    x = task.init(jax.random.key(0))
    hessian = jax.jit(jax.hessian(lambda x: task.evaluate(x)["train_loss"]))(x)
    np.testing.assert_allclose(hessian, np.diag(spectrum), atol=1e-6)
    assert task.facts == {"sharpness": max(spectrum), "optimum_loss": 0.0}
    np.testing.assert_allclose(np.abs(x), 1.0)
    np.testing.assert_allclose(task.evaluate(x)["train_loss"], sum(spectrum) / 2)


def test_the_gradient_noise_has_the_chosen_size():
    task = tasks.quadratic((1.0, 2.0), noise=0.3)
    x = jnp.array([1.0, -1.0])
    z = task.batches(0, 0, 4000)
    gradients = jax.jit(jax.vmap(jax.grad(task.loss), (None, 0)))(x, z)
    # 4000 draws: the mean is known to 0.3 / sqrt(4000), the spread to 1.2 %
    np.testing.assert_allclose(gradients.mean(0), [1.0, -2.0], atol=0.02)
    np.testing.assert_allclose(gradients.std(0), 0.3, rtol=0.05)
