"""The mean gradient of the step before, sent while this step computes its own."""

import optax

from delayjax._src import base, collectives
from delayjax._src.exchange import mean as means
from delayjax._src.exchange import outbox


def overlapped_mean(
    inner: optax.GradientTransformation,
    *,
    axis_name: base.AxisName = "workers",
    keep_params: bool = False,
    weight: base.Law | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the mean of the workers' gradients of the step before.

        update_t = inner( (1/P) sum_p g_p[t - 1] ),    update_0 = 0

    The sum needs no result of step t, so a compiler can hide it behind the gradient of
    step t. At step 0 `inner` stays as it is. For longer delays put a history before it:
    `delayed(overlapped_mean(inner), d)` is d + 1 steps late.

    Args:
        inner: the transformation behind the mean; line searches, SAM and others that do
            not work with late gradients are refused. It receives `staleness=`, one more
            than the mean of the workers' staleness (float32; int32 1 if they were given
            none), and no `worker=`. A loss given as `value=` stays with its gradient:
            `inner` receives the workers' mean of the step before.
        axis_name: the workers' axis, or several.
        keep_params: whether to keep the parameters of the step before and pass them to
            `inner` as `stale_params=`.
        weight: staleness -> weight in the mean, as in `mean`.
        bucket_bytes: smaller leaves are joined and sent together, as in `mean`.

    Returns:
        A transformation whose state holds one gradient tree for each worker, the state
        of `inner`, and with `keep_params` one parameter tree. Sends one gradient tree a
        step. Each step copies the state of `inner`: put a history outside, not inside.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> tx = overlapped_mean(optax.sgd(1.0))
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     return first, tx.update(grad, state)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([0., 0.], dtype=float32), Array([-2., -2.], dtype=float32))
    """

    def empty(params):
        return optax.tree.zeros_like(base.vary(params, axis_name=axis_name))

    def send(held, fresh, params):
        del params
        collectives.check_fresh("exchange.overlapped_mean", fresh, axis_name)
        (gradient, value), age, fresh = means.average(
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
        empty,
        send,
        axis_name=axis_name,
        keep_params=keep_params,
    )
