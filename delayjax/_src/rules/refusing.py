"""Refuses gradients by a rule: a refused gradient changes no state and no staleness."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, donation, extras, kinds, transforms
from delayjax._src.ground.refusal import RefusingState, refuses, was_applied
from delayjax._src.history import wrapped

Accept = Callable[..., tuple[Any, Any, Any]]
"""(gradients, memory, params, **extra_args) -> (whether to use the gradients, bool [];
the gradients for `inner`; the memory)."""


@kinds.checked
def refusing(
    inner: transforms.Transformation,
    accept: Accept,
    *,
    begin: Callable[[Any], Any] | None = None,
    axis_name: axes.AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Refuses gradients by a rule of your own, as `drop_stale` and `kardam` do.

        used, g, memory <- accept(g, memory, x, **extra_args)
        updates <- inner(g)   if used, else 0

    A refused gradient does not change the parameters or the state of `inner`. `replay`
    and `adasync` read `applied`: there a refused gradient is not in the sum or the
    divisor, and adds nothing to a later staleness, because it makes no new version.

    Args:
        inner: the *whole* optimizer, with the rule last in a chain. Otherwise refused
            gradients would change a momentum before or behind the rule, and `delayed`,
            `replay` and `adasync` raise an error. In `each` of `replay` wrap
            `optax.identity()`, or the transformation of each gradient. With `delayed`
            in it, a refused gradient never enters the history, and its clock does not
            advance; with `delayed` outside, a gradient is refused when it is used. If
            `inner` has a history with different depths, or the calendar of `delivered`,
            each step copies it.
        accept: (gradients, memory, params, **extra_args) -> (used, gradients, memory).
            `used` is a bool []. `inner` receives the gradients that it returns. Extra
            arguments are what `update` receives: `staleness=` and more, see `replay`.
        begin: parameters -> the memory before the first gradient; by default ().
        axis_name: the workers' axes, in `shard_map`, if each worker accepts or refuses
            its own gradients. By default the axes along which the parameters differ.

    Returns:
        A transformation with a `RefusingState`: the memory and `inner`'s state. It
        selects between the old and the new state of `inner`, except for the history of
        a `delayed`, which costs no more than without the rule.

    Raises:
        TypeError: in `update`, if the first result of `accept` is no bool.

    Example:
        >>> def large(gradient, memory, params, **extra_args):
        ...     return optax.tree.norm(gradient) > 1.0, gradient, memory
        >>> tx = refusing(optax.sgd(1.0), large)
        >>> state = tx.init(jnp.zeros(()))
        >>> for gradient in (2.0, 0.5, 3.0):
        ...     update, state = tx.update(jnp.asarray(gradient), state)
        ...     print(update, state.applied, state.dropped)
        -2.0 True 0
        0.0 False 1
        -3.0 True 1
    """
    inner = transforms.as_transformation("inner", inner)
    if axis_name is not None:
        axis_name = axes.as_names(axis_name)

    def init_fn(params):
        state = RefusingState(
            applied=jnp.ones((), bool),
            dropped=jnp.zeros((), jnp.int32),
            dropped_in_row=jnp.zeros((), jnp.int32),
            memory=() if begin is None else begin(params),
            inner_state=donation.unshared(inner.init(params), params),
        )
        state = axes.vary_as(params, state)
        return axes.vary(state, axis_name=axis_name) if axis_name else state

    def update_fn(updates, state, params=None, **extra_args):
        used, updates, memory = accept(updates, state.memory, params, **extra_args)
        used = checks.as_scalar("accept(gradients, ...)", used, jnp.bool_).astype(bool)
        new = inner.update(updates, state.inner_state, params, **extra_args)
        updates, inner_state = wrapped.only_if(used, new, state.inner_state)
        applied = used
        if refuses(inner_state):  # a rule in a rule
            applied &= was_applied(inner_state)
        return updates, RefusingState(
            applied=axes.typed_like(applied, state.applied),
            dropped=state.dropped + jnp.where(used, 0, 1),
            dropped_in_row=jnp.where(used, 0, state.dropped_in_row + 1),
            memory=memory,
            inner_state=inner_state,
        )

    return transforms.stateful(RefusingState, init_fn, update_fn)


def drop_stale(
    inner: transforms.Transformation,
    bound: ArrayLike,
    *,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Refuses gradients that are too old.

    While tau > bound the update is zero and the state of `inner` (counters, moments)
    does not change. Otherwise this is `inner`, with all extra arguments. Along a trace
    (`replay`) tau counts the updates that were applied since the worker read: then this
    is Ringmaster's server (`cluster.protocols.ringmaster(bound + 1)`).

    Args:
        inner: the whole optimizer, see `refusing`. To refuse gradients that a `delayed`
            made stale, put `delayed` outside, `delayed(drop_stale(optimizer, 8), ...)`.
        bound: the largest accepted staleness, in steps: an integer that may be traced.
        axis_name: the workers' axes along which staleness differs, in `shard_map`.

    Returns:
        A transformation with the state of `refusing`. It needs one `staleness=` for all
        leaves. A `delayed` outside counts every step in its delay, also steps whose
        gradient is refused.

    Example:
        >>> tx = drop_stale(optax.sgd(1.0), 2)
        >>> state = tx.init(jnp.zeros(()))
        >>> for tau in (1, 3, 2):
        ...     update, state = tx.update(jnp.ones(()), state, staleness=tau)
        ...     print(update, state.dropped)
        -1.0 0
        0.0 1
        -1.0 1

    References:
        Gupta, Zhang and Wang, Rudra, ICDM 2016, arXiv:1509.04210 (released server);
        Maranjyan, Tyurin and Richtarik, Ringmaster ASGD, ICML 2025, arXiv:2501.16168
        (its R is bound + 1).
    """
    bound = checks.check_count("bound", bound, at_least=0)

    def accept(updates, memory, params, *, staleness=None, **extra_args):
        updates, tau = extras.staleness_of("drop_stale", updates, staleness, one=True)
        return ~(tau > bound), updates, memory  # NaN is not refused, so it is visible

    return refusing(inner, accept, axis_name=axis_name)
