"""A server that mixes in the models of its clients, one at a time."""

import jax
import optax

from delayjax._src.ground import checks, dtypes, extras, kinds

_REPLAY = "use it as `tx` of `replay`, on a trace with one gradient an update"


@kinds.checked
def fedasync(
    mixing: kinds.Fraction, *, law: extras.Law | None = None
) -> optax.GradientTransformationExtraArgs:
    """FedAsync: the server's model moves towards the model of one client.

        x_{t+1} = (1 - al_t) x_t + al_t x_i,    al_t = al s(tau)

    where client i read x_{t-tau} and trained it to x_i. Its delta is Delta =
    x_{t-tau} - x_i, so the update is

        -al s(tau) (x_t - x_{t-tau} + Delta).

    FedBuff steps along -Delta. This update also takes back a share of the updates that
    other clients made in the meantime.

    Args:
        mixing: al, in (0, 1]. May be traced.
        law: s, staleness -> factor, at most 1: `modulation.polynomial(0.5)` and
            `modulation.hinge(10, 4)` are laws of the paper; None is its constant s = 1.

    Returns:
        A transformation without state, which takes deltas (see `local_training`) in
        place of gradients, and is the whole server: put no optimizer around it.
        `update` needs `params`, `staleness=` and `stale_params=`, which `replay` hands
        on where each update has one gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> tx, stale, delta = fedasync(0.5), jnp.asarray(3.0), jnp.asarray(2.0)
        >>> tx.update(
        ...     delta, tx.init(stale), jnp.asarray(5.0), staleness=1, stale_params=stale
        ... )[0]  # half of the distance from 5 to 3 - 2
        Array(-2., dtype=float32)

    References:
        Xie, Koyejo and Gupta, Asynchronous federated optimization, 2019,
        arXiv:1903.03934, algorithm 1.
    """

    def update_fn(
        updates, state, params=None, *, staleness=None, stale_params=None, **extra_args
    ):
        updates, staleness = extras.staleness_of(
            "fedasync", updates, staleness, _REPLAY, mean=False
        )
        moved = extras.moved("fedasync", updates, params, stale_params)
        share = dtypes.wide(mixing)
        if law is not None:
            share = share * checks.as_scalar("law(staleness)", law(staleness))

        def move(delta, dx):
            factor, dx, d = dtypes.in_one_dtype(share, dx, delta)
            return -(factor * (dx + d)).astype(delta.dtype)

        updates = jax.tree.map(move, updates, moved)
        return updates, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)
