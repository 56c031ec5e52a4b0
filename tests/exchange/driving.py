"""A worker's step, simulated or on four devices, and what its program sends."""

import collections
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import delayjax as dj

WORKERS = 4
# parameters and gradients whose dtypes differ
MIXED = pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [(jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.float32)],
)
SIZES = {"f64": 8, "f32": 4, "bf16": 2, "s32": 4, "pred": 1}

executions = pytest.mark.parametrize("execution", ["simulate", "run"])


def as_workers(execution, step):
    if execution == "simulate":
        return dj.workers.simulate(step, WORKERS)
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    return dj.workers.run(step, mesh)


def fed(tx, extras=False):
    """A step that reports updates; the batch is its gradient, with `extras` a pair.

    The second of the pair are the extra arguments of `update`, by name.
    """

    def step(state, batch):
        params, opt_state = state
        grads, told = batch if extras else (batch, {})
        updates, opt_state = tx.update(grads, opt_state, params, **told)
        return (optax.apply_updates(params, updates), opt_state), updates

    return step


def drive(execution, tx, batches, params, *, shared=None, extras=False):
    """Feeds `tx` gradients [T, P, ...]: the split after T steps, and all updates.

    The scan refuses a carry whose type changes, and donates the split.
    """
    held = as_workers(execution, fed(tx, extras))
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    split = held.init((params, tx.init(params)), first, shared)
    program = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b), donate_argnums=0)
    return program(split, batches)


def side_by_side(steps):
    """One step of all, by name: one program is compiled in half the time of many."""

    def step(states, batch):
        results = {name: steps[name](states[name], batch) for name in steps}
        return tuple({name: r[i] for name, r in results.items()} for i in range(2))

    return step


def parted(split):
    """By name, the split of each of the states that were stepped side by side."""
    axes = iter(split.axes)  # in the leaves' order: by name
    return {
        name: dj.workers.WorkerState(
            state, tuple(itertools.islice(axes, len(jax.tree.leaves(state))))
        )
        for name, state in sorted(split.state.items())
    }


def drive_all(execution, txs, batches, params, *, shared=True):
    """As `drive`, of each of `txs`, side by side: {name: (split, updates)}."""
    step = side_by_side({name: fed(tx) for name, tx in txs.items()})
    held = as_workers(execution, step)
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    states = {name: (params, tx.init(params)) for name, tx in txs.items()}
    split = held.init(states, first, dict.fromkeys(txs, (shared, False)))
    program = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b), donate_argnums=0)
    split, updates = program(split, batches)
    return {name: (own, updates[name]) for name, own in parted(split).items()}


def lowered(tx, params, *, shared=None):
    """The donated step of four devices, before its collectives are combined."""
    held = as_workers("run", fed(tx))
    grads = jax.tree.map(lambda p: jnp.zeros((WORKERS, *p.shape), p.dtype), params)
    split = held.init((params, tx.init(params)), grads, shared)
    step = jax.jit(lambda s, g: held.step(s, g)[0], donate_argnums=0)
    return step.lower(split, grads)


def program(tx, params, *, shared=None):
    """The same, compiled."""
    return lowered(tx, params, shared=shared).compile()


def types_inside(tx, params):
    """Types of a state made inside of `shard_map`, and of that after a step."""
    types = []

    def worker(params):
        state = tx.init(params)
        grads = dj.workers.vary(params)
        types.extend([state, tx.update(grads, state, params)[1]])
        return ()

    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    everywhere = jax.shard_map(worker, mesh=mesh, in_specs=P(), out_specs=P())
    jax.eval_shape(everywhere, params)
    return [jax.tree.map(jax.typeof, state) for state in types]


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
    """Leaves, of one tree or of several, that lie in one and the same memory."""
    leaves = collections.defaultdict(set)
    for path, leaf in jax.tree.leaves_with_path(trees):
        for shard in leaf.addressable_shards if leaf.nbytes else ():
            place = shard.device, shard.data.unsafe_buffer_pointer()
            leaves[place].add(jax.tree_util.keystr(path))
    return [paths for paths in leaves.values() if len(paths) > 1]


def owners(split):
    """Which leaves differ between workers, a tree of bools like the state."""
    structure = jax.tree.structure(split.state)
    return jax.tree.unflatten(structure, [bool(axes) for axes in split.axes])


def assert_agree(ours, theirs, *, narrow, wide):
    """Equal but for sums in another order, in bfloat16 (`narrow`) and wider."""

    def close(a, b):
        assert a.dtype == b.dtype
        tolerance = narrow if a.dtype == jnp.bfloat16 else wide
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(close, ours, theirs)
