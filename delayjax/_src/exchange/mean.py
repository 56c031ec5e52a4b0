"""The mean gradient of all workers, at every step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import (
    axes,
    checks,
    collectives,
    dtypes,
    extras,
    kinds,
    transforms,
    trees,
)
from delayjax._src.history import wrapped


@kinds.checked
def mean(
    inner: transforms.Transformation,
    *,
    axis_name: axes.AxisName = "workers",
    weight: extras.Law | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the mean of the workers' gradients.

        g = sum_p w_p g_p / sum_p w_p,    w_p = weight(tau_p), by default 1

    All workers hold the same state of `inner`.

    Args:
        inner: the transformation behind the mean. It receives `staleness=`, the mean of
            the workers' staleness with the same weights (float32). If the workers
            received no staleness, it receives int32 0, and `params` as `stale_params=`.
            `stale_params=` and `worker=` of a single worker are not passed on.
        axis_name: the workers' axis, or several. For two levels put one `mean` inside
            another.
        weight: staleness -> w_p, for example `dj.modulation.inverse`. If all weights
            are zero, the mean is zero.
        bucket_bytes: smaller leaves are joined and sent together. On a mesh with
            further axes, leaves that are sharded over these are sent alone. Types do
            not show which leaves are sharded over Auto axes: on such a mesh leaves of
            2^14 entries or more are sent alone.

    Raises:
        ValueError: in `update`, if a gradient is already summed over the workers: it
            was not taken at `workers.vary(params)`.

    Example:
        >>> tx = mean(optax.sgd(1.0))
        >>> def step(grad):
        ...     return tx.update(grad, tx.init(grad))[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([-2., -2.], dtype=float32)

    References:
        Gupta, Zhang and Wang (Rudra), ICDM 2016, arXiv:1509.04210.
    """
    inner = transforms.as_transformation("inner", inner)

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        collectives.check_fresh("exchange.mean", updates, axis_name)
        handed = of_all_workers(extra_args)
        if staleness is None and params is not None:
            handed["stale_params"] = params
        if staleness is not None:
            updates, staleness = extras.staleness_of(
                "exchange.mean", updates, staleness
            )
        updates, handed["staleness"], _ = average(
            updates, staleness, axis_name, weight, bucket_bytes
        )
        return inner.update(updates, state, params, **handed)

    def init_fn(params):
        return wrapped.init("inner", inner, params, late=False)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def of_all_workers(extra_args: dict[str, Any]) -> dict[str, Any]:
    """Extra arguments of `update`, without arguments that differ between workers."""
    of_one_worker = "stale_params", "worker"
    return {
        name: value for name, value in extra_args.items() if name not in of_one_worker
    }


def average(
    updates: Any,
    staleness: Any,
    axis_name: axes.AxisName,
    weight: extras.Law | None,
    bucket_bytes: int,
    meanwhile: Any = None,
) -> tuple[Any, Any, Any]:
    """The mean gradient and staleness of all workers, and `meanwhile`.

    `meanwhile` is computed during the exchange. `staleness` is as `staleness_of`
    returns it, or None if it is not known.
    """

    def sums(tree):
        if meanwhile is None:
            return collectives.sums(tree, axis_name, bucket_bytes), None
        return collectives.sums_beside(meanwhile, tree, axis_name, bucket_bytes)

    if staleness is None and weight is None:
        workers = collectives.workers_of(axis_name)
        total, done = sums(updates)
        return jax.tree.map(lambda g: g / workers, total), jnp.int32(0), done
    staleness = 0 if staleness is None else staleness
    ages = jax.tree.map(jnp.asarray, staleness)
    exact = dtypes.real_dtype(updates)

    def weigh(age):
        answer = 1.0 if weight is None else weight(age.astype(exact))
        return checks.as_scalar("weight(staleness)", answer).astype(exact)

    def scaled(operation, tree, factors):
        factors = trees.broadcast("staleness", factors, tree)
        return jax.tree.map(lambda g, f: operation(g, f.astype(g.dtype)), tree, factors)

    weights = jax.tree.map(weigh, ages)
    weighted_ages = jax.tree.map(lambda w, age: w * age.astype(exact), weights, ages)
    weighted = scaled(jnp.multiply, updates, weights)
    (total, ages, weights), done = sums((weighted, weighted_ages, weights))
    weights = jax.tree.map(lambda w: jnp.where(w > 0, w, 1.0), weights)
    ages = jax.tree.map(lambda age, w: (age / w).astype(jnp.float32), ages, weights)
    return scaled(jnp.divide, total, weights), ages, done
