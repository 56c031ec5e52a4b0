"""Eight workers on eight devices, of two and of four processes, in one start.

    python -m tests.eight.processes PROCESS PORT

There are four processes. The workers run on devices of all of them, or of the first two
alone; whoever has devices among them prints what was trained, {"gradients 4": {name:
parameters}, ...}.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj

PROCESSES, DEVICES = 4, 8  # devices of all that train
# what is trained, and across how many processes
PROGRAMS = [("gradients", 4), ("gradients", 2), ("models", 2)]


def trained(task, workers_of, batches, out_shardings=None):
    """{name: parameters in the end}, all trained in one program.

    Args:
        task: a name of `quadratics.TASKS`.
        workers_of: makes the workers of a step.
        batches: `quadratics.minima()`, [T, P, ...].
        out_shardings: of the parameters.
    """
    from tests.eight import quadratics  # once the devices are known

    transformations, shared = quadratics.TASKS[task]
    x, held, splits = jnp.ones(batches.shape[-1]), {}, {}
    shapes = jax.ShapeDtypeStruct(batches.shape[1:], batches.dtype)
    for name, tx in transformations().items():
        held[name] = workers_of(quadratics.step_of(tx))
        splits[name] = held[name].init((x, tx.init(x)), shapes, shared)

    def train(splits, batches):
        return {
            name: jax.lax.scan(workers.step, splits[name], batches)[0].state[0]
            for name, workers in held.items()
        }

    return jax.jit(train, out_shardings=out_shardings)(splits, batches)


def main(process, port):
    """Trains on this process's share of the eight devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"localhost:{port}", PROCESSES, process)
    from tests.eight import quadratics

    batches, printed = quadratics.minima(), {}
    for name, across in PROGRAMS:
        if process >= across:
            continue
        groups = [jax.local_devices(i)[: DEVICES // across] for i in range(across)]
        devices = [device for some in groups for device in some]
        mesh = Mesh(devices, ("workers",), axis_types=(AxisType.Auto,))
        placed = jax.make_array_from_callback(
            batches.shape,
            NamedSharding(mesh, P(None, "workers")),
            lambda part: batches[part],
        )
        result = trained(
            name,
            lambda step, mesh=mesh: dj.workers.run(step, mesh),
            placed,
            NamedSharding(mesh, P()),  # every process has all, and prints it
        )
        result = {key: np.asarray(x).tolist() for key, x in result.items()}
        printed[f"{name} {across}"] = result
    print(json.dumps(printed), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
