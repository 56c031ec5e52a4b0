"""Calls of `grad_fn`, with the model's state, and checks of its results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.ground import trees

GradFn = Callable[..., tuple]
"""(params, batch, key) -> (metrics, gradients), as `jax.value_and_grad` returns; with a
state, (params, batch, key, model_state) -> ((metrics, model_state), gradients)."""


class Taken(NamedTuple):
    """One gradient, or [c, ...] several."""

    gradients: Any
    metrics: Any
    model_state: Any  # None where the model has none


def take(
    grad_fn: GradFn, params: Any, batch: Any, key: jax.Array, model_state: Any
) -> Taken:
    """Calls `grad_fn`, with the model's state where there is one."""
    if model_state is None:
        metrics, gradients = grad_fn(params, batch, key)
        return Taken(gradients, metrics, None)
    (metrics, after), gradients = grad_fn(params, batch, key, model_state)

    def placed(leaf, before):
        # on a mesh of Explicit axes statistics are sharded as the activations are
        wanted = jax.typeof(before).sharding
        is_there = jax.typeof(leaf).sharding == wanted
        return leaf if is_there else jax.sharding.reshard(leaf, wanted)

    return Taken(gradients, metrics, jax.tree.map(placed, after, model_state))


def check(
    grad_fn: GradFn, params: Any, batch: Any, key: jax.Array, model_state: Any
) -> Taken:
    """The shapes of one gradient, which must be like the parameters."""
    after, returns = None, "(metrics, gradients)"
    if model_state is None:
        answer = jax.eval_shape(grad_fn, params, batch, key)
        metrics, gradients = _pair(returns, answer)
    else:
        returns = "((metrics, model_state), gradients)"
        answer = jax.eval_shape(grad_fn, params, batch, key, model_state)
        value, gradients = _pair(returns, answer)
        metrics, after = _pair(returns, value)
    must = f"`grad_fn` must return {returns}"
    trees.check_same_types(
        f"{must} with gradients like the parameters", gradients, params
    )
    trees.check_same_types(
        f"{must} with a model state like the given", after, model_state
    )
    return Taken(gradients, metrics, after)


def _pair(returns: str, answer: Any) -> Any:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise TypeError(
            f"`grad_fn` must return {returns}, got {answer!r}: write for example"
            " jax.value_and_grad(loss)."
        )
    return answer


def check_shapes(name: str, returned: str, tree: Any, params: Any) -> None:
    """Checks that no broadcast hides a leaf of another shape than the parameters'."""
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.float32), (tree, params)
    )
    trees.check_same_types(
        f"`{name}` must return {returned} of the parameters' shapes", *shapes
    )
