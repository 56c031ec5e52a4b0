"""Refuses gradients that are too old."""

import optax
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, transforms
from delayjax._src.rules import ages
from delayjax._src.rules.refusing import refusing


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
        inner: the whole optimizer, see `refusing`. To drop gradients that a `delayed`
            made stale, put `delayed` outside, `delayed(drop_stale(optimizer, 8), ...)`.
        bound: the largest accepted staleness, in steps: an integer that may be traced.
        axis_name: the workers' axes along which staleness differs, in `shard_map`.

    Returns:
        A transformation with the state of `refusing`. It needs one `staleness=` for all
        leaves. A `delayed` outside counts every step in its delay, also the refused
        ones.

    Example:
        >>> import jax.numpy as jnp
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
        updates, tau = ages.take_one("drop_stale", updates, staleness)
        return ~(tau > bound), updates, memory  # NaN is not refused, so it is visible

    return refusing(inner, accept, axis_name=axis_name)
