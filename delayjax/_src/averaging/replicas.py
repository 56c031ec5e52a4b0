"""The workers' models: each takes a step of its own, and then a method mixes them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import axes, checks, collectives, donation, extras, transforms

Mix = Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]]
"""(step int32 [], memory, model before the local step, model after it) -> (the worker's
new model, memory). Each averaging method is one such function."""


class AveragingState(NamedTuple):
    """State of every method that averages models."""

    step: jax.Array  # updates done, int32 []
    memory: Any  # the method's own state; () if it has none
    inner_state: Any  # state of each worker's own optimizer


def averaged(
    needed_by: str,
    inner: transforms.Transformation,
    mix: Mix,
    axis_name: axes.AxisName,
    begin: Callable[[Any], Any] = lambda params: (),
) -> optax.GradientTransformationExtraArgs:
    """Each worker takes a step of its own optimizer U; then `mix` mixes the models.

        x'^i = x^i + U(g^i)
        x^i <- mix(t, memory, x^i, x'^i)

    `begin` makes the first memory from the parameters; `needed_by` is for errors.
    """
    inner = transforms.as_transformation("inner", inner)

    def state_of(params):
        return AveragingState(
            step=jnp.zeros((), jnp.int32),
            memory=begin(params),
            inner_state=inner.init(axes.vary(params, axis_name=axis_name)),
        )

    def init_fn(params):
        return donation.unshared(donation.made(state_of, params), params)

    def update_fn(updates, state, params=None, **extra_args):
        remedy = "call `update(grads, state, params)`"
        params = extras.require(params, "params", needed_by, remedy)
        params = axes.vary(params, axis_name=axis_name)
        collectives.workers_of(axis_name)  # or the error names no remedy
        collectives.check_fresh(needed_by, updates, axis_name)
        moves, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        model = optax.apply_updates(params, moves)
        mixed, memory = mix(state.step, state.memory, params, model)
        state = AveragingState(state.step + 1, memory, inner_state)
        return towards(mixed, params), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def towards(model: Any, params: Any) -> Any:
    """The update that leads from `params` to `model`, up to rounding."""
    return jax.tree.map(lambda x, p: (x - p).astype(p.dtype), model, params)


def total(tree: Any, axis_name: axes.AxisName) -> Any:
    """The sum of each leaf over the workers."""
    return collectives.sums(tree, axis_name, collectives.BUCKET_BYTES)


def mean(tree: Any, axis_name: axes.AxisName) -> Any:
    """The mean of each leaf over the workers."""
    workers = collectives.workers_of(axis_name)
    return jax.tree.map(lambda leaf: leaf / workers, total(tree, axis_name))


def mean_beside(meanwhile: Any, tree: Any, axis_name: axes.AxisName) -> tuple[Any, Any]:
    """`mean(tree)`, and `meanwhile`, which is computed during the exchange."""
    workers = collectives.workers_of(axis_name)
    summed, meanwhile = collectives.sums_beside(
        meanwhile, tree, axis_name, collectives.BUCKET_BYTES
    )
    return jax.tree.map(lambda leaf: leaf / workers, summed), meanwhile


def due(step: jax.Array, period: Any) -> Any:
    """Whether `period` divides step + 1; the Python bool True at the Python int 1."""
    return (isinstance(period, int) and period == 1) or (step + 1) % period == 0


def choose(due: Any, yes: Callable, no: Callable, *operands: Any) -> Any:
    """`jax.lax.cond`, but only `yes` is compiled if `due` is the Python bool True."""
    return yes(*operands) if due is True else jax.lax.cond(due, yes, no, *operands)


def when(
    due: Any,
    mix: Callable[[Any], Any],
    tree: Any,
    axis_name: axes.AxisName,
    otherwise: Callable[[Any], Any] = lambda tree: tree,
) -> Any:
    """`mix(tree)` where `due`, a bool that all workers share."""

    def mixed(tree):
        # or the two branches have different types
        return axes.vary(mix(tree), axis_name=axis_name)

    return choose(due, mixed, otherwise, axes.vary(tree, axis_name=axis_name))


def mean_when(due: Any, tree: Any, axis_name: axes.AxisName) -> Any:
    """`mean(tree)` where `due`, else zeros. Simulated workers share one mean."""

    def mix(tree):
        return mean(tree, axis_name)

    return when(due, mix, tree, axis_name, optax.tree.zeros_like)


def typed_beyond(tree: Any, model: Any, axis_name: str) -> Any:
    """`tree`, which workers share, as different over axes of threads in a worker."""
    over = {name for leaf in jax.tree.leaves(model) for name in axes.varies_over(leaf)}
    further = tuple(sorted(over - {axis_name}))
    return axes.vary(tree, axis_name=further) if further else tree


def check_period(name: str, value: Any) -> Any:
    """A number of steps, at least 1. A traced value is returned as it is."""
    is_known = checks.is_concrete(value)
    return checks.check_bound(name, value, at_least=1) if is_known else value
