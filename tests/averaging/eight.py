"""One of the processes that hold eight replicas together; prints their models.

python -m tests.averaging.eight PROCESS PROCESSES PORT
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj

STEPS, WORKERS = 20, 8


def data():
    """Minima of the workers' quadratics, [T, P, 5]."""
    return np.random.default_rng(1).normal(size=(STEPS, WORKERS, 5))


def transformations():
    """Each method, and those that order or delay; made once the devices are known."""
    from tests.averaging.methods import methods  # its key is on a device

    return {
        name: make(optax.sgd(0.1, momentum=0.5), 2)
        for name, make in methods(WORKERS).items()
        if "," not in name or name in ("easgd, in turn", "wagma, late")
    }


def trained(tx, workers_of, batches):
    """The models [P, 5] in the end, of the workers that `workers_of(step)` makes."""

    def step(state, minimum):
        x, opt_state = state
        updates, opt_state = tx.update(x - minimum, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    workers, x = workers_of(step), jnp.ones(5)
    shapes = jax.ShapeDtypeStruct(batches.shape[1:], batches.dtype)
    split = workers.init((x, tx.init(x)), shapes, (True, False))
    return jax.jit(lambda s, b: jax.lax.scan(workers.step, s, b)[0])(
        split, batches
    ).state[0]


def main(process, processes, port):
    """Trains by each method on this process's share of eight devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", WORKERS // processes)
    jax.config.update("jax_enable_x64", True)
    if processes > 1:
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    batches = data()
    placed = jax.make_array_from_callback(
        batches.shape,
        NamedSharding(mesh, P(None, "workers")),
        lambda part: batches[part],
    )
    for name, tx in transformations().items():
        models = trained(tx, lambda step: dj.workers.run(step, mesh), placed)
        whole = multihost_utils.process_allgather(models, tiled=True)
        print(json.dumps({name: np.asarray(whole).tolist()}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
