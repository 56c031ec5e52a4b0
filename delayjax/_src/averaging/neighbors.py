"""D-PSGD, AD-PSGD and gossip: averages with a few other workers and no center."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.averaging import means, periods
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, collectives, dtypes, kinds, transforms


@kinds.checked
def d_psgd(
    inner: transforms.Transformation,
    *,
    overlap: bool = True,
    period: kinds.Count = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """D-PSGD: each worker averages with its two neighbors on a ring.

        x^i <- (x^{i-1} + x^i + x^{i+1}) / 3 + U(g^i)

    where `period` divides t + 1. The mean of the models is conserved. A worker sends
    its model to two others, and waits for both.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        overlap: whether to mix the models from before the local step, so that a
            compiler can hide the exchange behind the gradient; otherwise from after it.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        axis_name: the workers' axis, one name.

    Example:
        >>> tx = d_psgd(optax.sgd(1.0))
        >>> def step(x):
        ...     return x + tx.update(jnp.zeros(()), tx.init(x), x)[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([3.0, 0.0, 0.0, 6.0]))
        Array([3., 1., 2., 3.], dtype=float32)

    References:
        Lian et al., NIPS 2017, arXiv:1705.09056, algorithm 1; Shigangli/WAGMA-SGD.
    """

    def mixed(step, model):
        workers, _ = neighborhood("averaging.d_psgd", axis_name)

        def sent(hop):
            over = [(rank, (rank + hop) % workers) for rank in range(workers)]
            return jax.lax.ppermute(model, axis_name, over)

        summed = jax.tree.map(lambda a, x, b: a + x + b, sent(1), model, sent(-1))
        return jax.tree.map(lambda leaf: means.divided(leaf, 3), summed)

    return mixing("averaging.d_psgd", inner, mixed, overlap, period, axis_name)


@kinds.checked
def ad_psgd(
    inner: transforms.Transformation,
    *,
    key: kinds.Key,
    period: kinds.Count = 1,
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
            kind = dtypes.wide_dtype(all_x)
            share = counts.astype(kind) / counts.sum().astype(kind)
            mixed = jnp.tensordot(share, all_x.astype(kind), 1, precision="highest")
            return mixed.astype(all_x.dtype)

        return jax.tree.map(mean, models)

    return mixing("averaging.gossip", inner, mixed, False, period, axis_name)


def mixing(
    name: str, inner: Any, mixed: Callable, overlap: bool, period: Any, axis_name: str
) -> optax.GradientTransformationExtraArgs:
    """x^i <- mixed(t, x + U(g))^i, or with `overlap` mixed(t, x)^i + U(g^i)."""

    def mix(step, memory, before, model):
        due, old = periods.due(step, period), before if overlap else model
        new = periods.when(due, functools.partial(mixed, step), old, axis_name)
        if overlap:
            new = jax.tree.map(lambda m, x, p: m + (x - p), new, model, before)
        return new, memory

    return step_then_mix(name, inner, mix, axis_name)


def neighborhood(needed_by: str, axis_name: str) -> tuple[int, jax.Array]:
    """The number of workers, and the rank of this worker."""
    workers = collectives.workers_of(axis_name)
    if workers == 1:
        raise ValueError(f"`{needed_by}` needs two workers or more, got 1.")
    return workers, jax.lax.axis_index(axis_name)


def received(
    tree: Any, sources: list[np.ndarray], chosen: jax.Array, axis_name: str
) -> Any:
    """The tree that worker i receives from worker sources[chosen][i]."""
    if not collectives.is_sent():
        rank = jnp.asarray(sources)[chosen, jax.lax.axis_index(axis_name)]
        return jax.tree.map(
            lambda leaf: jax.lax.all_gather(leaf, axis_name)[rank], tree
        )

    def over(source):
        pairs = sorted((int(j), i) for i, j in enumerate(source))
        return lambda tree: jax.lax.ppermute(tree, axis_name, pairs)

    varied = axes.vary(tree, axis_name=axis_name)
    return jax.lax.switch(chosen, [*map(over, sources)], varied)
