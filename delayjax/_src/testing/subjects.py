"""The steps that are checked: of one optimizer, or of several workers together."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import axes
from delayjax._src.testing import comparing
from delayjax._src.workers.state import Workers

ExtraArgs = Callable[[jax.Array, Any], dict[str, Any]]
"""(step int32 [], params) -> the extra arguments of `update`."""


class Subject(NamedTuple):
    """A training step, in one of its executions."""

    start: Callable[[Any], Any]  # parameters -> what is carried from step to step
    step: Callable[[Any, Any], tuple[Any, Any]]  # (carry, batch) -> (carry, updates)


def every_producer(step: Any, params: Any) -> dict[str, Any]:
    """The extra arguments that `delayed`, `exchange` and `replay` hand on."""
    return {
        "staleness": 3 * jnp.asarray(step, jnp.int32) % 10,  # 0, 3, 6, 9, 2, 5, ...
        "stale_params": jax.tree.map(lambda p: (0.9 * p).astype(p.dtype), params),
        "value": 1.0 / (1.0 + jnp.asarray(step, jnp.float32)),
        "worker": jnp.asarray(step, jnp.int32) % 2,
    }


def nothing(step: Any, params: Any) -> dict[str, Any]:
    """No extra arguments."""
    return {}


def accepted(update: Callable, extra_args: dict[str, Any]) -> dict[str, Any]:
    """The extra arguments that `update` takes."""
    if takes_any(update):
        return extra_args
    parameters = inspect.signature(update).parameters
    return {name: value for name, value in extra_args.items() if name in parameters}


def takes_any(update: Callable) -> bool:
    """Whether `update` has a parameter `**extra_args`."""
    parameters = inspect.signature(update).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def alone(tx: Any, extra_args: ExtraArgs, **more: Any) -> Subject:
    """One optimizer that trains one model. A batch is (gradients, step)."""

    def start(params):
        return params, tx.init(params)

    def step(carry, batch):
        params, state = carry
        grads, t = batch
        given = accepted(tx.update, extra_args(t, params)) | more
        updates, state = tx.update(grads, state, params, **given)
        return (optax.apply_updates(params, updates), state), updates

    return Subject(start, step)


def of_a_worker(
    tx: Any, extra_args: ExtraArgs, axis_name: str, *, mean: bool, **more: Any
) -> Callable:
    """The step of one worker; with `mean` its updates are averaged."""

    def step(carry, batch):
        params, state = carry
        grads, t = batch
        varied = axes.vary(params, axis_name=axis_name)
        given = accepted(tx.update, extra_args(t, varied)) | more
        at = varied if mean else params
        updates, state = tx.update(grads, state, at, **given)
        moves = jax.lax.pmean(updates, axis_name) if mean else updates
        moved = optax.apply_updates(params, moves)
        return (moved, state), axes.vary(updates, axis_name=axis_name)

    return step


def together(tx: Any, held: Workers, shared: Any, gradients: Any) -> Subject:
    """Workers that take one step together. A batch is (gradients, step) of each."""

    def start(params):
        first = jax.tree.map(lambda leaf: leaf[0], gradients)
        return held.init((params, tx.init(params)), first, shared)

    return Subject(start, held.step)


def small() -> Any:
    """Parameters of several shapes and dtypes, in a nested tree."""
    shapes = {
        "layer": {
            "kernel": jax.ShapeDtypeStruct((8, 2), jnp.float32),
            "bias": jax.ShapeDtypeStruct((8,), jnp.bfloat16),
            "scale": jax.ShapeDtypeStruct((), jnp.float32),
        },
        "head": jax.ShapeDtypeStruct((3,), jnp.float32),
    }
    return normal(shapes, 0)


def normal(params: Any, seed: int, *shape: int) -> Any:
    """Arrays like the parameters, of normal numbers; integers are zero."""
    rng = np.random.default_rng(seed)

    def drawn(leaf):
        dtype = jnp.result_type(leaf)
        whole = (*shape, *jnp.shape(leaf))
        if not jnp.issubdtype(dtype, jnp.inexact):
            return jnp.zeros(whole, dtype)
        values = rng.normal(size=whole)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.normal(size=whole)
        return jnp.asarray(values, dtype)

    return jax.tree.map(drawn, params)


def as_given(params: Any) -> Any:
    """Copies of the parameters; normal numbers in place of shapes."""
    leaves = jax.tree.leaves(params)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return normal(params, 0)
    return jax.tree.map(lambda p: jnp.array(p, jnp.result_type(p), copy=True), params)


def widened(params: Any) -> Any:
    """The parameters, with leaves of 16 bits in float32."""

    def wide(leaf):
        dtype = jnp.result_type(leaf)
        is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
        return leaf.astype(jnp.float32) if is_narrow else leaf

    return jax.tree.map(wide, params)


def batches(params: Any, seed: int, steps: int, workers: int | None = None) -> Any:
    """(gradients [T, ...], steps [T]), or for workers [T, P, ...] and [T, P]."""
    shape = (steps,) if workers is None else (steps, workers)
    clock = jnp.arange(steps, dtype=jnp.int32)
    if workers is not None:
        clock = jnp.tile(clock[:, None], (1, workers))
    return normal(params, seed, *shape), clock


def at(batch: Any, t: int) -> Any:
    """The batch of step t."""
    return jax.tree.map(lambda leaf: leaf[t], batch)


def restored(tree: Any, like: Any) -> Any:
    """A tree like `like`, with the numbers that a file would have of `tree`."""
    return jax.tree.unflatten(
        jax.tree.structure(like),
        map(_typed, jax.tree.leaves(tree), jax.tree.leaves(like)),
    )


def _typed(leaf: Any, like: Any) -> jax.Array:
    # a copy: an array of NumPy may share the buffer of the leaf
    value = jnp.array(comparing.numbers(leaf), copy=True)
    if not jnp.issubdtype(jnp.result_type(like), jax.dtypes.prng_key):
        return value
    return jax.random.wrap_key_data(value, impl=jax.random.key_impl(like))
