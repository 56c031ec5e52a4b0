"""A worker's step, simulated or on four devices, and what its program sends."""

import collections
import itertools
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj

WORKERS = 4
SIZES = {"f64": 8, "f32": 4, "bf16": 2, "s32": 4, "pred": 1}

executions = pytest.mark.parametrize("execution", ["simulate", "run"])
# by default simulated: another test runs the method on devices, too
mostly_simulated = pytest.mark.parametrize(
    "execution", ["simulate", pytest.param("run", marks=pytest.mark.runs)]
)


def as_workers(execution, step):
    if execution == "simulate":
        return dj.workers.simulate(step, WORKERS)
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    return dj.workers.run(step, mesh)


def the_updates(updates, opt_state):
    return updates


def fed(tx, extras=False, see=the_updates):
    """A step that reports updates. A batch is a gradient, or a pair if `extras`.

    The second of a pair has the extra arguments of `update`, by name. The step reports
    see(updates, state).
    """

    def step(state, batch):
        params, opt_state = state
        grads, extra_args = batch if extras else (batch, {})
        updates, opt_state = tx.update(grads, opt_state, params, **extra_args)
        return (optax.apply_updates(params, updates), opt_state), see(
            updates, opt_state
        )

    return step


def scanned(held, states, batches, shared):
    """The split after all steps of a donated scan, and the reports of all steps.

    The scan fails if the type of its carry changes.
    """
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    split = held.init(states, first, shared)
    program = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b), donate_argnums=0)
    return program(split, batches)


def drive(execution, tx, batches, params, *, shared=None, extras=False):
    """Feeds `tx` gradients [T, P, ...]: the split after T steps, and all updates."""
    held = as_workers(execution, fed(tx, extras))
    return scanned(held, (params, tx.init(params)), batches, shared)


def side_by_side(steps):
    """One step of all, by name: to compile one program takes half the time of many."""

    def step(states, batch):
        results = {name: steps[name](states[name], batch) for name in steps}
        return tuple({name: r[i] for name, r in results.items()} for i in range(2))

    return step


def parted(split):
    """By name: the split of each of the states of `side_by_side`."""
    axes = iter(split.axes)  # in the order of the leaves, which is by name
    return {
        name: dj.workers.WorkerState(
            state, tuple(itertools.islice(axes, len(jax.tree.leaves(state))))
        )
        for name, state in sorted(split.state.items())
    }


def drive_all(execution, txs, batches, params, *, shared=True, **options):
    """Like `drive`, for all of `txs` in one program: {name: (split, reports)}."""
    steps = {name: fed(tx, **options) for name, tx in txs.items()}
    held = as_workers(execution, side_by_side(steps))
    states = {name: (params, tx.init(params)) for name, tx in txs.items()}
    kinds = dict.fromkeys(txs, (shared, False))
    split, reports = scanned(held, states, batches, kinds)
    return {name: (end, reports[name]) for name, end in parted(split).items()}


def owners_at_first(tx, params, shared=None):
    """The leaves of parameters and state that at first differ between workers."""
    grads = jax.tree.map(lambda p: jnp.zeros((WORKERS, *p.shape), p.dtype), params)
    held = as_workers("simulate", fed(tx))
    return owners(held.init((params, tx.init(params)), grads, shared))


def lowered(tx, params, *, shared=None):
    """The donated step of four devices, before its collectives are combined."""
    held = as_workers("run", fed(tx))
    grads = jax.tree.map(lambda p: jnp.zeros((WORKERS, *p.shape), p.dtype), params)
    split = held.init((params, tx.init(params)), grads, shared)
    step = jax.jit(lambda s, g: held.step(s, g)[0], donate_argnums=0)
    return step.lower(split, grads)


def program(tx, params, *, shared=None):
    """The same step, compiled."""
    return lowered(tx, params, shared=shared).compile()


def bytes_summed(program):
    """Bytes that one device hands to the all-reduces of a compiled program."""
    results = re.findall(r"= (\(?[^=]*?) all-reduce(?:-start)?\(", program.as_text())
    shapes = [shape for r in results for shape in re.findall(r"(\w+)\[([\d,]*)\]", r)]
    total = 0
    for kind, sizes in shapes:
        entries = 1
        for size in filter(None, sizes.split(",")):
            entries *= int(size)
        total += entries * SIZES[kind]
    return total


def shared_buffers(*trees):
    """The leaves, of one tree or of several, that share memory with another leaf."""
    leaves = collections.defaultdict(set)
    for path, leaf in jax.tree.leaves_with_path(trees):
        for shard in leaf.addressable_shards if leaf.nbytes else ():
            place = shard.device, shard.data.unsafe_buffer_pointer()
            leaves[place].add(jax.tree_util.keystr(path))
    return [paths for paths in leaves.values() if len(paths) > 1]


def owners(split):
    """The leaves that differ between workers: a tree of bools like the state."""
    structure = jax.tree.structure(split.state)
    return jax.tree.unflatten(structure, [bool(axes) for axes in split.axes])
