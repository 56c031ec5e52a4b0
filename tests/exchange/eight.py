"""One of the processes in which eight workers train; prints their parameters.

python -m tests.exchange.eight PROCESS PROCESSES PORT
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj

STEPS, WORKERS, INPUTS = 50, 8, 4
RATE, DELAY = 0.1, 2
WEIGHT_DECAY = 0.1

# what the loop of `oracle.train` is told of each of `transformations`
OPTIONS = {
    "mean": {},
    "late and overlapped": {
        "overlapped": True,
        "delay": lambda worker, step: DELAY,
    },
    "a delay a worker": {
        "delay": lambda worker, step: worker % 4,
        "weight": lambda tau: 0.5**tau,
    },
}


def transformations():
    """By name; made once the devices are known."""
    adam = optax.adam(RATE)
    weighted = dj.exchange.mean(adam, weight=lambda tau: 0.5**tau)
    per_worker = dj.delays.per_worker(np.arange(WORKERS) % 4)
    return {
        "mean": dj.exchange.mean(adam),
        "late and overlapped": dj.delayed(dj.exchange.overlapped_mean(adam), DELAY),
        "a delay a worker": dj.delayed(weighted, per_worker, max_delay=3),
    }


def data():
    """Rows [T, P, 3, inputs + 1]; the last column is a label, 1 or -1."""
    rows = np.random.default_rng(1).normal(size=(STEPS, WORKERS, 3, INPUTS + 1))
    rows[..., -1] = np.sign(rows[..., -1])
    return rows


def start():
    """Parameters [inputs]."""
    return np.random.default_rng(2).normal(size=INPUTS)


def loss(x, rows):
    """Logistic regression, strongly convex."""
    margins = rows[:, -1] * (rows[:, :-1] @ x)
    return jnp.mean(jnp.log1p(jnp.exp(-margins))) + WEIGHT_DECAY / 2 * jnp.sum(x**2)


def step_of(tx):
    """A worker's step."""

    def step(state, batch):
        x, opt_state = state
        grads = jax.grad(loss)(dj.workers.vary(x), batch)
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    return step


def main(process, processes, port):
    """Trains each composition on this process's share of eight devices."""
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
        workers = dj.workers.run(step_of(tx), mesh)
        x = jnp.asarray(start())
        shapes = jax.ShapeDtypeStruct(batches.shape[1:], batches.dtype)
        split = workers.init((x, tx.init(x)), shapes)
        train = jax.jit(lambda s, b, w=workers: jax.lax.scan(w.step, s, b)[0])
        split = train(split, placed)
        print(json.dumps({name: np.asarray(split.state[0]).tolist()}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
