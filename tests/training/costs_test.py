"""What a step of replay costs, read off the compiled program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from tests.training.traces import (
    ADAPTIVE,
    KEY,
    MOMENTUM,
    SGD,
    only,
    pick,
    trace_of,
    young,
)

# what a step costs, read off the compiled program

BIG = {"w": jnp.zeros((100, 200)), "b": jnp.zeros(200)}


N = sum(leaf.nbytes for leaf in BIG.values())


COSTS = {
    "plain": {},
    "everything": {"tx": MOMENTUM, "each": ADAPTIVE},
    "a rule in each": {"tx": MOMENTUM, "each": only(young, ADAPTIVE)},
    "a rule": {"tx": dj.drop_stale(MOMENTUM, 3), "each": ADAPTIVE},
}


def wave(params, batch, key):
    return {}, jax.tree.map(lambda p: p - jnp.sin(p + batch), params)


def donated(*, workers=8, width=8, depth=16, chunk=4, tx=SGD, **options):
    """The donated step, lowered for shapes alone, and the state's shapes."""
    # of each update one gradient is fresh and one as old as there is
    trace = trace_of(
        [
            [
                (workers - 1 - k % workers, t - min(t, k * depth // (width - 1)))
                for k in range(width)
            ]
            for t in range(depth + 1)
        ]
    )
    replay = dj.replay(trace, wave, tx, chunk=chunk, **options)
    state = jax.eval_shape(replay.init, BIG, KEY)
    inputs = pick((trace.arrivals(0, 1), np.zeros((1, width), np.float32)), 0)
    return jax.jit(replay.step, donate_argnums=0).lower(state, inputs), state


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


def nbytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def test_the_number_of_workers_changes_nothing_about_the_program():
    few, many = (donated(workers=workers)[0].as_text() for workers in (2, 64))
    assert few == many


@pytest.mark.parametrize("depth", [0, 4, 64])
def test_a_state_holds_each_version_once_and_the_parameters(depth):
    """And no version where no gradient is late."""
    state = donated(depth=depth)[1]
    versions = depth + 1 if depth else 0
    assert nbytes(state._replace(key=())) <= (versions + 1) * N + 64


@pytest.mark.parametrize("name", COSTS)
def test_a_step_holds_no_second_history_and_copies_none(name):
    shallow, deep = (
        donated(depth=depth, **COSTS[name])[0].compile() for depth in (8, 64)
    )
    assert temporary(deep) <= temporary(shallow) + N / 4
    accessed = [
        program.cost_analysis()["bytes accessed"] for program in (shallow, deep)
    ]
    assert accessed[1] <= 1.1 * accessed[0]
    assert not re.search(r"f32\[65,100,200\]\S* copy\(", deep.as_text())


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_accelerators_read_all_versions_at_once_and_cpus_one_by_one(platform):
    trace = trace_of([[(k, max(0, t - k)) for k in range(4)] for t in range(5)])
    replay = dj.replay(trace, wave, SGD)
    state = jax.eval_shape(replay.init, BIG, KEY)
    inputs = pick((trace.arrivals(0, 1), np.zeros((1, 4), np.float32)), 0)
    traced = jax.jit(replay.step).trace(state, inputs)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    leaf = "tensor<4x1x100x200xf32>"
    gathers = re.findall(rf"stablehlo.gather.*-> {leaf}", program)
    assert len(gathers) == (0 if platform == "cpu" else 1)


def test_the_chunk_bounds_the_gradients_that_are_held():
    used = {
        chunk: temporary(donated(width=16, chunk=chunk)[0].compile())
        for chunk in (1, 4, 16)
    }
    for chunk, temporaries in used.items():
        # the parameters read, the gradients taken there, and what is added to
        assert temporaries <= (2.1 * chunk + 1) * N
    assert used[1] < used[4] / 2 < used[16] / 4
