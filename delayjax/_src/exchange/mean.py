"""The mean gradient of all workers, at every step."""

import optax

from delayjax._src import base, collectives
from delayjax._src.exchange import average


def mean(
    inner: optax.GradientTransformation,
    *,
    axis_name: base.AxisName = "workers",
    weight: base.Law | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the mean of the workers' gradients.

        g = sum_p w_p g_p / sum_p w_p,    w_p = weight(tau_p), 1 unless given

    `inner` is then the same on all workers: its state is held once.

    Args:
        inner: the transformation behind the mean. It receives `staleness=`, the mean of
            the workers' own (float32, weighted likewise), and neither `stale_params=`
            nor `worker=`, which differ. If they were told none it is int32 0, and
            `params` are the `stale_params=`.
        axis_name: of the workers; several names for several axes. One mean inside
            another is one of two levels: over `"members"`, then over `"groups"`.
        weight: staleness -> w_p, as `dj.modulation.inverse`: late gradients count less.
            Where all weights are zero the mean is.
        bucket_bytes: leaves smaller than this are sent together, flat and joined; each
            alone where the mesh has further axes, over which they may be sharded.

    Returns:
        A transformation with the state of `inner`. Sends one gradient tree a step.

    Raises:
        ValueError: if `bucket_bytes` is negative, or (in `update`) a gradient is summed
            over the workers already: it was not taken at `workers.vary(params)`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> tx = mean(optax.sgd(1.0))
        >>> def step(grad):
        ...     return tx.update(grad, tx.init(grad))[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([-2., -2.], dtype=float32)

    References:
        Gupta, Zhang and Wang (Rudra), ICDM 2016, arXiv:1509.04210 (the mean staleness
        of an update).
    """
    inner = base.as_transformation("inner", inner)
    bucket_bytes = base.check_bound("bucket_bytes", bucket_bytes)

    def update_fn(
        updates,
        state,
        params=None,
        *,
        staleness=None,
        stale_params=None,
        worker=None,
        **extra_args,
    ):
        del stale_params, worker
        fresh = staleness is None and params is not None
        handed = {"stale_params": params} if fresh else {}
        collectives.check_fresh("exchange.mean", updates, axis_name)
        updates, staleness, _ = average.average(
            updates,
            staleness,
            axis_name=axis_name,
            weight=weight,
            bucket_bytes=bucket_bytes,
        )
        return inner.update(
            updates, state, params, staleness=staleness, **handed, **extra_args
        )

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
