"""The mean gradient of the step before, while this step's is computed."""

import jax.numpy as jnp
import optax

from delayjax._src import base, collectives
from delayjax._src.exchange import average, outbox


def overlapped_mean(
    inner: optax.GradientTransformation,
    *,
    axis_name: base.AxisName = "workers",
    keep_params: bool = False,
    weight: base.Law | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the mean of the workers' gradients of the step before.

    Step t sends the gradient of step t - 1, which depends on nothing that step t
    computes: a compiler can hide the sum behind the gradient of step t.

        update_t = inner( (1/P) sum_p g_p[t - 1] )

    It adds one to the staleness. At step 0, when nothing is there to send, `inner` and
    the updates are left untouched (zeros), as by `delayed(inner, 1, warmup="skip")` of
    the mean. Longer delays are a history before it: `delayed(overlapped_mean(inner),
    d)` is d + 1 steps late.

    Args:
        inner: the transformation behind the mean. It receives `staleness=`, one more
            than the mean of the workers' own (float32; int32 1 if they were told none),
            and no `worker=`. A loss that comes as `value=` stays with its gradient:
            `inner` receives the workers' mean of the step before.
        axis_name: of the workers; several names for several axes.
        keep_params: whether to keep the parameters of the step before, once, and to
            hand them on as `stale_params=`.
        weight: staleness -> weight in the mean, as in `mean`.
        bucket_bytes: leaves smaller than this are sent together, as in `mean`.

    Returns:
        A transformation whose state holds one gradient tree a worker (and with
        `keep_params` one parameter tree for all) beside that of `inner`. Sends one
        gradient tree a step. It selects between the old and the new state of `inner`,
        and so copies a history inside of it: put that outside.

    Raises:
        ValueError: if `inner` cannot stand behind a late gradient, `bucket_bytes` is
            negative, or (in `update`) a gradient is summed over the workers already.

    Example:
        >>> import jax
        >>> tx = overlapped_mean(optax.sgd(1.0))
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     return first, tx.update(grad, state)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([0., 0.], dtype=float32), Array([-2., -2.], dtype=float32))
    """
    bucket_bytes = base.check_bound("bucket_bytes", bucket_bytes)

    def empty(params):
        zeros = outbox.Held(
            optax.tree.zeros_like(params),
            age=jnp.zeros((), jnp.float32),
            value=jnp.zeros((), jnp.result_type(float)),
        )
        return base.vary(zeros, axis_name=axis_name)

    def send(held, fresh, params):
        del params
        collectives.check_fresh("exchange.overlapped_mean", fresh, axis_name)
        (gradient, value), age, fresh = average.average(
            (held.gradient, held.value),
            held.age,
            axis_name=axis_name,
            weight=weight,
            bucket_bytes=bucket_bytes,
            meanwhile=optax.tree.cast_like(fresh, held.gradient),
        )
        return outbox.Held(gradient, age, value), fresh

    return outbox.one_step_late(
        "exchange.overlapped_mean",
        inner,
        empty=empty,
        send=send,
        keep_params=keep_params,
    )
