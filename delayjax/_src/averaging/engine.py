"""A worker's local step, and a mix of the workers' models after it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src import base, buffers, collectives

Mix = Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]]
"""(step int32 [], memory, model before the local step, model after it) -> (the worker's
model, memory). A method of averaging is one such function."""


class AveragingState(NamedTuple):
    """State of every method that averages models."""

    step: jax.Array  # updates done, int32 []
    memory: Any  # what the method keeps; () if nothing
    inner_state: Any  # of each worker's own optimizer


def averaged(
    needed_by: str,
    inner: optax.GradientTransformation,
    mix: Mix,
    *,
    axis_name: base.AxisName,
    begin: Callable[[Any], Any] = lambda params: (),
) -> optax.GradientTransformationExtraArgs:
    """Each worker takes a step of its own optimizer; then `mix` mixes the models.

        x'^i = x^i + U(g^i)
        x^i <- mix(t, memory, x^i, x'^i)

    Args:
        needed_by: the name of the method, for errors.
        inner: the worker's own optimizer, U.
        mix: the method. `jax.lax` collectives over `axis_name` work in it.
        axis_name: the workers' axis, or several.
        begin: params -> the memory at the start.

    Returns:
        A transformation such that `params + updates` is x^i, up to the rounding of this
        sum. It must be the last of its chain: a transformation behind it would change
        an update that leads to the mixed model.

    Raises:
        ValueError: in `update`, if a gradient is summed over the workers already.
    """
    inner = base.as_transformation("inner", inner)
    base.as_names(axis_name)

    def state_of(params):
        return AveragingState(
            step=jnp.zeros((), jnp.int32),
            memory=begin(params),
            inner_state=inner.init(base.vary(params, axis_name=axis_name)),
        )

    def init_fn(params):
        return buffers.unshared(buffers.made(state_of, params), params)

    def update_fn(updates, state, params=None, **extra_args):
        remedy = "call `update(grads, state, params)`"
        params = base.require(params, "params", needed_by, remedy)
        params = base.vary(params, axis_name=axis_name)
        collectives.workers_of(axis_name)
        collectives.check_fresh(needed_by, updates, axis_name)
        moves, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        model = optax.apply_updates(params, moves)
        mixed, memory = mix(state.step, state.memory, params, model)
        towards = jax.tree.map(lambda x, p: (x - p).astype(p.dtype), mixed, params)
        return towards, AveragingState(state.step + 1, memory, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
