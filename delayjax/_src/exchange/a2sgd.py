"""Workers exchange two numbers a step: the means of a gradient's two signs."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, collectives, donation, dtypes, transforms


def a2sgd(
    inner: optax.GradientTransformation, *, axis_name: axes.AxisName = "workers"
) -> optax.GradientTransformationExtraArgs:
    """A2SGD: workers agree on two means of their gradients and keep the rest.

    Over the entries of a worker's whole gradient g,

        mu+ = mean of g over g >= 0,    mu- = mean of -g over g < 0
        enc(g, mu) = mu+ 1[g >= 0] - mu- 1[g < 0]
        g' = (g - enc(g, mu)) + enc(g, (1/P) sum_p mu_p)

    so all workers use the same two means, and each keeps its own signs and its own
    residual g - enc(g, mu). A worker sends two numbers a step, in float32 or wider. The
    parameters of the workers drift apart: pass `shared=False` to `init` of
    `workers.simulate` and `run`.

    Args:
        inner: each worker's own optimizer. Extra arguments reach it unchanged.
        axis_name: the workers' axis, or several.

    Example:
        >>> tx = a2sgd(optax.sgd(1.0))
        >>> def step(grad):
        ...     return tx.update(grad, tx.init(grad))[0]
        >>> grads = jnp.asarray([[1.0, 3.0, -1.0], [4.0, -2.0, -4.0]])
        >>> jax.vmap(step, axis_name="workers")(grads)  # (2, 1), (4, 3) become (3, 2)
        Array([[-2., -4.,  2.],
               [-3.,  1.,  3.]], dtype=float32)

    References:
        Bhattacharya, Yu and Chowdhury, 2020, arXiv:2006.07405, as commonly reported. A
        sign that does not occur has mean 0 here, and counts in the common mean.
    """
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        state = inner.init(axes.vary(params, axis_name=axis_name))
        return donation.unshared(state, params)

    def update_fn(updates, state, params=None, **extra_args):
        collectives.check_fresh("exchange.a2sgd", updates, axis_name)
        workers = collectives.workers_of(axis_name)
        means = _means(updates)
        common = collectives.sums(means, axis_name, collectives.BUCKET_BYTES)
        plus, minus = common / workers - means
        updates = jax.tree.map(
            lambda g: (g + jnp.where(g >= 0, plus, -minus)).astype(g.dtype), updates
        )
        return inner.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _means(gradient: Any) -> jax.Array:
    """mu+ and mu-, [2], in float32 or wider."""
    leaves = jax.tree.leaves(gradient)
    dtype = dtypes.wide_dtype(*leaves)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"`updates` of a2sgd must be real gradients, got {dtype}.")

    def mean(part):
        sums = [jnp.sum(jnp.where(part(g), jnp.abs(g), 0), dtype=dtype) for g in leaves]
        # a count in float32 stops at 2^24
        counts = [jnp.sum(part(g), dtype=jnp.int32).astype(dtype) for g in leaves]
        return sum(sums) / jnp.maximum(sum(counts), 1)

    return jnp.stack([mean(lambda g: g >= 0), mean(lambda g: ~(g >= 0))])
