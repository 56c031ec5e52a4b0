"""A worker's own model: its local step, and the update that leads to a mixed one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src import base, collectives


def towards(model: Any, params: Any) -> Any:
    """The update that leads from `params` to `model`, to the rounding of a sum."""
    return jax.tree.map(lambda x, p: (x - p).astype(p.dtype), model, params)


def total(tree: Any, axis_name: base.AxisName) -> Any:
    """The sum of each leaf over the workers."""
    return collectives.sums(tree, axis_name, collectives.BUCKET_BYTES)


def mean(tree: Any, axis_name: base.AxisName) -> Any:
    """The mean of each leaf over the workers."""
    workers = collectives.workers_of(axis_name)
    return jax.tree.map(lambda leaf: leaf / workers, total(tree, axis_name))


def mean_beside(meanwhile: Any, tree: Any, axis_name: base.AxisName) -> tuple[Any, Any]:
    """`mean` of `tree`, and `meanwhile`, which is computed while it is under way."""
    workers = collectives.workers_of(axis_name)
    summed, meanwhile = collectives.sums_beside(
        meanwhile, tree, axis_name, collectives.BUCKET_BYTES
    )
    return jax.tree.map(lambda leaf: leaf / workers, summed), meanwhile


def when(
    due: Any, mix: Callable[[Any], Any], model: Any, axis_name: base.AxisName
) -> Any:
    """`mix(model)` where `due`, a bool that all workers share, else `model`.

    Where it is known nothing else is compiled; where it is not, what `mix` sends is
    sent in those steps alone.
    """
    if due is True:
        return mix(model)

    def mixed(model):
        return base.vary(
            mix(model), axis_name=axis_name
        )  # or the branches' types differ

    model = base.vary(model, axis_name=axis_name)
    return jax.lax.cond(due, mixed, lambda model: model, model)


def mean_when(due: Any, tree: Any, axis_name: base.AxisName) -> Any:
    """The `mean` where `due`, a bool that all workers share, else zeros.

    What goes through the branches is one model, not a model of each worker, which would
    be written out there.
    """
    if due is True:
        return mean(tree, axis_name)

    def averaged(tree):
        return base.vary(mean(tree, axis_name), axis_name=axis_name)

    tree = base.vary(tree, axis_name=axis_name)
    return jax.lax.cond(due, averaged, optax.tree.zeros_like, tree)


def typed_beyond(tree: Any, model: Any, axis_name: str) -> Any:
    """`tree`, what workers share, as different over the model's further axes.

    Those are of a level below: threads, say, that hold one worker's model.
    """
    axes = {name for leaf in jax.tree.leaves(model) for name in base.varies_over(leaf)}
    further = tuple(sorted(axes - {axis_name}))
    return base.vary(tree, axis_name=further) if further else tree


def due(step: jax.Array, period: Any) -> Any:
    """Whether models are exchanged at this step: `period` divides step + 1.

    True, a Python bool, where they always are.
    """
    return (isinstance(period, int) and period == 1) or (step + 1) % period == 0


def check_period(name: str, value: Any) -> Any:
    """A number of steps: as an int, or as it is where it is traced.

    Raises:
        ValueError: if it is below 1, or no scalar.
    """
    if base.is_concrete(value) and not isinstance(value, jax.Array):
        return base.check_bound(name, value, at_least=1)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"`{name}` must be an integer, got {value.dtype}.")
    if value.ndim != 0:
        raise ValueError(f"`{name}` must be a scalar, got shape {value.shape}.")
    if base.is_concrete(value) and int(np.asarray(value)) < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}.")
    return value


def check_axis(needed_by: str, axis_name: Any) -> str:
    """The name of one axis, along which workers have neighbors.

    Raises:
        TypeError: if it is no name, or several.
    """
    names = base.as_names(axis_name)
    if len(names) != 1:
        raise TypeError(
            f"`axis_name` of `{needed_by}` must be one name, got {axis_name!r}: workers"
            " are numbered along one axis there."
        )
    return names[0]
