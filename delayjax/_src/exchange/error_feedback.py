"""Sending a part of an update and keeping the rest for later."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src import base, collectives

Compressor = Callable[[Any, jax.Array], tuple[Any, Callable[[Any], Any]]]
"""(tree, step int32 []) -> the arrays that travel, and what makes a tree of them: a
linear function, the same on all workers, so that the mean of what travels is enough."""


class ErrorFeedbackState(NamedTuple):
    """State of `error_feedback`."""

    step: jax.Array  # updates done, int32 []
    error: Any  # each worker's updates that were not sent yet, like the parameters
    inner_state: Any


def error_feedback(
    inner: optax.GradientTransformation,
    compress: Compressor,
    *,
    axis_name: base.AxisName = "workers",
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Averages compressed updates; what compression leaves out is sent later.

    On each worker, with its own update u = inner(g),

        p  = u + e
        D  = compress(p)
        e <- p - D
        x <- x + (1/P) sum_p D_p

    Signs and units are those of updates, which are added: behind `optax.sgd(eta)` u is
    -eta g, and the error is minus that of the papers. Nothing is lost: updates applied
    so far, and the mean error, are the mean of all that `inner` made.

    Args:
        inner: the worker's own optimizer, in front of the compressor; its moments
            differ from worker to worker. It receives its worker's extra arguments as
            they come. `optax.identity()` compresses gradients, for one optimizer of all
            workers behind it in a chain.
        compress: (tree, step) -> (message, restore); `random_blocks(key, fraction)` for
            one. `message` is a tree of arrays, of which the mean over the workers is
            taken; `restore` makes of one, linearly and alike on all workers, a tree
            like the first. In a narrower dtype a message is itself a compression.
        axis_name: of the workers; several names for several axes.
        bucket_bytes: arrays smaller than this are sent together, as in `mean`.

    Returns:
        A transformation whose state holds one error tree and the state of `inner`, both
        each worker's own. Sends the message alone. The result is the same on all
        workers.

    Raises:
        ValueError: if `bucket_bytes` is negative, or (in `update`) a gradient is summed
            over the workers already.

    Example:
        >>> def every_other(update, step):  # nothing at odd steps
        ...     return update * (step % 2 == 0), lambda message: message
        >>> tx = error_feedback(optax.sgd(1.0), every_other)
        >>> def three_steps(grad):
        ...     state, updates = tx.init(grad), []
        ...     for _ in range(3):
        ...         update, state = tx.update(grad, state)
        ...         updates.append(update)
        ...     return jnp.stack(updates)
        >>> jax.vmap(three_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))[0]
        Array([-2.,  0., -4.], dtype=float32)

    References:
        Xu and Huang, Detached error feedback for distributed SGD with random
        sparsification (DEF), ICML 2022, arXiv:2004.05298, and its code anxuthu/DEF:
        error feedback as in its comparison, momentum in front of the compressor.
    """
    inner = base.as_transformation("inner", inner)
    bucket_bytes = base.check_bound("bucket_bytes", bucket_bytes)

    def init_fn(params):
        own = base.vary(params, axis_name=axis_name)
        return ErrorFeedbackState(
            step=jnp.zeros((), jnp.int32),
            error=optax.tree.zeros_like(own),
            inner_state=inner.init(own),
        )

    def update_fn(updates, state, params=None, **extra_args):
        collectives.check_fresh("exchange.error_feedback", updates, axis_name)
        workers = collectives.workers_of(axis_name)
        own, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        whole = jax.tree.map(lambda u, e: (u + e).astype(u.dtype), own, state.error)
        message, restore = _check_message(compress(whole, state.step))
        error = jax.tree.map(
            lambda p, d, e: (p - d).astype(e.dtype),
            whole,
            restore(message),
            state.error,
        )
        total = collectives.sums(message, axis_name, bucket_bytes)
        mean = restore(jax.tree.map(lambda leaf: leaf / workers, total))
        return optax.tree.cast_like(mean, whole), ErrorFeedbackState(
            step=state.step + 1,
            error=base.typed_like(error, state.error),
            inner_state=inner_state,
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def detached(
    params: Any,
    opt_state: Any,
    strength: optax.ScalarOrSchedule,
    *,
    axis_name: base.AxisName = "workers",
) -> Any:
    """DEF: where a worker takes its gradient, part of the way along what it kept.

        g = grad F(x + lam e)

    with e the error in the state of `error_feedback`, in the units of updates (the
    paper's x - lam e, whose error is minus this one). lam = 0 is plain error feedback,
    at lam = 1 the worker goes on from where it would be had all been sent.

    `error_feedback` must be the last to change the updates: behind it nothing may scale
    them, or e is not in the parameters' units.

    Args:
        params: x, the same on all workers.
        opt_state: the state of any transformation with one `error_feedback` in it.
        strength: lam, in [0, 1]; 0.3 in the released scripts. May be traced, or a
            schedule of the step (DEF-A).
        axis_name: of the workers; several names for several axes.

    Returns:
        The worker's own point, like `params`; in place of `workers.vary(params)`. Its
        mean over the workers at lam = 1, `jax.lax.pmean(detached(params, opt_state,
        1.0), "workers")`, is where the released code evaluates.

    Raises:
        ValueError: if it is not in [0, 1], or no `error_feedback`, or several, are in
            the state.

    Example:
        >>> state = ErrorFeedbackState(jnp.int32(0), jnp.asarray([-2.0, 4.0]), ())
        >>> detached(jnp.asarray([1.0, 1.0]), state, 0.5)
        Array([0., 3.], dtype=float32)

    References:
        Xu and Huang (DEF), ICML 2022, arXiv:2004.05298.
    """
    _check_strength(strength)

    def is_feedback(node):
        return isinstance(node, ErrorFeedbackState)

    found = list(filter(is_feedback, jax.tree.leaves(opt_state, is_leaf=is_feedback)))
    if len(found) != 1:
        raise ValueError(
            f"`opt_state` must hold one error, got {len(found)}: pass the state of one"
            " exchange.error_feedback."
        )
    lam = strength(found[0].step) if callable(strength) else strength
    return jax.tree.map(
        lambda x, e: (x + lam * e).astype(x.dtype),
        base.vary(params, axis_name=axis_name),
        found[0].error,
    )


def _check_message(result: Any) -> Any:
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
        raise TypeError(
            f"`compress` must return (message, restore), got {type(result).__name__}:"
            " restore makes a tree of a message."
        )
    return result


def _check_strength(strength: Any) -> None:
    if callable(strength):
        return
    base.check_number("strength", strength)
    if base.is_concrete(strength) and np.asarray(strength) > 1:
        raise ValueError(f"`strength` must be in [0, 1], got {strength}.")
