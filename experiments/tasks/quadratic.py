"""A quadratic with a chosen spectrum, where theory is exact."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.tasks.task import Task


def make(config: ConfigDict) -> Task:
    """Curvatures lambda_i, and noise of a chosen size on the gradient.

        loss(x, z) = 1/2 sum_i lambda_i x_i^2 + noise sum_i z_i x_i

    whose gradient is lambda_i x_i + noise z_i; a batch is a standard normal z. A run
    starts at a random corner of the cube |x_i| = 1: every direction at distance one,
    the loss at sum_i lambda_i / 2.

    Args:
        config: the task's section; uses `eigenvalues` and `noise`.

    Returns:
        The task; its parameters are one vector x. The loss that is reported, as
        train_loss, is without noise.

    Raises:
        ValueError: if an eigenvalue or the noise is negative or not finite, or there is
            no eigenvalue.
    """
    eigenvalues = np.asarray(config.eigenvalues, np.float32)
    if eigenvalues.ndim != 1 or not eigenvalues.size:
        raise ValueError(
            "config.task.eigenvalues must be a tuple with at least one curvature, got"
            f" {config.eigenvalues}."
        )
    if not (np.isfinite(eigenvalues).all() and (eigenvalues >= 0).all()):
        raise ValueError(
            "config.task.eigenvalues must be finite and non-negative, got"
            f" {config.eigenvalues}."
        )
    if not 0.0 <= config.noise < math.inf:
        raise ValueError(
            f"config.task.noise must be finite and non-negative, got {config.noise}."
        )
    shape = eigenvalues.shape

    def clean_loss(x):
        return 0.5 * jnp.sum(eigenvalues * x**2)

    def batches(seed, start, stop):
        return np.stack(
            [
                np.random.default_rng([seed, step]).standard_normal(shape, np.float32)
                for step in range(start, stop)
            ]
        )

    return Task(
        init=lambda key: jax.random.rademacher(key, shape, jnp.float32),
        loss=lambda x, z: clean_loss(x) + config.noise * (z @ x),
        batches=batches,
        evaluate=lambda x: {"train_loss": clean_loss(x)},
        facts={"sharpness": float(eigenvalues.max()), "optimum_loss": 0.0},
    )
