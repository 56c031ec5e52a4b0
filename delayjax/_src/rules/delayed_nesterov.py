"""Nesterov's momentum for a server whose islands arrive one after the other."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import axes, checks, dtypes, kinds, transforms


class DelayedNesterovState(NamedTuple):
    """State of `delayed_nesterov`."""

    step: jax.Array  # t, updates done, int32 []
    momentum: Any  # v, like the parameters
    total: Any  # Delta, the sum of the gradients since the last step of v


@kinds.checked
def delayed_nesterov(
    decay: kinds.Share, *, period: kinds.Count, share: kinds.ClosedShare = 0.0
) -> optax.GradientTransformationExtraArgs:
    """Delayed Nesterov: the momentum takes a step once in N arrivals.

        Delta <- Delta + g_t
        where N divides t + 1:   v <- beta v + Delta / N,    Delta <- 0
                                 u  = (1 - c N + c) beta v + g_t / N
        else:                    u  = c beta v + g_t / N

    It is for asynchronous islands, whose pseudo-gradients g_t arrive one by one. At
    c = 0 and v = 0, N equal gradients move the parameters by (1 + beta) g, as their
    mean does in one step of Nesterov's momentum. Nesterov's momentum at each arrival
    would move them further, for N = 4 by (4 + 4 beta + 3 beta^2 + 2 beta^3 + beta^4) g.
    At N = 1 this is `optax.trace(beta, nesterov=True)`.

    Use it as `tx` of `replay`, with `local_training` on each island: `optax.chain(
    delayed_nesterov(0.9, period=4), optax.scale_by_learning_rate(0.7))`. To lower the
    weight of old pseudo-gradients, put `scale_by_staleness(modulation.polynomial(0.5))`
    first.

    Args:
        decay: beta, in [0, 1). May be traced.
        period: N, arrivals from one step of the momentum to the next: the number of
            islands. May be traced.
        share: c, in [0, 1 / N], the share of the momentum that each update before the
            last one moves by. May be traced.

    Returns:
        A transformation whose state is two trees like the parameters, and a counter.

    Raises:
        ValueError: if `share` is above 1 / `period`.

    Example:
        >>> tx = delayed_nesterov(0.5, period=2)
        >>> state = tx.init(jnp.zeros(()))
        >>> for _ in range(4):
        ...     update, state = tx.update(jnp.ones(()), state)
        ...     print(update, state.momentum)
        0.5 0.0
        1.0 1.0
        0.5 1.0
        1.25 1.5

    References:
        Liu et al., Asynchronous local-SGD training for language modeling, 2024,
        arXiv:2401.09135, algorithm 3.
    """
    are_known = checks.is_concrete(period) and checks.is_concrete(share)
    if are_known and np.asarray(share) * period > 1:  # `jit` would trace a jax.Array
        raise ValueError(
            f"`share` must be at most 1 / period, {1 / period:.4g}, got {share}."
        )

    def init_fn(params):
        return DelayedNesterovState(
            step=jnp.zeros((), jnp.int32),
            momentum=jax.tree.map(jnp.zeros_like, params),
            total=jax.tree.map(jnp.zeros_like, params),
        )

    def update_fn(updates, state, params=None, **extra_args):
        due = (state.step + 1) % period == 0
        factor = jnp.where(due, 1 - share * period + share, share)

        def add(total, gradient):
            return (total + gradient).astype(total.dtype)

        def roll(momentum, total):
            beta, v, delta = dtypes.in_one_dtype(decay, momentum, total)
            return jnp.where(due, beta * v + delta / period, v).astype(momentum.dtype)

        def move(momentum, gradient):
            beta, v, g = dtypes.in_one_dtype(factor * decay, momentum, gradient)
            return (beta * v + g / period).astype(gradient.dtype)

        total = jax.tree.map(add, state.total, updates)
        momentum = jax.tree.map(roll, state.momentum, total)
        moved = jax.tree.map(move, momentum, updates)
        total = jax.tree.map(lambda leaf: jnp.where(due, 0, leaf), total)
        step = axes.typed_like(state.step + 1, state.step)
        return moved, DelayedNesterovState(step, momentum, total)

    return transforms.stateful(DelayedNesterovState, init_fn, update_fn)
