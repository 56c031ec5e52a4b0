"""The workers' axes, and the arrays that differ along them."""

from typing import Any

import jax
import jax.core

AxisName = str | tuple[str, ...]
"""The name of the workers' axis; or several names, which number workers together."""


def vary(tree: Any, *, axis_name: AxisName = "workers") -> Any:
    """Marks `tree` as different on each worker. No value changes.

    Under `shard_map` JAX sums a gradient at replicated parameters over the workers, and
    a later mean does nothing. Take gradients at `vary(params)` instead. Under `vmap`,
    and outside of any axis, this function does nothing.

    Args:
        tree: arrays, usually the parameters.
        axis_name: the workers' axis, or several axes, over which the types then vary.

    Example:
        >>> import jax.numpy as jnp
        >>> vary({"w": jnp.ones(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    manual = jax.sharding.get_abstract_mesh().manual_axes
    names = tuple(name for name in as_names(axis_name) if name in manual)

    def typed(leaf):
        missing = tuple(n for n in names if n not in varies_over(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(typed, tree) if names else tree


def typed_like(tree: Any, like: Any) -> Any:
    """`tree`, where each leaf varies over the axes of the same leaf of `like`.

    Apply it to a new state. If a rule computes a value without the gradients (a
    counter, a constant), `shard_map` types it as the same on all workers, although the
    first state was typed as different. A `scan` or a `cond` refuses this change of
    type. No value changes.

    Args:
        tree: arrays, such as the state after a step.
        like: a tree of the same structure, such as the state before it.

    Example:
        >>> import jax.numpy as jnp
        >>> typed_like({"seen": jnp.int32(1)}, {"seen": jnp.int32(0)})
        {'seen': Array(1, dtype=int32)}
    """

    def typed(leaf, other):
        axes = tuple(varies_over(other))
        return vary(leaf, axis_name=axes) if axes else leaf

    return jax.tree.map(typed, tree, like)


def vary_as(params: Any, state: Any) -> Any:
    """A state that varies over all axes over which the parameters vary.

    Apply it to the first state, in `init`. Under `shard_map`, if workers have
    parameters of their own, their states differ after a step, so the type of the first
    state must vary too. No value changes, and outside of `shard_map` nothing happens.

    Args:
        params: the parameters that `init` was given.
        state: the state that `init` is about to return.

    Example:
        >>> import jax.numpy as jnp
        >>> vary_as({"w": jnp.ones(2)}, {"mean": jnp.zeros(())})
        {'mean': Array(0., dtype=float32)}
    """
    axes = {axis for leaf in jax.tree.leaves(params) for axis in varies_over(leaf)}
    return vary(state, axis_name=tuple(sorted(axes))) if axes else state


def varies_over(leaf: Any) -> frozenset[str]:
    """The manual axes over which the type of an array varies."""
    return jax.typeof(leaf).manual_axis_type.varying


def as_names(axis_name: AxisName | None) -> tuple[str, ...]:
    """One or several axis names, as a tuple."""
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    is_named = isinstance(names, tuple) and all(isinstance(n, str) and n for n in names)
    if not is_named or not names or len(set(names)) < len(names):
        raise TypeError(
            f"`axis_name` must be a name or a tuple of names, got {axis_name!r}."
        )
    return names


def check_mesh(mesh: jax.sharding.Mesh, names: tuple[str, ...]) -> None:
    """Checks that a mesh has these axes."""
    if not set(names) <= set(mesh.axis_names):
        raise ValueError(
            f"`mesh` must have axes {names}, got {mesh}: name its axes by axis_name=."
        )
