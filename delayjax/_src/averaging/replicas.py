"""The workers' models: their mean, and the steps at which they are exchanged."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from delayjax._src import base, collectives


def towards(model: Any, params: Any) -> Any:
    """The update that leads from `params` to `model`, up to rounding."""
    return jax.tree.map(lambda x, p: (x - p).astype(p.dtype), model, params)


def total(tree: Any, axis_name: base.AxisName) -> Any:
    """The sum of each leaf over the workers."""
    return collectives.sums(tree, axis_name, collectives.BUCKET_BYTES)


def mean(tree: Any, axis_name: base.AxisName) -> Any:
    """The mean of each leaf over the workers."""
    workers = collectives.workers_of(axis_name)
    return jax.tree.map(lambda leaf: leaf / workers, total(tree, axis_name))


def mean_beside(meanwhile: Any, tree: Any, axis_name: base.AxisName) -> tuple[Any, Any]:
    """`mean(tree)`, and `meanwhile`, which is computed during the exchange."""
    workers = collectives.workers_of(axis_name)
    summed, meanwhile = collectives.sums_beside(
        meanwhile, tree, axis_name, collectives.BUCKET_BYTES
    )
    return jax.tree.map(lambda leaf: leaf / workers, summed), meanwhile


def due(step: jax.Array, period: Any) -> Any:
    """Whether models are exchanged at this step: `period` divides step + 1.

    If the period is the Python int 1, this is the Python bool True.
    """
    return (isinstance(period, int) and period == 1) or (step + 1) % period == 0


def choose(due: Any, yes: Callable, no: Callable, *operands: Any) -> Any:
    """`jax.lax.cond`, but only `yes` is compiled if `due` is the Python bool True."""
    return yes(*operands) if due is True else jax.lax.cond(due, yes, no, *operands)


def when(
    due: Any, mix: Callable[[Any], Any], model: Any, axis_name: base.AxisName
) -> Any:
    """`mix(model)` where `due`, a bool that all workers share, else `model`."""

    def mixed(model):
        # otherwise the two branches have different types
        return base.vary(mix(model), axis_name=axis_name)

    own = base.vary(model, axis_name=axis_name)
    return choose(due, mixed, lambda model: model, own)


def mean_when(due: Any, tree: Any, axis_name: base.AxisName) -> Any:
    """`mean(tree)` where `due`, a bool that all workers share, else zeros.

    Simulated workers get one mean from the branch, not a copy for each worker.
    """

    def averaged(tree):
        return base.vary(mean(tree, axis_name), axis_name=axis_name)

    own = base.vary(tree, axis_name=axis_name)
    return choose(due, averaged, optax.tree.zeros_like, own)


def typed_beyond(tree: Any, model: Any, axis_name: str) -> Any:
    """`tree`, which workers share, typed as different over the model's further axes.

    A further axis is a level below: threads that hold one worker's model, for example.
    """
    axes = {name for leaf in jax.tree.leaves(model) for name in base.varies_over(leaf)}
    further = tuple(sorted(axes - {axis_name}))
    return base.vary(tree, axis_name=further) if further else tree


def check_period(name: str, value: Any) -> Any:
    """A number of steps, at least 1. A traced value is returned as it is."""
    if not base.is_concrete(value):
        return value
    return base.check_bound(name, value, at_least=1)
