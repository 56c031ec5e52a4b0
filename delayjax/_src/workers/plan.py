"""Which results of a step differ between workers: JAX's types tell."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, shardings, trees
from delayjax._src.workers.layout import Layout
from delayjax._src.workers.over_workers import by_vmap, of_part
from delayjax._src.workers.state import Axes, Step, Workers, WorkerState, each


class Plan(NamedTuple):
    """Where the results of a step differ between workers."""

    state: Axes
    metrics: Any  # a tree of `PartitionSpec`s


Planner = Callable[[str, Any, Any, Axes], Plan]
"""(name, state, batch, differing) -> the plan of a state of all workers, which is the
argument `name` and in which `differing` differ."""


def planner(step: Step, layout: Layout) -> Planner:
    """Plans of a step, each traced once for a kind of state and batch."""
    known: dict[Any, Plan] = {}

    def of(name, state, batch, differing):
        own = (layout.names,) * len(jax.tree.leaves(batch))
        one = (
            layout.shapes_of_one(name, state, differing),
            layout.shapes_of_one("batch", batch, own),
        )
        leaves, structure = jax.tree.flatten(one)
        key = structure, differing, layout.abstract_mesh(), *leaves
        if key not in known:
            known[key] = plan(step, layout, *one, differing)
        return known[key]

    return of


def plan(step: Step, layout: Layout, state: Any, batch: Any, differing: Axes) -> Plan:
    """The plan with the fewest leaves that differ, of which `differing` are some.

    The step is traced with more and more differing leaves, until it returns the types
    that it was given. `state` and `batch` are shapes of one worker's parts.
    """
    found = _traced(step, layout, state, batch, differing)
    while found.state != differing:
        differing = found.state
        found = _traced(step, layout, state, batch, differing)
    _check_sums(step, layout, state, batch, found)
    return found


def at_first(plan_of: Planner, names: Any, state: Any, batch: Any, shared: Any) -> Plan:
    """The plan of a new state, in which all is shared that can be.

    Raises:
        ValueError: if what must be `shared` would differ.
    """
    leaves = jax.tree.leaves_with_path(state)
    found = plan_of("state", state, batch, ((),) * len(leaves))
    if shared is None:  # the parameters, or all
        is_pair = type(state) is tuple and len(state) == 2
        shared = (True, False) if is_pair else True
    shared = jax.tree.leaves(trees.broadcast("shared", shared, state))
    along = {True: names, False: ()} | {name: (name,) for name in names}
    drifting = [
        trees.path_name(path)
        for (path, _), given, own in zip(leaves, shared, found.state, strict=True)
        if set(along[given]) & set(own)
    ]
    if drifting:
        raise ValueError(
            f"The workers' copies of {', '.join(drifting)} would drift apart:"
            " average gradients or updates with dj.exchange.mean(...). If only a"
            " part of the state must be the same on all workers, tell `init` which:"
            " shared=, a tree of bools; False if each worker trains its own model."
        )
    return found


def of_held(plan_of: Planner, held: WorkerState, batch: Any) -> Plan:
    """The plan of a state that is held.

    Raises:
        ValueError: if more of it would differ after a step.
    """
    found = plan_of("workers_state", held.state, batch, held.axes)
    leaves = jax.tree.leaves_with_path(held.state)
    differing = [
        trees.path_name(path)
        for (path, _), now, then in zip(leaves, found.state, held.axes, strict=True)
        if now != then
    ]
    if differing:
        raise ValueError(
            f"The state does not fit the step: {', '.join(differing)} would differ"
            " between workers after it. Make it with this step's own `init`."
        )
    return found


def workers_of(
    step: Step, layout: Layout, hold: Callable, execute: Callable
) -> Workers:
    """Workers from functions of (leaf, axes, spec) and of (plan, held, batch)."""
    plan_of = planner(step, layout)

    def init_fn(state, batch, shared=None):
        found = at_first(plan_of, layout.names, state, batch, shared)
        specs = tuple(map(layout.spec, jax.tree.leaves(state)))
        held = each(hold, state, found.state, specs)
        return WorkerState(held, found.state, specs)

    def step_fn(held, batch):
        found = of_held(plan_of, held, batch)
        state, metrics = execute(found, held, batch)
        return dataclasses.replace(held, state=state), metrics

    return Workers(init_fn, step_fn)


def _traced(
    step: Step, layout: Layout, state: Any, batch: Any, differing: Axes
) -> Plan:
    """What differs after a step if `differing` did before, by types."""
    names, found = layout.names, []

    def varies(leaf, before=()):
        over = axes.varies_over(leaf)
        return tuple(name for name in names if name in over or name in before)

    def of_one(held, batch):
        after, metrics = of_part(step, differing, names)(held, batch)
        rule = "`step` must return (state, metrics) with a state like its own"
        trees.check_alike(rule, after, state)
        differ = tuple(map(varies, jax.tree.leaves(after), differing))
        specs = jax.tree.map(lambda leaf: P(*varies(leaf)), metrics)
        found.append(Plan(differ, specs))
        return jnp.zeros(())

    shard_map = jax.shard_map(
        of_one,
        mesh=layout.abstract_mesh(),
        in_specs=(each(lambda _, own: P(*own), state, differing), P(*names)),
        out_specs=P(),
        axis_names=set(names),
    )
    held = layout.shapes_of_all(state, differing)
    batch = layout.shapes_of_all(batch, (names,) * len(jax.tree.leaves(batch)))
    # the caller may have set another mesh
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        jax.eval_shape(shard_map, held, batch)
    return found[0]


def _check_sums(step: Step, layout: Layout, state: Any, batch: Any, plan: Plan) -> None:
    """Checks that leaves stay shared under `vmap`, which sums no gradient."""
    returned, batched = [], collections.Counter()
    leaves = jax.tree.leaves_with_path(
        (state, plan.metrics), is_leaf=lambda node: isinstance(node, P)
    )
    metrics = (shardings.partitions(leaf) for _, leaf in leaves[len(plan.state) :])
    allowed = [len(own) for own in (*plan.state, *metrics)]

    def counted(state, batch):
        result = step(state, batch)
        returned.append(True)
        values, structure = jax.tree.flatten(result)
        values = [_counting(batched, i)(x) for i, x in enumerate(values)]
        return jax.tree.unflatten(structure, values)

    is_simulated = layout.mesh is None
    there = jax.sharding.get_abstract_mesh() if is_simulated else layout.abstract_mesh()
    own = (layout.names,) * len(jax.tree.leaves(batch))
    try:
        with jax.sharding.use_abstract_mesh(shardings.auto_axes(there)):
            jax.eval_shape(
                functools.partial(
                    by_vmap, counted, layout.counts, plan.state, plan.metrics, ()
                ),
                layout.shapes_of_all(state, plan.state, typed=False),
                layout.shapes_of_all(batch, own, typed=False),
            )
    except Exception as error:
        if not returned and there.explicit_axes:
            return  # the step names Explicit axes, which `vmap` does not have
        summed = [i for i, most in enumerate(allowed) if batched[i] > most]
        if not summed:
            raise  # the step itself failed
        where = trees.path_name(leaves[summed[0]][0])
        raise ValueError(
            "The step's gradient is summed over the workers, because it was not"
            " taken at workers.vary(params). `vmap` would not sum it, and"
            f" {where} of its (state, metrics) would differ: write"
            " jax.value_and_grad(loss)(workers.vary(params), batch)."
        ) from error


def _counting(counts: collections.Counter, place: int) -> Callable:
    """The identity, which counts the `vmap`s that map its argument."""

    @custom_vmap
    def same(leaf):
        return leaf

    @same.def_vmap
    def rule(axis_size, in_batched, leaf):
        del axis_size
        counts[place] += 1
        return _counting(counts, place)(leaf), in_batched[0]

    return same
