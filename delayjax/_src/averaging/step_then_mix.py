"""The engine of averaging methods: a local step, then a method mixes the models."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, collectives, donation, extras, transforms

Mix = Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]]
"""(step int32 [], memory, model before the local step, model after it) -> (the worker's
new model, memory). Each averaging method is one such function."""


class AveragingState(NamedTuple):
    """State of every method that averages models."""

    step: jax.Array  # updates done, int32 []
    memory: Any  # the method's own state; () if it has none
    inner_state: Any  # state of each worker's own optimizer


def step_then_mix(
    needed_by: str,
    inner: transforms.Transformation,
    mix: Mix,
    axis_name: axes.AxisName | None,
    begin: Callable[[Any], Any] = lambda params: (),
    *,
    alone: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Each worker takes a step of its own optimizer U; then `mix` mixes the models.

        x'^i = x^i + U(g^i)
        x^i <- mix(t, memory, x^i, x'^i)

    `begin` makes the first memory from the parameters; errors name `needed_by`. If
    `alone`, `axis_name` may be None: there is one worker, without an axis.
    """
    if axis_name is not None or not alone:
        axes.as_names(axis_name)
    inner = transforms.as_transformation("inner", inner)

    def state_of(params):
        return AveragingState(
            step=jnp.zeros((), jnp.int32),
            memory=begin(params),
            inner_state=inner.init(varied(params, axis_name)),
        )

    def init_fn(params):
        return donation.made(state_of, params)

    def update_fn(updates, state, params=None, **extra_args):
        params = extras.require_params(params, needed_by)
        params = varied(params, axis_name)
        if axis_name is not None:
            collectives.workers_of(axis_name)  # JAX's own error would name no remedy
            collectives.check_fresh(needed_by, updates, axis_name)
        moves, inner_state = _updated(
            inner, updates, state.inner_state, params, extra_args
        )
        model = optax.apply_updates(params, moves)
        mixed, memory = mix(state.step, state.memory, params, model)
        state = AveragingState(state.step + 1, memory, inner_state)
        return towards(mixed, params), state

    return transforms.stateful(AveragingState, init_fn, update_fn)


def _updated(
    inner: optax.GradientTransformationExtraArgs,
    updates: Any,
    state: Any,
    params: Any,
    extra_args: dict[str, Any],
) -> tuple[Any, Any]:
    """`inner.update`, also where `inner` has branches, as `optax.MultiSteps` has.

    A state made outside of the workers' axis is typed as the same on all workers. If
    then one branch returns it and another changes it, JAX refuses their types. So the
    state gets the types that `inner.init` gives it here.
    """
    try:
        return inner.update(updates, state, params, **extra_args)
    except TypeError:
        if not collectives.is_sent():
            raise
        made = jax.eval_shape(inner.init, params)
        if jax.tree.structure(made) != jax.tree.structure(state):
            raise
        state = axes.typed_like(state, made)
    return inner.update(updates, state, params, **extra_args)


def varied(tree: Any, axis_name: axes.AxisName | None) -> Any:
    """`tree` typed as different on each worker; one worker needs no type."""
    return tree if axis_name is None else axes.vary(tree, axis_name=axis_name)


def towards(model: Any, params: Any) -> Any:
    """The update from `params` to `model`, up to rounding."""
    return jax.tree.map(lambda x, p: (x - p).astype(p.dtype), model, params)
