"""AD-PSGD: pairs of workers average."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging.neighbors import mixing, neighborhood, received
from delayjax._src.ground import checks, transforms


def ad_psgd(
    inner: transforms.Transformation,
    *,
    key: jax.Array,
    period: ArrayLike = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """AD-PSGD: pairs of workers average while each computes a gradient.

        x^i <- (x^i + x^{j(i, t)}) / 2 + U(g^i)

    where `period` divides t + 1, with g^i taken at x^i before the average. A worker of
    even rank i has the partner i + 2 m(t) + 1, m uniform on 0, ..., P / 2 - 1. The mean
    of the models is conserved. A worker does not wait for gradients of other workers.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        key: a PRNG key; the draw at step t uses `fold_in(key, t)`.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        axis_name: the workers' axis, one name. The number of workers is even.

    Example:
        >>> tx = ad_psgd(optax.sgd(1.0), key=jax.random.key(0))
        >>> def step(x):
        ...     return x + tx.update(jnp.zeros(()), tx.init(x), x)[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([2., 2.], dtype=float32)

    References:
        Lian et al., ICML 2018, arXiv:1710.06952, algorithm 1; Shigangli/WAGMA-SGD.
    """
    checks.check_key("key", key)

    def mixed(step, model):
        workers, _ = neighborhood("averaging.ad_psgd", axis_name)
        if workers % 2:
            raise ValueError(
                f"`averaging.ad_psgd` needs an even number of workers, got {workers}."
            )
        ranks = np.arange(workers)
        side = np.where(ranks % 2, -1, 1)  # even ranks draw to their right
        pairs = [(ranks + side * (2 * m + 1)) % workers for m in range(workers // 2)]
        drawn = jax.random.fold_in(key, step)
        match = jax.random.randint(drawn, (), 0, workers // 2, jnp.int32)
        other = received(model, pairs, match, axis_name)
        return jax.tree.map(lambda x, y: (x + y) / 2, model, other)

    return mixing("averaging.ad_psgd", inner, mixed, True, period, axis_name)
