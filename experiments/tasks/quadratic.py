"""A quadratic with a chosen spectrum, where theory is exact."""

import math
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

    Raises:
        ValueError: if an eigenvalue or the noise is negative or not finite, or there is
            no eigenvalue.
    """
    spectrum = np.asarray(eigenvalues, np.float32)
    if spectrum.ndim != 1 or not spectrum.size:
        raise ValueError(
            "`eigenvalues` must be a tuple with at least one curvature, got"
            f" {eigenvalues}."
        )
    if not (np.isfinite(spectrum).all() and (spectrum >= 0).all()):
        raise ValueError(
            f"`eigenvalues` must be finite and non-negative, got {eigenvalues}."
        )
    if not 0.0 <= noise < math.inf:
        raise ValueError(f"`noise` must be finite and non-negative, got {noise}.")
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
