"""Averages with a few other workers and no center: gossip, D-PSGD, AD-PSGD, SGP."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import center as centers
from delayjax._src.averaging import replicas
from delayjax._src.ground import axes, checks, collectives, dtypes, transforms


class PushSum(NamedTuple):
    """Memory of `sgp`."""

    weight: jax.Array  # w^i, the worker's own, float []


def gossip(
    inner: transforms.Transformation,
    *,
    key: jax.Array,
    push: bool = False,
    period: ArrayLike = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Gossiping SGD: each worker averages with a worker that it draws at random.

        x'^i = x^i + U(g^i)
        pull:  x^i <- (x'^i + x'^j) / 2
        push:  x^i <- (x'^i + sum_{k in S_i} x'^k) / (1 + |S_i|)

    where `period` divides t + 1. Worker i draws j uniformly among the other workers;
    S_i are the workers that drew i. The models' mean is conserved in expectation. In a
    cluster a worker sends one model and waits for nobody; here it gathers all models.

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
    checks.check_key("key", key)

    def mixed(step, model):
        workers, rank = _neighborhood("averaging.gossip", axis_name)
        own = jax.random.fold_in(jax.random.fold_in(key, step), rank)
        peer = (rank + jax.random.randint(own, (), 1, workers, jnp.int32)) % workers
        if not push:
            models = centers.gather(model, axis_name)
            return jax.tree.map(lambda x, all_x: (x + all_x[peer]) / 2, model, models)
        models, drawn = centers.gather((model, peer), axis_name)
        counts = (drawn == rank) | (jnp.arange(workers) == rank)

        def mean(all_x):
            share = counts.astype(all_x.dtype) / counts.sum().astype(all_x.dtype)
            return jnp.tensordot(share, all_x, 1, precision="highest")

        return jax.tree.map(mean, models)

    return _mixing("averaging.gossip", inner, mixed, False, period, axis_name)


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
        workers, _ = _neighborhood("averaging.d_psgd", axis_name)

        def sent(hop):
            over = [(rank, (rank + hop) % workers) for rank in range(workers)]
            return jax.lax.ppermute(model, axis_name, over)

        return jax.tree.map(lambda a, x, b: (a + x + b) / 3, sent(1), model, sent(-1))

    return _mixing("averaging.d_psgd", inner, mixed, overlap, period, axis_name)


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
    of the models is conserved. A worker waits for nobody's gradient.

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
        workers, _ = _neighborhood("averaging.ad_psgd", axis_name)
        if workers % 2:
            raise ValueError(
                f"`averaging.ad_psgd` needs an even number of workers, got {workers}."
            )
        ranks = np.arange(workers)
        side = np.where(ranks % 2, -1, 1)  # even ranks draw to their right
        pairs = [(ranks + side * (2 * m + 1)) % workers for m in range(workers // 2)]
        drawn = jax.random.fold_in(key, step)
        match = jax.random.randint(drawn, (), 0, workers // 2, jnp.int32)
        other = _received(model, pairs, match, axis_name)
        return jax.tree.map(lambda x, y: (x + y) / 2, model, other)

    return _mixing("averaging.ad_psgd", inner, mixed, True, period, axis_name)


def sgp(
    inner: transforms.Transformation,
    *,
    peers: int = 1,
    participates: Callable[[jax.Array], ArrayLike] | None = None,
    period: ArrayLike = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """SGP: stochastic gradient push on an exponential graph.

    The worker's model z^i is a sum x^i over its weight w^i, which starts at 1 and is
    kept in the state. With shares c = 1 / (1 + peers),

        x'^i = w^i z^i + U(g^i)
        x^i <- c x'^i + c sum_k x'^{i - h_k},    w^i <- c w^i + c sum_k w^{i - h_k}
        z^i  = x^i / w^i

    with hops h_k = 2^((r + k) mod L), k = 0, ..., peers - 1, at the r-th exchange, L =
    log2 P rounded up. A worker that does not send keeps its whole share, so the sums of
    x and of w are conserved. A worker that sends but never receives loses its weight:
    its step grows as 1 / w^i, and it diverges.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        peers: the number of other workers that a worker sends to, from 1 to L.
        participates: step (int32 []) -> whether this worker sends, bool []; a rule for
            `exchange.partial_mean` can be used. By default all workers send.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        axis_name: the workers' axis, one name.

    Example:
        >>> tx = sgp(optax.sgd(1.0),
        ...     participates=lambda step: jax.lax.axis_index("workers") == 1)
        >>> def step(z):
        ...     updates, state = tx.update(jnp.zeros(()), tx.init(z), z)
        ...     return z + updates, state.memory.weight
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 4.0]))
        (Array([2., 4.], dtype=float32), Array([1.5, 0.5], dtype=float32))

    References:
        Assran et al., ICML 2019, arXiv:1811.10792, algorithm 1; hops and shares of two
        peers as in the code Shigangli/WAGMA-SGD. Workers that do not send are ours.
    """
    if participates is not None:
        checks.check_function("participates", participates)
    peers = checks.check_bound("peers", peers, at_least=1)
    period = replicas.check_period("period", period)

    def begin(params):
        kind = dtypes.real_dtype(params)
        return PushSum(axes.vary(jnp.ones((), kind), axis_name=axis_name))

    def mix(step, memory, before, model):
        workers, _ = _neighborhood("averaging.sgp", axis_name)
        exponents = (workers - 1).bit_length()
        if peers > exponents:
            raise ValueError(
                f"`peers` must be at most {exponents}, the number of hops of {workers}"
                f" workers, got {peers}."
            )
        sending = True if participates is None else participates(step)
        sending = checks.as_scalar("participates(step)", sending, jnp.bool_)
        share = 1 / (1 + peers)
        sources = [(np.arange(workers) - 2**e) % workers for e in range(exponents)]

        def scaled(tree, factor):
            return jax.tree.map(lambda x: (x * factor).astype(x.dtype), tree)

        def exchange(sum_and_weight):
            out = scaled(sum_and_weight, jnp.where(sending, share, 0.0))
            kept = scaled(sum_and_weight, jnp.where(sending, share, 1.0))
            first = step // period
            for k in range(peers):
                came = _received(out, sources, (first + k) % exponents, axis_name)
                kept = jax.tree.map(jnp.add, kept, came)
            return kept

        # w z + U: the weight does not scale U
        total = jax.tree.map(
            lambda z, x: (memory.weight * z + (x - z)).astype(z.dtype), before, model
        )
        total, weight = replicas.when(
            replicas.due(step, period), exchange, (total, memory.weight), axis_name
        )
        mixed = jax.tree.map(lambda x: (x / weight).astype(x.dtype), total)
        return mixed, PushSum(weight)

    return replicas.averaged("averaging.sgp", inner, mix, axis_name, begin)


def _mixing(
    name: str, inner: Any, mixed: Callable, overlap: bool, period: Any, axis_name: str
) -> optax.GradientTransformationExtraArgs:
    """x^i <- mixed(t, x + U(g))^i, or with `overlap` mixed(t, x)^i + U(g^i)."""
    period = replicas.check_period("period", period)

    def mix(step, memory, before, model):
        due, old = replicas.due(step, period), before if overlap else model
        new = replicas.when(due, functools.partial(mixed, step), old, axis_name)
        if overlap:
            new = jax.tree.map(lambda m, x, p: m + (x - p), new, model, before)
        return new, memory

    return replicas.averaged(name, inner, mix, axis_name)


def _neighborhood(needed_by: str, axis_name: str) -> tuple[int, jax.Array]:
    """The number of workers, and the rank of this worker."""
    workers = collectives.workers_of(axis_name)
    if workers == 1:
        raise ValueError(f"`{needed_by}` needs two workers or more, got 1.")
    return workers, jax.lax.axis_index(axis_name)


def _received(
    tree: Any, sources: list[np.ndarray], chosen: jax.Array, axis_name: str
) -> Any:
    """What worker i receives of worker sources[chosen][i], by permutations."""
    if not collectives.is_sent():
        rank = jnp.asarray(sources)[chosen, jax.lax.axis_index(axis_name)]
        return jax.tree.map(
            lambda leaf: jax.lax.all_gather(leaf, axis_name)[rank], tree
        )

    def over(source):
        pairs = sorted((int(j), i) for i, j in enumerate(source))
        return lambda tree: jax.lax.ppermute(tree, axis_name, pairs)

    own = axes.vary(tree, axis_name=axis_name)
    return jax.lax.switch(chosen, [*map(over, sources)], own)
