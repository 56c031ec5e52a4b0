"""Workers in groups, simulated and on devices: parameters at the end; a NumPy loop.

    python -m tests.eight.slices DEVICES [PROCESS PORT]

prints {"workers, groups": parameters} of runs on so many devices, of this process or of
two.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments import Experiment, on_devices, tasks
from experiments.running import execution
from experiments.running.programs import programs
from experiments.running.trainer import Trainer

RATE, UPDATES, INPUTS = 0.1, 6, 3
SHAPES = [(8, 2), (8, 8), (16, 2), (32, 16)]  # workers, groups


def two_levels(exchange=dj.exchange.overlapped_mean):
    """Fresh in a group; between groups one step late, or by `exchange`."""
    between = exchange(optax.sgd(RATE), axis_name="groups")
    return dj.exchange.mean(between, axis_name="members")


def uneven():
    """The second half of the groups is one update late, so that groups differ."""

    def delay(step):
        group = jax.lax.axis_index("groups")
        return 2 * group // jax.lax.axis_size("groups")

    server = dj.exchange.mean(optax.sgd(RATE), axis_name="groups")
    late = dj.delayed(server, delay, max_delay=1)
    return dj.exchange.mean(late, axis_name="members")


def rows(start, stop, examples):
    """Inputs and targets [updates, examples, INPUTS + 1]."""
    shape = (UPDATES, examples, INPUTS + 1)
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)[start:stop]


def task(examples):
    """Least squares."""

    def loss(params, batch):
        return jnp.mean((batch[:, :-1] @ params - batch[:, -1]) ** 2)

    def batches(seed, start, stop, part=slice(None)):
        return rows(start, stop, examples)[:, part]

    return tasks.Task(
        init=lambda key: jnp.ones(INPUTS),
        loss=loss,
        batches=batches,
        evaluate=lambda params: {"train_loss": loss(params, rows(0, 1, examples)[0])},
        examples=examples,
    )


def gradients(params, update, workers):
    """The gradients of all workers, [workers, INPUTS], each from two examples."""
    examples = np.float64(rows(update, update + 1, 2 * workers)[0])
    inputs, targets = np.split(examples.reshape(workers, 2, -1), [INPUTS], axis=-1)
    missed = inputs @ params - targets[..., 0]
    return (inputs * missed[..., None]).mean(1) * 2


def of_groups(params, update, workers, groups):
    """The mean gradient of the members of each group, [groups, INPUTS]."""
    grads = gradients(params, update, workers)
    return grads.reshape(groups, workers // groups, INPUTS).mean(1)


def trained(kind, make, workers, groups):
    """The last state of a run of `optimizer` or `on_devices`."""
    experiment = Experiment(
        **dict(question="?", task=task(2 * workers), updates=UPDATES, seeds=1),
        training=kind(make, workers=workers, groups=groups),
        evaluate_every=UPDATES,
    )
    (program,) = programs(experiment)
    trainer = Trainer(program)
    given = trainer.feed.given(0, UPDATES)
    state, _ = trainer.run_chunk(trainer.init(), given, np.int32(UPDATES))
    return state


def params_of(state):
    """The parameters, [INPUTS]."""
    return np.asarray(execution.held(state).model.params)[0, 0]


def main(devices, process=None, port=None):
    """Trains on devices, and prints the parameters."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    shapes = SHAPES
    if port is not None:
        jax.distributed.initialize(f"localhost:{port}", 2, process)
        shapes = [(4, 2), (8, 2)]
    assert len(jax.local_devices()) == devices
    result = {}
    for workers, groups in shapes:
        state = trained(on_devices, uneven, workers, groups)
        result[f"{workers}, {groups}"] = params_of(state).tolist()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
