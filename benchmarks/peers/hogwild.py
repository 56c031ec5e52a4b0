"""Compares Hogwild of PyTorch, whose processes race, with our simulation."""

import importlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from benchmarks.peers import racing
from benchmarks.side_by_side import Run, medians
from benchmarks.tables import NotMeasuredError, Row
from experiments import tasks

COLUMNS = {
    "processes": "{}",
    "PyTorch, us a gradient": "{:.0f}",
    "ours, us a gradient": "{:.1f}",
    "/ ours": "{:.0f}",
    "loss, PyTorch": "{:.3f}",
    "loss, ours": "{:.3f}",
}


def rows(gradients: int) -> Iterator[Row]:
    """Rows of the digits MLP: processes of PyTorch, and a simulated cluster."""
    try:
        importlib.import_module("torch")  # no extra of delayjax installs it
    except ImportError as error:
        raise NotMeasuredError("no PyTorch: pip install torch") from error
    task = tasks.digits_mlp(batch_size=32)
    params = task.init(jax.random.key(0))
    batches = jax.tree.map(np.asarray, task.batches(0, 0, gradients))

    def loss(params):
        return float(jnp.mean(jax.lax.map(lambda b: task.loss(params, b), batches)))

    def grad_fn(params, batch, key):
        return jax.value_and_grad(task.loss)(params, batch)

    for processes in (1, 2):
        raced = racing.train(params, batches, 0.1, processes)
        cluster = dj.cluster.Cluster(processes, dj.cluster.exponential(1.0))
        protocol = dj.cluster.protocols.k_async(1)
        trace = dj.cluster.simulate(cluster, protocol, gradients, seed=0)
        training = dj.replay(trace, grad_fn, optax.sgd(0.1), read_spread=1.0)
        rows = jax.tree.map(lambda leaf: leaf[:, None], batches)

        def train(training=training, rows=rows):
            return training.run(training.init(params, jax.random.key(0)), rows)[
                0
            ].params

        ends = train()
        t = medians({"ours": Run(train)}, rounds=3, warmup=0)
        yield {
            "processes": processes,
            "PyTorch, us a gradient": 1e6 * raced.seconds / gradients,
            "ours, us a gradient": 1e6 * t["ours"] / gradients,
            "/ ours": raced.seconds / t["ours"],
            "loss, PyTorch": loss(raced.params),
            "loss, ours": loss(ends),
        }
