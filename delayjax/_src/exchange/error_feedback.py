"""Sends a part of each update, and keeps the rest for later updates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, collectives, kinds, transforms
from delayjax._src.ground.compression import Compressor, compressed
from delayjax._src.history import wrapped


class ErrorFeedbackState(NamedTuple):
    """State of `error_feedback`."""

    step: jax.Array  # updates done, int32 []
    error: Any  # each worker's updates that were not sent yet, like the parameters
    inner_state: Any


@kinds.checked
def error_feedback(
    inner: transforms.Transformation,
    compress: Compressor,
    *,
    axis_name: axes.AxisName = "workers",
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Averages compressed updates; the part that compression leaves out is sent later.

    On each worker, with its own update u = inner(g),

        p  = u + e
        D  = compress(p)
        e <- p - D
        x <- x + (1/P) sum_p D_p

    With `optax.sgd(eta)` u is -eta g, and e is minus the error of the papers.

    Args:
        inner: each worker's own optimizer, in front of the compressor. Extra arguments
            reach it unchanged. To compress gradients, pass `optax.identity()` and put
            the optimizer behind in a chain; it is then the same on all workers.
        compress: (tree, step int32 []) -> (message, restore), as
            `random_blocks(key, fraction)`. `message` is a tree of arrays. `restore`
            turns the mean of the messages into a tree like `tree`; it must be linear
            and the same on all workers.
        axis_name: the workers' axis, or several.
        bucket_bytes: smaller arrays are joined and sent together, as in `mean`.

    Returns:
        A transformation whose state holds one error tree and the state of `inner` for
        each worker. It sends only the message. Updates are the same on all workers.

    Example:
        >>> def second(update, step):  # nothing at step 0
        ...     return update * (step > 0), lambda message: message
        >>> tx = error_feedback(optax.sgd(1.0), second)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     return first, tx.update(grad, state)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([0., 0.], dtype=float32), Array([-4., -4.], dtype=float32))

    References:
        Xu and Huang (DEF), ICML 2022, arXiv:2004.05298, and its code anxuthu/DEF.
    """
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        varied = axes.vary(params, axis_name=axis_name)
        return ErrorFeedbackState(
            step=jnp.zeros((), jnp.int32),
            error=optax.tree.zeros_like(varied),
            inner_state=wrapped.init("inner", inner, varied, late=False),
        )

    def update_fn(updates, state, params=None, **extra_args):
        collectives.check_fresh("exchange.error_feedback", updates, axis_name)
        workers = collectives.workers_of(axis_name)
        update, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        message, restore, error = compressed(compress, update, state.error, state.step)
        total = collectives.sums(message, axis_name, bucket_bytes)
        mean = restore(jax.tree.map(lambda leaf: leaf / workers, total))
        return optax.tree.cast_like(mean, update), ErrorFeedbackState(
            step=state.step + 1,
            error=axes.typed_like(error, state.error),
            inner_state=inner_state,
        )

    return transforms.stateful(ErrorFeedbackState, init_fn, update_fn)


@kinds.checked
def detached(
    params: Any,
    opt_state: Any,
    strength: kinds.ProbabilityRate,
    *,
    axis_name: axes.AxisName = "workers",
) -> Any:
    """DEF: a worker takes its gradient at x + lam e instead of `workers.vary(params)`.

    e is the error in the state of `error_feedback`. No transformation behind
    `error_feedback` may scale the updates: then e would not have the units of x.

    Args:
        params: x, the same on all workers.
        opt_state: the state of any transformation with one `error_feedback` in it.
        strength: lam, in [0, 1], may be traced; or a schedule of the step (DEF-A).
        axis_name: the workers' axis, or several.

    Example:
        >>> state = ErrorFeedbackState(jnp.int32(0), jnp.asarray([-2.0, 4.0]), ())
        >>> detached(jnp.asarray([1.0, 1.0]), state, 0.5)
        Array([0., 3.], dtype=float32)

    References:
        Xu and Huang (DEF), ICML 2022, arXiv:2004.05298.
    """
    remedy = "train with one error_feedback, and give the state of the whole optimizer"
    what = "state of error_feedback"
    state = transforms.state_in(opt_state, ErrorFeedbackState, what, remedy)
    lam = transforms.rate_at(strength, state.step, "strength")
    varied = axes.vary(params, axis_name=axis_name)
    return jax.tree.map(lambda x, e: (x + lam * e).astype(x.dtype), varied, state.error)
