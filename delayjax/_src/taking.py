"""Taking a gradient: how `grad_fn` is called and checked, and what is summed up."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src import base
from delayjax._src.ring import ring as rings

GradFn = Callable[..., tuple]
"""(params, batch, key) -> (gradients, metrics), or, of a model with a state,
(params, batch, key, model_state) -> (gradients, metrics, model_state)."""


class Taken(NamedTuple):
    """What `grad_fn` returns for one gradient, or, [c, ...], for several."""

    gradients: Any
    metrics: Any
    model_state: Any  # None where the model has none


def begun(params: Any, model_state: Any, key: jax.Array) -> tuple[Any, Any, jax.Array]:
    """Copies, strongly typed, for a state that may be donated.

    Raises:
        TypeError: if `key` is no PRNG key, or several.
    """
    if isinstance(key, (jax.Array, np.ndarray)):
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        is_key = key.ndim == (0 if is_typed else 1)
        is_key &= is_typed or key.dtype == jnp.uint32  # of jax.random.PRNGKey
    else:
        is_key = False
    if not is_key:
        raise TypeError(
            f"`key` must be one PRNG key, got {key!r}: pass jax.random.key(seed)."
        )

    def copy(leaf):
        return jnp.array(leaf, jnp.result_type(leaf), copy=True)

    return *jax.tree.map(copy, (params, model_state)), jnp.copy(key)


def take(
    grad_fn: GradFn, params: Any, batch: Any, key: jax.Array, model_state: Any
) -> Taken:
    """Calls `grad_fn`, with the model's state where there is one."""
    if model_state is None:
        gradients, metrics = grad_fn(params, batch, key)
        return Taken(gradients, metrics, None)
    gradients, metrics, after = grad_fn(params, batch, key, model_state)

    def placed(leaf, before):
        # on a mesh of Explicit axes statistics are sharded as the activations are
        sharding = jax.typeof(before).sharding
        if jax.typeof(leaf).sharding == sharding:
            return leaf
        return jax.sharding.reshard(leaf, sharding)

    return Taken(gradients, metrics, jax.tree.map(placed, after, model_state))


def check(
    needed_by: str,
    grad_fn: GradFn,
    params: Any,
    batch: Any,
    key: jax.Array,
    model_state: Any,
) -> Taken:
    """The shapes of one gradient, its metrics and its model state.

    Raises:
        TypeError: if `grad_fn` does not take these arguments, or does not return a
            tuple of as many parts as it must, gradients like the parameters, or a
            model state like the given one.
    """
    given: tuple[Any, ...] = params, batch, key
    takes, returns = "(params, batch, key)", "(gradients, metrics)"
    remedy = "hand `init` a `model_state` if the model has one"
    if model_state is not None:
        given = *given, model_state
        takes, returns = f"{takes[:-1]}, model_state)", f"{returns[:-1]}, model_state)"
        remedy = "`init` was given a `model_state`"
    try:
        inspect.signature(grad_fn).bind(*given)
    except ValueError:  # of a function written in C there is no signature
        pass
    except TypeError as error:
        raise TypeError(
            f"`grad_fn` must take {takes}, got {grad_fn!r} with the arguments"
            f" {inspect.signature(grad_fn)}: {remedy}."
        ) from error
    result = jax.eval_shape(grad_fn, *given)
    if not (isinstance(result, tuple) and len(result) == len(given) - 1):
        raise TypeError(
            f"`grad_fn` must return {returns}, got {jax.tree.structure(result)}:"
            f" {remedy}; metrics may be {{}}."
        )
    gradients, metrics, *after = result
    one = Taken(gradients, metrics, after[0] if after else None)
    base.check_gradients(needed_by, one.gradients)
    _check_alike(
        "`grad_fn` must return gradients like the parameters",
        one.gradients,
        params,
        "is it (value, gradients) from jax.value_and_grad?",
    )
    _check_alike(
        "`grad_fn` must return a model state like the one it is given",
        one.model_state,
        model_state,
        "the order is (gradients, metrics, model_state).",
    )
    return one


def check_depth(params: Any, versions: rings.Ring, depth: int) -> None:
    """Checks that a state keeps versions as old as may be read.

    Raises:
        ValueError: if it was made for a smaller staleness.
    """
    held = min((len(kept) - 1 for kept in jax.tree.leaves(versions.slots)), default=0)
    if jax.tree.leaves(params) and held < depth:
        raise ValueError(
            f"`state` keeps versions up to a staleness of {held}, got a trace of"
            f" {depth}: change it with resize_history(state, training.init(params,"
            " key)), and `model_state=` if there is one."
        )


def check_shapes(name: str, what: str, tree: Any, params: Any) -> None:
    """Checks that no broadcast hides a leaf of another shape than the parameters'.

    Raises:
        TypeError: naming the argument that `tree` comes from, and the leaf.
    """
    _check_alike(
        f"`{name}` must return {what} of the parameters' shapes",
        jax.tree.map(_shape, tree),
        jax.tree.map(_shape, params),
        "one for each parameter.",
    )


def nothing(tree: Any) -> Any:
    """The beginning of a sum of such leaves; narrow floats add up in float32."""
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, dtype=_wide(leaf)), tree)


def add(total: Any, values: Any, used: jax.Array | None = None) -> Any:
    """`total` plus the values [c, ...] that are used, bool [c]; all by default."""

    def sum_up(total, leaf):
        if used is not None:
            mask = used.reshape(-1, *(1 for _ in leaf.shape[1:]))
            leaf = jnp.where(mask, leaf, jnp.zeros_like(leaf))
        return total + leaf.sum(0, dtype=total.dtype)

    return jax.tree.map(sum_up, total, values)


# A model's state after an update: of floating leaves the mean over the gradients used,
# of all others (counters, keys) the last gradient's.


def no_states(model_state: Any) -> Any:
    """Where `add_states` begins, and ends without a gradient: the server's own."""
    return jax.tree.map(
        lambda leaf: leaf.astype(_wide(leaf)) if _has_mean(leaf) else leaf, model_state
    )


def add_states(mean: Any, seen: jax.Array, states: Any, used: jax.Array) -> Any:
    """The mean of `seen` model states and of those of [c, ...] that are used, bool [c].

    What is the same in all of them stays so bit for bit: differences are averaged.
    """
    count = used.sum(dtype=jnp.int32)
    first = jnp.argmax(used)
    last = len(used) - 1 - jnp.argmax(used[::-1])

    def put(mean, leaf):
        if not _has_mean(leaf):
            return jnp.where(count > 0, leaf[last], mean)
        states = leaf.astype(mean.dtype)
        total = add(jnp.zeros_like(mean), _apart(states, states[first][None]), used)
        own = states[first] + total / jnp.maximum(count, 1)
        both = mean + _apart(own, mean) * (count / jnp.maximum(seen + count, 1))
        both = jnp.where(seen > 0, both.astype(mean.dtype), own)
        return jnp.where(count > 0, both, mean)

    return jax.tree.map(put, mean, states)


def new_state(mean: Any, model_state: Any) -> Any:
    """The server's model state after an update, of the types it had."""
    return jax.tree.map(
        lambda mean, leaf: mean.astype(leaf.dtype) if _has_mean(leaf) else mean,
        *(mean, model_state),
    )


def _apart(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a == b, 0, a - b)  # of equal infinities, too


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.float32)  # of whatever dtype


def _wide(leaf: Any) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _has_mean(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _check_alike(rule: str, got: Any, like: Any, hint: str) -> None:
    """Checks structure, shapes and dtypes.

    Raises:
        TypeError: naming the first leaf that differs.
    """
    leaves, structure = jax.tree.flatten_with_path(got)
    wanted, wanted_structure = jax.tree.flatten(like)
    if structure != wanted_structure:
        raise TypeError(f"{rule}, got {structure} for {wanted_structure}: {hint}")
    for (path, leaf), other in zip(leaves, wanted, strict=True):
        if (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            raise TypeError(
                f"{rule}, got {leaf.dtype}{list(leaf.shape)} for"
                f" {other.dtype}{list(other.shape)} at"
                f" {jax.tree_util.keystr(path) or 'the root'}: {hint}"
            )
