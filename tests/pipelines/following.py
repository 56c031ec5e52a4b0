"""A pipeline on devices beside its simulation."""

import jax
import numpy as np

from delayjax import pipelines
from tests.pipelines import chain


def assert_follows(parts, optimizer, schedule, mesh, *, updates, keys=None, **points):
    """Stage s makes update i in tick i + 2(S - 1) - s, with the simulation's numbers.

    The layers of a stage are two. Returns how many updates were compared.
    """
    stages = schedule.stages
    start = chain.single(chain.params(2 * stages))
    ticks = updates + 2 * (stages - 1)
    batches = chain.batches(ticks).astype(np.float32)
    keys = [None] * ticks if keys is None else keys
    simulated = pipelines.mixed(parts, optimizer, schedule, **points)
    state = simulated.init(start, batches[0], keys[0])
    step, after, losses = jax.jit(simulated.step), [], []
    for i in range(updates):
        state, loss = step(state, batches[i], keys[i])
        after.append(state.params)
        losses.append(loss)

    pipe = pipelines.run(parts, optimizer, schedule, mesh, **points)
    state = pipe.init(start, batches[0], keys[0])
    tick, compared = jax.jit(pipe.step, donate_argnums=0), 0
    for t in range(ticks):
        state, loss = tick(state, batches[t], keys[t])
        if 0 <= t - stages + 1 < updates:
            np.testing.assert_allclose(loss, losses[t - stages + 1], rtol=1e-5)
        for stage in range(stages):
            i = t - 2 * (stages - 1) + stage
            if not 0 <= i < updates:
                continue
            mine = jax.tree.map(lambda leaf, s=stage: leaf[s], state.params)
            for name, expected in after[i][stage].items():
                chain.assert_close(mine[name], expected)
            compared += 1
    assert compared == stages * updates
    return compared
