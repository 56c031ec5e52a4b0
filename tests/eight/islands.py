"""Two late islands of four devices: how far are simulation and devices apart?

Prints a JSON object, {name: (the largest relative difference, bytes that a device sends
between islands in a step)}.
"""

import json
import math

import jax

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType

import delayjax as dj
from delayjax import averaging
from experiments.pods import hlo

NAMES, SIZES, STEPS = ("groups", "members"), (2, 4), 30
PARAMS = {"w": (512, 128), "b": (5,)}
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
OUTER, EAGER = averaging.outer, averaging.eager_outer
CASES = {
    "one fragment": (OUTER, dict(period=6, delay=5)),
    "two fragments": (OUTER, dict(period=8, delay=2, fragments={"w": 0, "b": 1})),
    "corrected": (OUTER, dict(period=6, delay=3, merge=averaging.corrected)),
    "compressed": (
        OUTER,
        dict(
            period=6,
            delay=2,
            compress=dj.exchange.random_blocks(jax.random.key(0), 0.5),
        ),
    ),
    "eager": (EAGER, dict(period=6)),
}


def line(shape):
    """Numbers from 1 to 2."""
    return jnp.linspace(1.0, 2.0, math.prod(shape)).reshape(shape)


def step_of(tx):
    """A local step on a quadratic, whose minimum depends on the device, on a line."""

    def step(state, minimum):
        params, opt_state = state
        varied = dj.workers.vary(params, axis_name=NAMES)
        grads = jax.tree.map(lambda x: x - minimum * line(x.shape), varied)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    return step


def trained(tx, workers):
    """The state after some steps, and the compiled program of one step."""
    rng = np.random.default_rng(0)
    params = {name: jnp.ones(shape) for name, shape in PARAMS.items()}
    batches = jnp.asarray(rng.normal(size=(STEPS, *SIZES)), jnp.float32)
    held = workers.init((params, tx.init(params)), batches[0], shared=False)
    program = jax.jit(workers.step).lower(held, batches[0]).compile()
    for batch in batches:
        held, _ = program(held, batch)
    return jax.device_get(held.state), program


def bytes_between(program):
    """The bytes of the sums over pairs of devices, one in each island."""
    module = hlo.parse(program.as_text())
    return sum(
        hlo.shape_bytes(one.shape)
        for one in module.computations[module.entry]
        if one.opcode == "all-reduce" and "{{0,4}," in one.attributes
    )


def compared(method, arguments):
    """The largest relative difference of two executions; bytes between the islands."""
    inner = dj.exchange.mean(optax.sgd(0.1, momentum=0.5), axis_name="members")
    tx = method(inner, NESTEROV, axis_name="groups", **arguments)
    mesh = jax.make_mesh(SIZES, NAMES, axis_types=(AxisType.Auto,) * 2)
    step = step_of(tx)
    simulated, _ = trained(tx, dj.workers.simulate(step, SIZES, axis_name=NAMES))
    ran, program = trained(tx, dj.workers.run(step, mesh, axis_name=NAMES))
    pairs = zip(jax.tree.leaves(simulated), jax.tree.leaves(ran), strict=True)
    error = max(np.abs(a - b).max() / (1 + np.abs(a).max()) for a, b in pairs)
    return float(error), bytes_between(program)


if __name__ == "__main__":
    print(json.dumps({name: compared(*case) for name, case in CASES.items()}))
