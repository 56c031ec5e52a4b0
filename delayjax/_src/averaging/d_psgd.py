"""D-PSGD: each worker averages with its neighbors on a ring."""

import jax
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging.neighbors import mixing, neighborhood
from delayjax._src.ground import transforms


def d_psgd(
    inner: transforms.Transformation,
    *,
    overlap: bool = True,
    period: ArrayLike = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """D-PSGD: each worker averages with its two neighbors on a ring.

        x^i <- (x^{i-1} + x^i + x^{i+1}) / 3 + U(g^i)

    where `period` divides t + 1. The mean of the models is conserved. A worker sends
    its model to two others, and waits for both.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        overlap: whether to mix the models as they were before the local step, so that a
            compiler can hide the exchange behind the gradient; else after it.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        axis_name: the workers' axis, one name.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = d_psgd(optax.sgd(1.0))
        >>> def step(x):
        ...     return x + tx.update(jnp.zeros(()), tx.init(x), x)[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([3.0, 0.0, 0.0, 6.0]))
        Array([3., 1., 2., 3.], dtype=float32)

    References:
        Lian et al., NIPS 2017, arXiv:1705.09056, algorithm 1; Shigangli/WAGMA-SGD.
    """

    def mixed(step, model):
        del step
        workers, _ = neighborhood("averaging.d_psgd", axis_name)

        def sent(hop):
            over = [(rank, (rank + hop) % workers) for rank in range(workers)]
            return jax.lax.ppermute(model, axis_name, over)

        return jax.tree.map(lambda a, x, b: (a + x + b) / 3, sent(1), model, sent(-1))

    return mixing("averaging.d_psgd", inner, mixed, overlap, period, axis_name)
