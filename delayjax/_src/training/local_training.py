"""Local steps of a client, as one gradient for its server."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, dtypes, transforms, trees
from delayjax._src.training import gradients


def local_training(
    grad_fn: gradients.GradFn,
    tx: transforms.Transformation,
    steps: int,
    *,
    split: bool = True,
    proximal: ArrayLike = 0.0,
) -> gradients.GradFn:
    """A client's local steps as one pseudo-gradient, for federated learning.

    From the server's model x a client makes n steps of an optimizer of its own,

        x_0     = x
        x_{i+1} = x_i + tx( g(x_i; batch_i) + rho (x_i - x) ),    i = 0 .. n - 1
        Delta   = x - x_n

    and Delta, its *delta* or *pseudo-gradient*, takes the place of a gradient. The
    optimizer's state is initialized each time: a client keeps no state. A server with
    `optax.sgd(1.0)` and one fresh delta moves to x_n. One step of `optax.sgd(1.0)` is
    `grad_fn` itself.

    Args:
        grad_fn: as for `replay`: (params, batch, key) -> (metrics, gradients), or with
            a `model_state`, which goes from step to step. Step i has the key
            `fold_in(key, i)`.
        tx: the client's optimizer.
        steps: n, at least 1. Static.
        split: whether step i takes the i-th of n equal parts of the batch, cut along
            the leading axis of each leaf; else each step takes the whole batch.
        proximal: rho, non-negative, of the term (rho/2) ||x_i - x||^2 in the client's
            loss. May be traced.

    Returns:
        A function of the same kind as `grad_fn`, which returns the mean of the metrics
        and Delta, in the parameters' dtype. Delta is the sum of the steps, added up in
        float32 at least. A call costs n gradients and n updates; it needs memory for
        two more parameter trees and the optimizer's state.

    Raises:
        ValueError: in a call, if a batch does not split into n parts.

    Example:
        >>> def grad_fn(x, batch, key):
        ...     return 0.5 * (x - batch.mean()) ** 2, x - batch.mean()
        >>> client = local_training(grad_fn, optax.sgd(0.5), 2)
        >>> batch, key = jnp.asarray([0.0, 0.0, 2.0, 2.0]), jax.random.key(0)
        >>> _, delta = client(jnp.asarray(8.0), batch, key)
        >>> float(delta)  # 8, then 4 on (0, 0), then 3 on (2, 2)
        5.0

    References:
        McMahan et al., Communication-efficient learning of deep networks from
        decentralized data (FedAvg), 2016, arXiv:1602.05629; Nguyen et al., FedBuff,
        AISTATS 2022, arXiv:2106.06639, algorithm 2. The proximal term: Xie, Koyejo and
        Gupta, FedAsync, 2019, arXiv:1903.03934, algorithm 1; Li et al., FedProx, 2018,
        arXiv:1812.06127.
    """
    checks.check_function("grad_fn", grad_fn)
    tx = transforms.as_transformation("tx", tx)
    steps = checks.check_bound("steps", steps, at_least=1)
    proximal = checks.check_scalar("proximal", proximal)

    def local_grad_fn(params, batch, key, model_state=None):
        parts = _parts(batch, steps) if split else None
        first = batch if parts is None else jax.tree.map(lambda leaf: leaf[0], parts)
        gradients.check(grad_fn, params, first, key, model_state)

        def step(carry, row):
            x, delta, opt_state, state = carry
            i, part = row
            step_key = jax.random.fold_in(key, i)
            taken = gradients.take(
                grad_fn, x, part if split else batch, step_key, state
            )
            grads = jax.tree.map(
                lambda g, x, start: (g + proximal * (x - start)).astype(g.dtype),
                *(taken.gradients, x, params),
            )
            updates, opt_state = tx.update(grads, opt_state, x)
            gradients.check_shapes("tx", "updates", updates, params)
            delta = jax.tree.map(
                lambda total, u: total - u.astype(total.dtype), delta, updates
            )
            x = optax.apply_updates(x, updates)
            return (x, delta, opt_state, taken.model_state), taken.metrics

        start = params, dtypes.wide_zeros(params), tx.init(params), model_state
        last, metrics = jax.lax.scan(step, start, (jnp.arange(steps), parts))
        _, delta, _, model_state_after = last
        # narrow floats add up in float32
        value = jax.tree.map(
            lambda leaf: leaf.mean(0, dtype=dtypes.wide_dtype(leaf)), metrics
        )
        if model_state is not None:
            value = value, model_state_after
        return value, optax.tree.cast_like(delta, params)

    return local_grad_fn


def _parts(batch: Any, steps: int) -> Any:
    """The batch in `steps` equal parts, each leaf [steps, size / steps, ...]."""
    for path, leaf in jax.tree.leaves_with_path(batch):
        size = jnp.shape(leaf)[:1]
        if not size or size[0] % steps:
            raise ValueError(
                f"`batch` must split into {steps} equal parts along its leading axis,"
                f" got shape {jnp.shape(leaf)} at {trees.path_name(path)}: take as many"
                " examples for each of `steps`, or give `split=False`."
            )
    return jax.tree.map(
        lambda leaf: jnp.reshape(leaf, (steps, -1, *jnp.shape(leaf)[1:])), batch
    )
