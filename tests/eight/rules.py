"""Every rule for stale gradients, simulated and on eight devices: how far apart?

Prints a JSON object, {rule: the largest difference over the largest number}.
"""

import json

import jax

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType

import delayjax as dj
from tests.contract_test import TABLE

WORKERS, UPDATES = 8, 5


def step_of(name):
    """Each worker applies the rule to its gradient; parameters move by the mean."""
    make, extra_args = TABLE[name]
    tx = make(2)

    def step(state, batch):
        params, opt_state = state
        gradients = jax.tree.map(
            lambda x: 0.3 * x + batch.astype(x.dtype), dj.workers.vary(params)
        )
        updates, opt_state = tx.update(
            gradients, opt_state, dj.workers.vary(params), **extra_args(2, params)
        )
        mean = jax.lax.pmean(updates, "workers")
        return (optax.apply_updates(params, mean), opt_state), ()

    return tx, step


def trained(name, execution):
    """The state of all workers after a few updates."""
    params = {"layer": {"a": jnp.linspace(-1.0, 1.0, 6)}, "head": jnp.ones(())}
    tx, step = step_of(name)
    workers = execution(step)
    batches = jax.random.normal(jax.random.key(3), (UPDATES, WORKERS))
    state = workers.init((params, tx.init(params)), batches[0])
    advance = jax.jit(workers.step)
    for batch in batches:
        state, _ = advance(state, batch)
    return jax.device_get(state.state)


def distance(name):
    """How far the two executions end apart, as a share of the largest number."""
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    simulated = trained(name, lambda step: dj.workers.simulate(step, WORKERS))
    ran = trained(name, lambda step: dj.workers.run(step, mesh))
    apart, largest = 0.0, 1.0
    for a, b in zip(jax.tree.leaves(simulated), jax.tree.leaves(ran), strict=True):
        differ = a != b  # equal infinities do not
        own = np.abs(np.float64(a[differ]) - np.float64(b[differ]))
        apart = max(apart, own.max(initial=0.0))
        largest = max(largest, np.abs(np.where(differ, a, 0)).max(initial=0.0))
    return float(apart / largest)


if __name__ == "__main__":
    print(json.dumps({name: distance(name) for name in TABLE}))
