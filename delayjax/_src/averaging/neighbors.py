"""Averages with a few other workers and no center."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.averaging import periods
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, checks, collectives


def mixing(
    name: str, inner: Any, mixed: Callable, overlap: bool, period: Any, axis_name: str
) -> optax.GradientTransformationExtraArgs:
    """x^i <- mixed(t, x + U(g))^i, or with `overlap` mixed(t, x)^i + U(g^i)."""
    period = checks.check_count("period", period)

    def mix(step, memory, before, model):
        due, old = periods.due(step, period), before if overlap else model
        new = periods.when(due, functools.partial(mixed, step), old, axis_name)
        if overlap:
            new = jax.tree.map(lambda m, x, p: m + (x - p), new, model, before)
        return new, memory

    return step_then_mix(name, inner, mix, axis_name)


def neighborhood(needed_by: str, axis_name: str) -> tuple[int, jax.Array]:
    """The number of workers, and the rank of this worker."""
    workers = collectives.workers_of(axis_name)
    if workers == 1:
        raise ValueError(f"`{needed_by}` needs two workers or more, got 1.")
    return workers, jax.lax.axis_index(axis_name)


def received(
    tree: Any, sources: list[np.ndarray], chosen: jax.Array, axis_name: str
) -> Any:
    """The tree that worker i receives from worker sources[chosen][i]."""
    if not collectives.is_sent():
        rank = jnp.asarray(sources)[chosen, jax.lax.axis_index(axis_name)]
        return jax.tree.map(
            lambda leaf: jax.lax.all_gather(leaf, axis_name)[rank], tree
        )

    def over(source):
        pairs = sorted((int(j), i) for i, j in enumerate(source))
        return lambda tree: jax.lax.ppermute(tree, axis_name, pairs)

    varied = axes.vary(tree, axis_name=axis_name)
    return jax.lax.switch(chosen, [*map(over, sources)], varied)
