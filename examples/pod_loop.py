"""A pjit loop whose gradients are summed one step late: put in your loss and data.

    python examples/pod_loop.py /tmp/run 20      # 20 steps
    python examples/pod_loop.py /tmp/run 40 0    # 20 more, without delay

The second may have other devices. Several hosts need `jax.distributed.initialize()`.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from etils import epath
from jax import NamedSharding, P

import delayjax as dj


def loss(params, x):
    """The loss of a batch: put in the loss of your model."""
    for up, down in params:
        x = x + jnp.tanh(x @ up) @ down
    return jnp.mean(x.astype(jnp.float32) ** 2)


def begin(tx, mesh, width=64, dtype=jnp.float32):
    """The first (params, opt_state) on the mesh; call it outside of `jit`."""
    w = jax.random.normal(jax.random.key(0), (4, width, width), dtype) * width**-0.5
    split, whole = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P())
    params = jax.device_put([(w[0], w[1]), (w[2], w[3])], split)
    state = params, tx.init(params)
    return jax.tree.map(lambda x: x if x.committed else jax.device_put(x, whole), state)


def make_step(tx, mesh, late, places):
    """The jitted step, (state, batch) -> (state, loss), with the state in `places`."""
    grad = jax.value_and_grad(loss)
    grad_of_shards = jax.vmap(grad, (None, 0), spmd_axis_name="data")

    def step(state, batch):
        params, opt_state = state
        if late:  # the gradients of the shards are summed in the next step
            batch = batch.reshape(mesh.shape["data"], -1, *batch.shape[1:])
        losses, grads = (grad_of_shards if late else grad)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), losses.mean()

    options = dj.exchange.overlap_options(mesh.devices.flat[0]) or None
    kept = {"donate_argnums": 0, "out_shardings": (places, None)}
    return jax.jit(step, **kept, compiler_options=options)


def train(folder, steps, late=1, shards=2):
    """Continues from the last checkpoint; saves every ten steps and at the end."""
    mesh = jax.sharding.Mesh(np.reshape(jax.devices(), (shards, -1)), ("data", "fsdp"))
    txs = optax.adam(1e-3), dj.exchange.late_reduce(optax.adam(1e-3), mesh)
    state, first = begin(txs[late], mesh), 0
    places = jax.tree.map(lambda x: x.sharding, state)
    step = make_step(txs[late], mesh, late, places)
    with ocp.StandardCheckpointer() as checkpointer:
        if saved := sorted(epath.Path(folder).glob("*.[01]")):  # STEP.LATE
            first, wrote = map(int, saved[-1].name.split("."))
            params, opt_state = checkpointer.restore(saved[-1], begin(txs[wrote], mesh))
            opt_state = dj.resize_history(opt_state, state[1])  # if `late` has changed
            state = jax.device_put((params, opt_state), places)
        for t in range(first + 1, steps + 1):
            batch = np.random.default_rng(t).normal(size=(32, 64)).astype(np.float32)
            batch = jax.device_put(batch, NamedSharding(mesh, P(("data", "fsdp"))))
            state, value = step(state, batch)
            age = dj.staleness(state[1]) if late else 0
            print(f"step {t}: loss {value:.6f}, staleness {age:.0f}")
            if t % 10 == 0 or t == steps:
                checkpointer.save(epath.Path(folder) / f"{t:08}.{late}", state)


if __name__ == "__main__":
    train(sys.argv[1], *map(int, sys.argv[2:]))
