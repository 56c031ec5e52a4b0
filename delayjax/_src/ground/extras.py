"""Extra arguments of `update`: staleness from its producer to the rules."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import checks, dtypes, transforms, trees

Delay = ArrayLike | transforms.OfStep | Mapping[Any, Any] | Sequence[Any]
"""A delay in updates: an int, an integer scalar, an `OfStep`, or a tree of these."""

Law = Callable[[jax.Array], ArrayLike]
"""staleness (int32 [], or float32 [] for a mean) -> the factor of the updates."""

WRAP = "wrap the whole chain, `delayed(optax.chain(...), delay)`"
"""How to supply a staleness: the remedy in an error."""

IN_EACH = (
    "put the rule into `each` of `replay`, or into its `tx` where each update has one"
    " gradient"
)
"""How to supply a worker: the remedy in an error."""


def require(value: Any, name: str, needed_by: str, remedy: str) -> Any:
    """`value`; if it is None, an error that names the missing extra argument."""
    if value is None:
        raise TypeError(
            f"`{needed_by}` needs the extra argument `{name}`, but received none:"
            f" {remedy}, or pass `{name}=` to `update`."
        )
    return value


def require_params(params: Any, needed_by: str) -> Any:
    """`params`; if they are None, an error."""
    return require(params, "params", needed_by, "call `update(grads, state, params)`")


def moved(needed_by: str, updates: Any, params: Any, stale_params: Any) -> Any:
    """x_t - x_{t-tau}: how far the parameters moved since the gradient was taken."""
    trees.check_gradients(updates)
    require_params(params, needed_by)
    remedy = (
        "wrap the whole chain, `delayed(optax.chain(...), delay, keep_params=True)`;"
        " a mean over workers hands on no old parameters: compensate before the mean"
    )
    stale_params = stale_params_of(needed_by, updates, stale_params, remedy)
    check_shapes(needed_by, updates, params=params)
    return jax.tree.map(
        lambda x, y: operator.sub(*dtypes.in_one_dtype(x, y)), params, stale_params
    )


def stale_params_of(
    needed_by: str, updates: Any, stale_params: Any, remedy: str
) -> Any:
    """`stale_params`, masked as the gradients; an error if absent or wrongly shaped."""
    require(stale_params, "stale_params", needed_by, remedy)
    stale_params = trees.masked_like(stale_params, updates)
    check_shapes(needed_by, updates, stale_params=stale_params)
    return stale_params


def check_shapes(needed_by: str, updates: Any, **given: Any) -> None:
    """Checks that extra arguments have the gradients' shapes, so nothing broadcasts."""
    for name, tree in given.items():
        must = f"`{name}` handed to `{needed_by}` must be like the gradients"
        trees.check_same_shapes(must, tree, updates)


def staleness_of(
    needed_by: str,
    updates: Any,
    staleness: Any,
    remedy: str | None = WRAP,
    *,
    one: bool = False,
    mean: bool = True,
    by_layer: bool = False,
) -> tuple[Any, Any]:
    """The gradients, and their staleness as int32; a mean staleness as float32.

    A traced staleness that is negative, NaN or above int32 makes its gradients NaN.

    Args:
        needed_by: the name of the rule, for errors.
        updates: the gradients.
        staleness: a scalar, or a tree of scalars.
        remedy: the advice if the staleness is missing. None: then it is 0.
        one: whether a tree is an error.
        mean: whether floats are allowed.
        by_layer: whether a leaf may have one for each layer, [L, 1, ...].
    """
    if remedy is not None:
        require(staleness, "staleness", needed_by, remedy)
    staleness = 0 if staleness is None else staleness
    if one and not trees.is_leaf(staleness):
        raise TypeError(
            f"`{needed_by}` needs one `staleness` for all leaves, got {staleness!r}:"
            " give the producer one delay, or each part a rule, with optax.partition."
        )
    kinds = (jnp.integer, jnp.floating) if mean else (jnp.integer,)

    def check_leaf(tau):
        array = np.asarray(tau) if checks.is_concrete(tau) else tau
        is_count = any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
        if is_count and (by_layer or array.ndim == 0):
            age = checks.as_steps(array)
            if not checks.is_concrete(age) or _is_sound(age).all():
                return jnp.asarray(age)
        layered = " or for each layer" * by_layer
        raise ValueError(
            f"`staleness` handed to `{needed_by}` must be a non-negative integer below"
            f" 2^31 - 1, or a tree with one for each leaf{layered}, got {tau!r}."
        )

    ages = jax.tree.map(check_leaf, staleness)
    if all(map(checks.is_concrete, jax.tree.leaves(staleness))):
        return updates, ages
    if not trees.is_leaf(ages):
        ages = trees.masked_like(ages, updates)

    def checked(update, age):
        if not jnp.issubdtype(jnp.result_type(update), jnp.inexact):
            return update
        return jnp.where(_is_sound(age), update, jnp.nan)

    per_leaf = trees.broadcast("staleness", ages, updates)
    return jax.tree.map(checked, updates, per_leaf), ages


def worker_of(needed_by: str, worker: Any, workers: int | None = None) -> jax.Array:
    """A worker's number, int32 []."""
    require(worker, "worker", needed_by, IN_EACH)
    known = checks.is_concrete(worker)
    number = np.asarray(worker) if known else worker
    is_number = number.ndim == 0 and jnp.issubdtype(number.dtype, jnp.integer)
    most = np.inf if workers is None else workers - 1
    if not is_number or (known and not 0 <= number <= most):
        raise ValueError(
            f"`worker` handed to `{needed_by}` must be a worker's number, in 0 .."
            f" {most}, got {worker!r}."
        )
    return jnp.asarray(worker, jnp.int32)


def _is_sound(age: Any) -> Any:
    """Whether a staleness is at least 0, not NaN, and not above int32."""
    return (age >= 0) & (age != jnp.iinfo(jnp.int32).max)


def as_loss(value: Any) -> jax.Array:
    """The loss that comes as the extra argument `value=`, or 0."""
    loss = jnp.asarray(0.0 if value is None else value, jnp.result_type(float))
    if loss.ndim != 0:
        raise ValueError(f"`value` must be a scalar, the loss, got {loss.shape}.")
    return loss
