"""A momentum for each worker, for gradients at a point ahead of the server's model."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import checks, dtypes, extras, kinds, transforms


class DanaState(NamedTuple):
    """State of `dana`."""

    momenta: Any  # v_i of each worker, leaves [workers, *shape]


@kinds.checked
def dana(
    decay: kinds.Share, *, workers: kinds.PositiveInt
) -> optax.GradientTransformationExtraArgs:
    """DANA: a Nesterov momentum for each worker.

    For a gradient g of worker i

        v_i <- beta v_i + g           the other workers' momenta stay
        u    = beta v_i + g           the update

    The server of the paper keeps a model x and moves it by -eta v_i. It sends the point
    y = x - eta beta sum_j v_j, an estimate of the model at the time when the gradient
    arrives. At a fixed learning rate y moves by exactly -eta u. So the parameters here
    are y, the point that the server sends, and the server needs no x and no sum (this
    form is DANA-Slim). The server's model is

        x = y + eta beta sum_j v_j.

    Put the learning rate after this rule: `optax.chain(dana(0.9, workers=8),
    optax.scale_by_learning_rate(0.1))`. Where each worker keeps its own momentum (in a
    step for `workers.run`), DANA-Slim is `optax.trace(0.9, nesterov=True)` before
    `exchange.mean`.

    Args:
        decay: beta, in [0, 1); 0.9 in the paper. May be traced.
        workers: P, the number of workers. Static.

    Returns:
        A transformation whose state has P momenta. `update` needs `worker=`, int32 [],
        which `replay` hands on. A step reads and writes the momentum of one worker,
        in place if the state is donated. A worker outside of 0 .. P - 1 makes the
        update NaN. If the learning rate changes, y is the look-ahead at the rate of
        each gradient's own step, not at today's rate.

    Raises:
        ValueError: in `update`, if the state is for another number of workers.

    Example:
        >>> tx = dana(0.5, workers=2)
        >>> state = tx.init(jnp.zeros(()))
        >>> for worker in (0, 0, 1):
        ...     update, state = tx.update(jnp.ones(()), state, worker=worker)
        ...     print(update, state.momenta)
        1.5 [1. 0.]
        1.75 [1.5 0. ]
        1.5 [1.5 1. ]

    References:
        Hakimi, Barkai, Gabel and Schuster, Taming momentum in a distributed
        asynchronous environment, 2019, arXiv:1907.11612.
    """

    def init_fn(params):
        def rows(leaf):  # broadcast_to keeps the leaf's sharding
            return jnp.broadcast_to(jnp.zeros_like(leaf), (workers, *jnp.shape(leaf)))

        return DanaState(jax.tree.map(rows, params))

    def update_fn(updates, state, params=None, *, worker=None, **extra_args):
        worker = extras.worker_of("dana", worker, workers)
        is_there = (worker >= 0) & (worker < workers)  # JAX would clip the number

        def read(rows):
            return jax.lax.dynamic_index_in_dim(rows, worker, keepdims=False)

        def roll(momentum, grad):
            beta, momentum, grad = dtypes.in_one_dtype(decay, momentum, grad)
            return beta * momentum + grad

        def write(grad, rows):
            checks.check_held("workers", workers, len(rows))
            old = read(rows)
            row = jnp.where(is_there, roll(old, grad).astype(old.dtype), old)
            return jax.lax.dynamic_update_index_in_dim(rows, row, worker, 0)

        def look_ahead(grad, rows):
            # the written row: to use it before the write would copy all rows
            momentum = jnp.where(is_there, read(rows), jnp.nan)
            return roll(momentum, grad).astype(grad.dtype)

        momenta = jax.tree.map(write, updates, state.momenta)
        updates = jax.tree.map(look_ahead, updates, momenta)
        return updates, DanaState(momenta)

    return transforms.stateful(DanaState, init_fn, update_fn)
