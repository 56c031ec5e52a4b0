"""Local steps of a client, as one gradient for its server."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, kinds, transforms, trees
from delayjax._src.training import gradients


@kinds.checked
def local_training(
    grad_fn: gradients.GradFn,
    tx: transforms.Transformation,
    steps: kinds.PositiveInt,
    *,
    split: bool = True,
    proximal: kinds.NonNegative = 0.0,
) -> gradients.GradFn:
    """A client's local steps as one pseudo-gradient, for federated learning.

    From the server's model x a client makes n steps of an optimizer of its own,

        x_0     = x
        x_{i+1} = x_i + tx( g(x_i; batch_i) + rho (x_i - x) ),    i = 0 .. n - 1
        Delta   = x - x_n

    and Delta, its *delta* or *pseudo-gradient*, takes the place of a gradient. The
    optimizer's state is new each time, unless it is in the client's `worker_state`. A
    server with `optax.sgd(1.0)` and one fresh delta moves to x_n. One step of
    `optax.sgd(1.0)` is `grad_fn` itself.

    In `replay(...).init(params, key, worker_state=...)` a client w may have `steps`,
    its number n_w, and `opt_state`, which goes from round to round. Steps by speed
    (DyLU), with v_w the steps of client w in a second, and H the steps of the fastest
    client in a round, are

        n_w = floor(v_w / max_j v_j  H)

    Args:
        grad_fn: as for `replay`: (params, batch, key) -> (metrics, gradients), or with
            a `model_state`, which goes from step to step. Step i has the key
            `fold_in(key, i)`.
        tx: the client's optimizer.
        steps: n, at least 1; the largest n_w. Static.
        split: whether step i takes the i-th of n equal parts of the batch, cut along
            the leading axis of each leaf; else each step takes the whole batch. A
            client with fewer steps takes the first n_w parts.
        proximal: rho, non-negative, of the term (rho/2) ||x_i - x||^2 in the client's
            loss. May be traced.

    Returns:
        A function of the same kind as `grad_fn`, which returns the mean of the metrics
        and Delta, in the parameters' dtype. Delta is the sum of the steps, added up in
        float32 at least. A call costs n gradients and n updates, or n_w of each where
        clients are taken one by one (`chunk=1`); it needs memory for two more parameter
        trees and the optimizer's state. `worker_state` is a dict with `steps`, int32
        [P], and `opt_state`, leaves [P, ...], or one of the two. The metrics are nan if
        n_w is not in 1 .. n.

    Raises:
        TypeError: in a call, if `worker_state` has other parts, or the state of another
            optimizer, or (from JAX) a batch does not split into n parts.

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
        AISTATS 2022, arXiv:2106.06639, algorithm 2. Steps by speed: Liu et al.,
        Asynchronous local-SGD (DyLU), 2024, arXiv:2401.09135; its clients begin with
        new optimizers. The proximal term: Xie, Koyejo and
        Gupta, FedAsync, 2019, arXiv:1903.03934, algorithm 1; Li et al., FedProx, 2018,
        arXiv:1812.06127.
    """
    tx = transforms.as_transformation("tx", tx)

    def local_grad_fn(params, batch, key, model_state=None, worker_state=None):
        parts = _parts(batch, steps) if split else None
        first = batch if parts is None else jax.tree.map(lambda leaf: leaf[0], parts)
        one = gradients.check(grad_fn, params, first, key, model_state)
        kept = _checked(worker_state, tx, params)
        count = total = kept.get("steps", steps)

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
            must = "`tx` must return updates like the parameters"
            trees.check_same_shapes(must, updates, params)
            delta = jax.tree.map(
                lambda total, u: total - u.astype(total.dtype), delta, updates
            )
            x = optax.apply_updates(x, updates)
            return (x, delta, opt_state, taken.model_state), taken.metrics

        def stay(carry, row):
            return carry, optax.tree.zeros_like(one.metrics)

        def step_or_stay(carry, row):
            return jax.lax.cond(row[0] < count, step, stay, carry, row)

        opt_state = kept["opt_state"] if "opt_state" in kept else tx.init(params)
        start = params, dtypes.wide_zeros(params), opt_state, model_state
        rows, each = (jnp.arange(steps), parts), step
        if "steps" in kept:
            each, is_known = step_or_stay, (count >= 1) & (count <= steps)
            total = jnp.where(is_known, count, jnp.nan)
        last, metrics = jax.lax.scan(each, start, rows)
        _, delta, opt_state, model_state = last
        # narrow floats add up in float32
        value = jax.tree.map(
            lambda leaf: leaf.sum(0, dtype=dtypes.wide_dtype(leaf)) / total, metrics
        )
        if worker_state is not None:
            changed = {"opt_state": opt_state} if "opt_state" in kept else {}
            value = value, model_state, kept | changed
        elif model_state is not None:
            value = value, model_state
        return value, optax.tree.cast_like(delta, params)

    return local_grad_fn


def _checked(
    worker_state: Any, tx: optax.GradientTransformationExtraArgs, params: Any
) -> dict[str, Any]:
    """A worker's state as a dict, with `steps`, `opt_state`, both or nothing."""
    kept = {} if worker_state is None else worker_state
    if not isinstance(kept, dict) or not kept.keys() <= {"steps", "opt_state"}:
        raise TypeError(
            f"`worker_state` must have `steps` or `opt_state`, got {worker_state!r}."
        )
    if "opt_state" in kept:
        trees.check_same_types(
            "`worker_state` must have the state of `tx` as `opt_state`",
            *(kept["opt_state"], jax.eval_shape(tx.init, params)),
        )
    return kept


def _parts(batch: Any, steps: int) -> Any:
    """The batch in `steps` equal parts, each leaf [steps, size / steps, ...]."""
    return jax.tree.map(
        lambda leaf: jnp.reshape(leaf, (steps, -1, *jnp.shape(leaf)[1:])), batch
    )
