"""Zeno++: refuses gradients that do not descend on the server's own data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, dtypes, extras, kinds, transforms, trees
from delayjax._src.rules import norms
from delayjax._src.rules.refusing import refusing


class ZenoMemory(NamedTuple):
    """The memory of `zeno_plus_plus`."""

    step: jax.Array  # gradients received so far, int32 []
    validation: Any  # the gradient of the validation data


@kinds.checked
def zeno_plus_plus(
    inner: transforms.Transformation,
    grad_fn: Callable[[Any], Any],
    *,
    learning_rate: kinds.Positive,
    rho: kinds.NonNegative,
    eps: kinds.NonNegative,
    refresh_every: kinds.Count,
) -> optax.GradientTransformationExtraArgs:
    """Zeno++: refuses gradients that do not descend on the server's own data.

    With v the gradient of a validation loss, recomputed at every `refresh_every`-th
    gradient,

        g <- g |v| / |g|
        accept g if  eta <v, g> - rho |g|^2 >= -eta eps

    where |.| is the norm of the whole tree. A gradient of zeros stays zero.

    Args:
        inner: the *whole* optimizer, see `refusing`.
        grad_fn: parameters -> the gradients of a loss on data that the server trusts.
        learning_rate: eta, the learning rate of the optimizer, positive. May be traced.
        rho: the weight of the squared norm, non-negative. May be traced.
        eps: the ascent allowed, non-negative. May be traced.
        refresh_every: the arriving gradients, also refused ones, after which v is
            recomputed. At least 1. May be traced.

    Returns:
        A transformation with the state of `refusing`, whose memory holds one gradient.
        It needs `params` in `update`, and no `worker=`, so it may wrap the server's
        optimizer, or in `each` of `replay` it may wrap `optax.identity()`. A
        gradient whose norm is not finite is refused. Under a `vmap` with a batched
        `step`, `grad_fn` is computed for each gradient.

    Raises:
        TypeError: in `update`, if `grad_fn` returns a tree unlike the parameters.

    Example:
        >>> tx = zeno_plus_plus(
        ...     optax.sgd(1.0), lambda x: x, learning_rate=1.0, rho=0.1, eps=0.0,
        ...     refresh_every=10)
        >>> x = jnp.asarray(2.0)
        >>> state = tx.init(x)
        >>> for gradient in (3.0, -1.0):
        ...     update, state = tx.update(jnp.asarray(gradient), state, x)
        ...     print(update, state.dropped)
        -2.0 0
        0.0 1

    References:
        Xie, Koyejo and Gupta, Zeno++: Robust fully asynchronous SGD, ICML 2020,
        arXiv:1903.07020, algorithm 1.
    """

    def begin(params):
        return ZenoMemory(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def accept(updates, memory, params, **extra_args):
        extras.require_params(params, "zeno_plus_plus")
        # the parameters and the gradient may differ between workers
        before = axes.typed_like(memory.validation, params)
        validation = jax.lax.cond(
            memory.step % refresh_every == 0,
            lambda: _validated(grad_fn, params, before),
            lambda: before,
        )
        size, wanted = norms.norm(updates), norms.norm(validation)
        factor = jnp.where(size > 0, wanted / size, 0.0)
        updates = dtypes.scaled(factor, updates)
        descent = learning_rate * norms.product(validation, updates)
        penalty = rho * jnp.square(norms.norm(updates))
        used = descent - penalty >= -jnp.multiply(learning_rate, eps)
        used &= jnp.isfinite(size)
        return used, updates, ZenoMemory(memory.step + 1, validation)

    return refusing(inner, accept, begin=begin)


def _validated(grad_fn: Callable[[Any], Any], params: Any, like: Any) -> Any:
    """The validation gradient at the parameters, typed as `like`."""
    gradient = grad_fn(params)
    must = "`grad_fn(params)` must return gradients like the parameters"
    trees.check_same_types(must, gradient, params)
    return axes.typed_like(gradient, like)
