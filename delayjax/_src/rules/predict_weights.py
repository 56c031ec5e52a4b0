"""Gradients at the parameters where a late update will find the model."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, dtypes, extras, named_arrays, transforms, trees
from delayjax._src.history import layers, wrapped


class PredictWeightsState(NamedTuple):
    """State of `predict_weights`."""

    reach: Any  # p tau, in updates, float32: [] or [L, 1, ...] of each leaf
    last_update: Any  # Delta, like the parameters
    inner_state: Any


def predict_weights(
    inner: transforms.Transformation, horizon: extras.Delay, *, share: ArrayLike = 1.0
) -> optax.GradientTransformationExtraArgs:
    """Weight prediction: it keeps what `gradient_params` needs to look ahead.

    A gradient that is used tau updates later is taken at

        y_t = x_t + p tau Delta_t,    Delta_t = x_t - x_{t-1},    Delta_0 = 0

    with Delta the last update that was applied, with learning rate and schedule, of any
    optimizer. Wrap the whole optimizer, and the delay too, and take each gradient at
    `gradient_params(state, params)` in place of `params`. The updates are of `inner`,
    and are applied to `params`. Before update tau the prediction looks further ahead
    than the gradient is late, as published.

    Args:
        inner: the whole optimizer.
        horizon: tau, in updates: a number, or a prefix tree of numbers and of
            `delays.Layers`: each pipeline stage has its own. Numbers may be traced.
        share: p, non-negative; 1 is the whole way. May be traced.

    Returns:
        A transformation whose state has the last update, as much memory as one
        gradient, beside the state of `inner`.

    Raises:
        ValueError: in `init`, if `horizon` is no prefix of the parameters, or a leaf
            has another number of layers.

    Example:
        >>> from delayjax import delayed
        >>> tx = predict_weights(delayed(optax.sgd(0.5), 1), 1)
        >>> params = jnp.ones(())
        >>> state = tx.init(params)
        >>> for _ in range(3):
        ...     ahead = gradient_params(state, params)
        ...     grad = jax.grad(lambda x: x**2 / 2)(ahead)
        ...     update, state = tx.update(grad, state, params)
        ...     print(params, ahead)
        ...     params = optax.apply_updates(params, update)
        1.0 1.0
        0.5 0.0
        0.0 -0.5

    References:
        Chen, Yang and Cheng, SpecTrain, 2018, arXiv:1809.02839, predicts by the
        momentum. The form with the last applied update is of an experiment of the
        Marin project (`moe_delay`, a program, not a paper).
    """
    inner = transforms.as_transformation("inner", inner)
    checks.check_number("share", share)
    horizon = named_arrays.unboxed(horizon)
    for one in jax.tree.leaves(horizon, is_leaf=trees.is_function):
        if not isinstance(one, layers.Layers):
            checks.check_number("horizon", one)

    def reach(own, leaf):
        if isinstance(own, layers.Layers):
            own = layers.column(own, np.asarray(own.delays), leaf)
        return jnp.asarray(own, jnp.float32) * share

    def init_fn(params):
        bare = named_arrays.unboxed(params)
        owners = layers.owners("horizon", horizon, bare)
        return PredictWeightsState(
            jax.tree.map(reach, owners, bare, is_leaf=trees.is_function),
            jax.tree.map(jnp.zeros_like, params),
            wrapped.init("inner", inner, params, wrapper="predict_weights", late=False),
        )

    def update_fn(updates, state, params=None, **extra_args):
        extras.check_gradients("predict_weights", updates)
        updates, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        last = jax.tree.map(lambda u, d: u.astype(d.dtype), updates, state.last_update)
        return updates, PredictWeightsState(state.reach, last, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def gradient_params(opt_state: Any, params: Any) -> Any:
    """The parameters at which to take a gradient that is applied later.

        y = x + p tau Delta

    Args:
        opt_state: a state with one state of `predict_weights` in it.
        params: x, the current parameters.

    Returns:
        A tree like `params`, in their dtypes; a copy, where tau Delta is 0 too.

    Raises:
        ValueError: if the state has no state of `predict_weights`, or several.

    Example:
        >>> tx = predict_weights(optax.sgd(1.0), 3)
        >>> _, state = tx.update(jnp.ones(()), tx.init(jnp.zeros(())))
        >>> print(gradient_params(state, jnp.asarray(-1.0)))
        -4.0
    """

    def is_state(node):
        return isinstance(node, PredictWeightsState)

    nodes = jax.tree.leaves(opt_state, is_leaf=is_state)
    found = [node for node in nodes if is_state(node)]
    if len(found) != 1:
        raise ValueError(
            f"`opt_state` must hold one state of `predict_weights`, got {len(found)}:"
            " wrap the whole optimizer, predict_weights(optimizer, horizon)."
        )
    (state,) = found
    reach = trees.broadcast("reach", state.reach, params)

    def ahead(x, reach, last):
        return (x + dtypes.times(reach, last).astype(x.dtype)).astype(x.dtype)

    return jax.tree.map(ahead, params, reach, state.last_update)
