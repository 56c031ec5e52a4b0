"""Gossip: each worker averages with a worker that it draws."""

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging import means
from delayjax._src.averaging.neighbors import mixing, neighborhood
from delayjax._src.ground import kinds, transforms


@kinds.checked
def gossip(
    inner: transforms.Transformation,
    *,
    key: kinds.Key,
    push: bool = False,
    period: kinds.Count = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Gossiping SGD: each worker averages with a worker that it draws at random.

        x'^i = x^i + U(g^i)
        pull:  x^i <- (x'^i + x'^j) / 2
        push:  x^i <- (x'^i + sum_{k in S_i} x'^k) / (1 + |S_i|)

    where `period` divides t + 1. Worker i draws j uniformly among the other workers;
    S_i are the workers that drew i. The models' mean is conserved in expectation. In a
    cluster a worker sends one model and does not wait; here it gathers all models.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        key: a PRNG key; worker i's draw at step t uses `fold_in(fold_in(key, t), i)`.
        push: whether a worker sends its model to the drawn worker, or reads its model.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        axis_name: the workers' axis, one name.

    Example:
        >>> tx = gossip(optax.sgd(1.0), key=jax.random.key(0))
        >>> def step(x):  # each of two workers draws the other
        ...     return x + tx.update(jnp.zeros(()), tx.init(x), x)[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([2., 2.], dtype=float32)

    References:
        Jin et al., 2016, arXiv:1611.04581; the period as commonly reported.
    """

    def mixed(step, model):
        workers, rank = neighborhood("averaging.gossip", axis_name)
        draw_key = jax.random.fold_in(jax.random.fold_in(key, step), rank)
        peer = (
            rank + jax.random.randint(draw_key, (), 1, workers, jnp.int32)
        ) % workers
        if not push:
            models = means.gathered(model, axis_name)
            return jax.tree.map(lambda x, all_x: (x + all_x[peer]) / 2, model, models)
        models, drawn = means.gathered((model, peer), axis_name)
        counts = (drawn == rank) | (jnp.arange(workers) == rank)

        def mean(all_x):
            share = counts.astype(all_x.dtype) / counts.sum().astype(all_x.dtype)
            return jnp.tensordot(share, all_x, 1, precision="highest")

        return jax.tree.map(mean, models)

    return mixing("averaging.gossip", inner, mixed, False, period, axis_name)
