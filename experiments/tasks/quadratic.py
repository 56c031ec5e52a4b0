"""A quadratic with a chosen spectrum, where theory is exact."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tasks.task import Task


def quadratic(eigenvalues: Sequence[float] = (0.1, 1.0), *, noise: float = 0.0) -> Task:
    """A quadratic of curvatures lambda_i, with noise on the gradient.

        loss(x, z) = 1/2 sum_i lambda_i x_i^2 + noise sum_i z_i x_i

    Its gradient is lambda_i x_i + noise z_i; a batch is a standard normal z. A run
    starts at a random corner of the cube |x_i| = 1: the distance is one in every
    direction, and the loss is sum_i lambda_i / 2.

    Args:
        eigenvalues: the curvatures, lambda_i.
        noise: standard deviation of the gradient's noise.

    Returns:
        The task; its parameters are one vector x. The metric train_loss excludes the
        noise.
    """
    spectrum = np.asarray(eigenvalues, np.float32)
    shape = spectrum.shape

    def clean_loss(x):
        return 0.5 * jnp.sum(spectrum * x**2)

    def batches(seed, start, stop):
        return np.stack(
            [
                np.random.default_rng([seed, step]).standard_normal(shape, np.float32)
                for step in range(start, stop)
            ]
        )

    return Task(
        init=lambda key: jax.random.rademacher(key, shape, jnp.float32),
        loss=lambda x, z: clean_loss(x) + noise * (z @ x),
        batches=batches,
        evaluate=lambda x: {"train_loss": clean_loss(x)},
        facts={"sharpness": float(spectrum.max()), "optimum_loss": 0.0},
    )
