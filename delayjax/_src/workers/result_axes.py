"""The axes over which a step's results differ between workers, from JAX's types."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, refusal, shardings, trees
from delayjax._src.workers.layout import Layout
from delayjax._src.workers.over_workers import by_vmap, of_part
from delayjax._src.workers.state import Axes, Step, Workers, WorkerState, each


class ResultAxes(NamedTuple):
    """Where the results of a step differ between workers."""

    state: Axes
    metrics: Any  # a tree of `PartitionSpec`s


AxesFinder = Callable[[str, Any, Any, Axes], ResultAxes]
"""(name, state, batch, differing) -> the axes of the results of a step. Errors call the
state `name`; `differing` are the axes over which each of its leaves differs."""


def axes_finder(step: Step, layout: Layout) -> AxesFinder:
    """The axes of a step's results, traced once for each kind of state and batch."""
    known: dict[Any, ResultAxes] = {}

    def find(name, state, batch, differing):
        batch_axes = (layout.names,) * len(jax.tree.leaves(batch))
        one = (
            layout.shapes_of_one(name, state, differing),
            layout.shapes_of_one("batch", batch, batch_axes),
        )
        leaves, structure = jax.tree.flatten(one)
        kind = structure, layout.abstract_mesh(), *leaves
        if (differing, kind) not in known:
            result_axes = find_axes(step, layout, *one, differing)
            # the results of the next step have the same axes
            known[differing, kind] = known[result_axes.state, kind] = result_axes
        return known[differing, kind]

    return find


def find_axes(
    step: Step, layout: Layout, state: Any, batch: Any, differing: Axes
) -> ResultAxes:
    """The axes with the fewest leaves that differ, among them all `differing` leaves.

    The step is traced with more and more differing leaves, until it returns the types
    that it was given. `state` and `batch` are shapes of one worker's parts.
    """
    result_axes = _traced(step, layout, state, batch, differing)
    while result_axes.state != differing:
        differing = result_axes.state
        result_axes = _traced(step, layout, state, batch, differing)
    _check_sums(step, layout, state, batch, result_axes)
    return result_axes


def axes_of_new(
    axes_of: AxesFinder, names: Any, state: Any, batch: Any, shared: Any
) -> ResultAxes:
    """The axes of a new state, in which workers share as many leaves as they can.

    Raises:
        ValueError: if a leaf that must be `shared` would differ.
    """
    leaves = jax.tree.leaves_with_path(state)
    result_axes = axes_of("state", state, batch, ((),) * len(leaves))
    if shared is None:  # the parameters, or all
        is_pair = type(state) is tuple and len(state) == 2
        shared = (True, False) if is_pair else True
    shared = jax.tree.leaves(trees.broadcast("shared", shared, state))
    along = {True: names, False: ()} | {name: (name,) for name in names}
    drifting = [
        trees.path_name(path)
        for (path, _), given, leaf_axes in zip(
            leaves, shared, result_axes.state, strict=True
        )
        if set(along[given]) & set(leaf_axes)
    ]
    if drifting:
        together = " and refuse the same steps on all workers" * refusal.refuses(state)
        raise ValueError(
            f"The workers' copies of {', '.join(drifting)} would drift apart: average"
            f" gradients with dj.exchange.mean(...){together}, or give `init` a tree of"
            " bools, shared=; False if each worker trains its own model."
        )
    return result_axes


def axes_of_held(axes_of: AxesFinder, held: WorkerState, batch: Any) -> ResultAxes:
    """The axes of a state that `init` has made.

    Raises:
        ValueError: if further leaves would differ after a step.
    """
    result_axes = axes_of("workers_state", held.state, batch, held.axes)
    leaves = jax.tree.leaves_with_path(held.state)
    differing = [
        trees.path_name(path)
        for (path, _), now, then in zip(
            leaves, result_axes.state, held.axes, strict=True
        )
        if now != then
    ]
    if differing:
        raise ValueError(
            f"The state does not fit the step: {', '.join(differing)} would differ"
            " between workers after it. Make it with this step's own `init`."
        )
    return result_axes


def workers_of(
    step: Step, layout: Layout, hold: Callable, execute: Callable
) -> Workers:
    """`Workers` whose leaves `hold` places and whose steps `execute` takes.

    hold(leaf, axes, spec) -> leaf; execute(result_axes, held, batch) -> results.
    """
    axes_of = axes_finder(step, layout)

    def init_fn(state, batch, shared=None):
        result_axes = axes_of_new(axes_of, layout.names, state, batch, shared)
        specs = tuple(map(layout.spec, jax.tree.leaves(state)))
        held = each(hold, state, result_axes.state, specs)
        return WorkerState(held, result_axes.state, specs)

    def step_fn(held, batch):
        result_axes = axes_of_held(axes_of, held, batch)
        state, metrics = execute(result_axes, held, batch)
        return dataclasses.replace(held, state=state), metrics

    return Workers(init_fn, step_fn)


def _traced(
    step: Step, layout: Layout, state: Any, batch: Any, differing: Axes
) -> ResultAxes:
    """The axes that types show after a step, if `differing` has the axes before it."""
    names, result_axes = layout.names, []

    def varies(leaf, before=()):
        over = axes.varies_over(leaf)
        return tuple(name for name in names if name in over or name in before)

    def of_one(held, batch):
        after, metrics = of_part(step, differing, names)(held, batch)
        rule = "`step` must return (state, metrics) with a state like the given state"
        trees.check_same_types(rule, after, state)
        differ = tuple(map(varies, jax.tree.leaves(after), differing))
        specs = jax.tree.map(lambda leaf: P(*varies(leaf)), metrics)
        result_axes.append(ResultAxes(differ, specs))
        return jnp.zeros(())

    shard_map = jax.shard_map(
        of_one,
        mesh=layout.abstract_mesh(),
        in_specs=(
            each(lambda _, leaf_axes: P(*leaf_axes), state, differing),
            P(*names),
        ),
        out_specs=P(),
        axis_names=set(names),
    )
    held = layout.shapes_of_all(state, differing)
    batch = layout.shapes_of_all(batch, (names,) * len(jax.tree.leaves(batch)))
    # the caller may have set another mesh
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        jax.eval_shape(shard_map, held, batch)
    return result_axes[0]


def _check_sums(
    step: Step, layout: Layout, state: Any, batch: Any, result_axes: ResultAxes
) -> None:
    """Checks that leaves stay shared under `vmap`, which sums no gradient.

    `shard_map` sums the gradient of parameters that workers share, as their types ask.
    `vmap` does not sum: the gradient differs between workers, and `vmap` refuses to
    return it as one result for all workers.
    """
    returned = []

    def watched(state, batch):
        result = step(state, batch)
        returned.append(True)
        return result

    is_simulated = layout.mesh is None
    mesh = jax.sharding.get_abstract_mesh() if is_simulated else layout.abstract_mesh()
    batch_axes = (layout.names,) * len(jax.tree.leaves(batch))
    on_all = functools.partial(by_vmap, watched, layout.counts, *result_axes, ())
    try:
        with jax.sharding.use_abstract_mesh(shardings.auto_axes(mesh)):
            jax.eval_shape(
                on_all,
                layout.shapes_of_all(state, result_axes.state, typed=False),
                layout.shapes_of_all(batch, batch_axes, typed=False),
            )
    except Exception as error:
        if returned:
            raise ValueError(
                "The step's gradient is summed over the workers, as `vmap` would not:"
                " write jax.value_and_grad(loss)(workers.vary(params), batch). If you"
                " do, a `cond` depends on one worker's gradient, as in"
                " optax.apply_if_finite: use dj.refusing."
            ) from error
        if not mesh.explicit_axes:
            raise  # the step itself failed
        # otherwise the step names Explicit axes, which `vmap` does not have
