"""A momentum that orders late gradients by the times at which workers began them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, dtypes, extras, kinds, transforms, trees


class OrderedMomentumState(NamedTuple):
    """State of `ordered_momentum`."""

    step: jax.Array  # t, updates done, int32 []
    momentum: Any  # u of the newest bucket, like the parameters


@kinds.checked
def ordered_momentum(
    decay: kinds.Share, *, workers: kinds.PositiveInt
) -> optax.GradientTransformationExtraArgs:
    """OrMo: the momentum as if gradients had arrived in the order of their reads.

    P gradients are one bucket, and the momentum decays by beta from bucket to bucket,
    not from gradient to gradient. A gradient that was read at version v = t - tau
    belongs to bucket b(v), and update t is in bucket b(t):

        b(v) = ceil(v / P)                    bucket 0: the P first reads, at version 0
        d    = b(t) - b(t - tau)              the buckets by which the gradient is late

        if b(t) > b(t - 1): u <- beta u,  x <- x - eta u            a new bucket begins
        u <- u + beta^d g
        x <- x - eta (1 + beta + ... + beta^d) g

    So after every update x is the result of heavy ball with a step for each bucket, on
    the sums G_b of the gradients that have arrived:

        u_b = beta u_{b-1} + G_b,    x_{b+1} = x_b - eta u_b,    b = 0 .. b(t)

    For P = 1 this is `optax.trace(beta)`. For beta = 0 the gradients pass unchanged.

    The update is `beta u` of a new bucket plus `(1 + ... + beta^d) g`. Put the learning
    rate after this rule: `optax.chain(ordered_momentum(0.9, workers=8),
    optax.scale_by_learning_rate(0.1))`. If the rate changes and each gradient is to
    keep the rate of its own step, put it before.

    Args:
        decay: beta, in [0, 1), for each bucket of P gradients. May be traced.
        workers: P, the gradients of a bucket, for updates of one gradient. Static.

    Returns:
        A transformation whose state is one momentum and a counter. `update` needs
        `staleness=`, int32 [], or one for each leaf, in updates: `delayed` hands it on,
        and `replay` hands it to its `tx` where each update has one gradient. The number
        v is computed from it, so a gradient needs no other argument. Updates keep their
        dtype.

    Raises:
        TypeError: in `update`, if `staleness` is missing.

    Example:
        >>> tx = ordered_momentum(0.5, workers=2)
        >>> state = tx.init(jnp.zeros(()))
        >>> for staleness in (0, 1, 2, 1):  # b(t) = 0, 1, 1, 2 and d = 0, 1, 1, 1
        ...     update, state = tx.update(jnp.ones(()), state, staleness=staleness)
        ...     print(update, state.momentum)
        1.0 1.0
        2.0 1.0
        1.5 1.5
        2.25 1.25

    References:
        Shi, Yang and Li, Ordered momentum for asynchronous SGD, NeurIPS 2024,
        arXiv:2407.19234. We read its abstract. We recall the equations, and we derived
        the equality with heavy ball on buckets.
    """

    def bucket(version):
        return -(-version // workers)

    def init_fn(params):
        return OrderedMomentumState(
            step=jnp.zeros((), jnp.int32),
            momentum=jax.tree.map(jnp.zeros_like, params),
        )

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        name = "ordered_momentum"
        updates, tau = extras.staleness_of(name, updates, staleness, mean=False)
        tau = trees.broadcast("staleness", tau, updates)
        beta = dtypes.wide(decay)
        begins = bucket(state.step) > bucket(state.step - 1)

        def late(tau):
            buckets = bucket(state.step) - bucket(state.step - tau)
            return buckets.astype(beta.dtype)

        def rolled(momentum):
            factor, u = dtypes.in_one_dtype(jnp.where(begins, beta, 1.0), momentum)
            return factor * u

        def add(momentum, gradient, tau):
            power = beta ** late(tau)
            power, u, g = dtypes.in_one_dtype(power, rolled(momentum), gradient)
            return (u + power * g).astype(momentum.dtype)

        def move(gradient, momentum, tau):
            powers = (1.0 - beta ** (late(tau) + 1.0)) / (1.0 - beta)
            powers, u, g = dtypes.in_one_dtype(powers, rolled(momentum), gradient)
            return (jnp.where(begins, u, 0.0) + powers * g).astype(gradient.dtype)

        moved = jax.tree.map(move, updates, state.momentum, tau)
        momentum = jax.tree.map(add, state.momentum, updates, tau)
        step = axes.typed_like(state.step + 1, state.step)
        return moved, OrderedMomentumState(step, momentum)

    return transforms.stateful(OrderedMomentumState, init_fn, update_fn)
