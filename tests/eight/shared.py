"""Workers of several devices each: a run that goes on elsewhere after a checkpoint.

    python -m tests.eight.shared FOLDER

prints how far runs with eight devices, of which some go on on four, end apart.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

import delayjax as dj
from configs import tokens_pod
from experiments import Experiment, on_devices, tasks
from experiments.host import checkpoints
from experiments.running import execution
from experiments.running.programs import programs
from experiments.running.trainer import Trainer

UPDATES, HALF, INPUTS, HIDDEN = 6, 2, 64, 256


def task(examples):
    """A perceptron, whose largest leaf has 2^14 entries."""

    def drawn(start, stop):
        shape = UPDATES, examples, INPUTS
        return np.random.default_rng(1).normal(size=shape)[start:stop].astype("f4")

    def loss(params, batch):
        hidden = jnp.tanh(batch @ params["inner"] + params["bias"][None])
        return jnp.mean((hidden @ params["outer"] - batch.sum(1)) ** 2)

    def init(key):
        inner = jax.random.normal(key, (INPUTS, HIDDEN)) / INPUTS**0.5
        return {
            "inner": inner,
            "bias": jnp.zeros(HIDDEN),
            "outer": jnp.ones(HIDDEN) / HIDDEN,
        }

    return tasks.Task(
        init=init,
        loss=loss,
        batches=lambda seed, a, b, part=slice(None): drawn(a, b)[:, part],
        evaluate=lambda params: {"train_loss": loss(params, drawn(0, 1)[0])},
        examples=examples,
    )


def make():
    """Two updates late, one of them on the way."""
    return dj.delayed(
        dj.exchange.overlapped_mean(optax.sgd(0.02, momentum=0.9)), 1, keep_params=True
    )


def make_in_groups():
    """The same, of two members each; each holds a share of what is on the way."""
    tx = optax.sgd(0.02, momentum=0.9)
    between = dj.exchange.late_between_groups(tx, 2, keep_params=True)
    return dj.delayed(between, 1, keep_params=True)


def trainer(workers, model, count=None, examples=16, groups=1, **options):
    """On the first `count` devices."""
    made = make if groups == 1 else make_in_groups
    training = on_devices(made, workers=workers, model=model, groups=groups, **options)
    experiment = Experiment(
        **dict(question="?", task=task(examples), updates=UPDATES, seeds=1),
        training=training,
        evaluate_every=UPDATES,
    )
    return trainer_of(experiment, count)


def trainer_of(experiment, count=None):
    """On the first `count` devices."""
    (program,) = programs(experiment)
    return Trainer(program, devices=jax.devices()[:count])


def language_model(shard, model, count=None):
    """The pod's language model, small; its embedding has 2^14 entries."""
    config = tokens_pod.get_config()
    small = dict(vocab=128, width=128, depth=1, heads=2, context=16, batch_size=16)
    last = dict(updates=UPDATES, evaluate_every=UPDATES)
    config.update(small | last | dict(workers=4, model=model, dtype="float32"))
    config.shards = shard
    return trainer_of(tokens_pod.experiment(config), count)


def trained(made, state, start, stop):
    """The state after some updates more, and the losses."""
    given = made.feed.given(start, stop)
    state, chunk = made.run_chunk(state, given, np.int32(stop - start))
    return state, np.asarray(made.chunk_report(state, chunk)[0].loss)[: stop - start]


def whole(made):
    """Of a run that nothing stops: its last state, and the losses."""
    return trained(made, made.init(), 0, UPDATES)


def resumed(first, second, folder):
    """Of a run that goes on as `second` from a checkpoint of `first`."""
    state, before = trained(first, first.init(), 0, HALF)
    kept = checkpoints.Checkpoints(folder)
    kept.save(HALF, state)
    state = kept.restore(second.shapes())
    kept.close()
    state, after = trained(second, state, HALF, UPDATES)
    return state, np.concatenate([before, after])


def difference(ours, theirs):
    """The largest of all entries, relative where they are above 1."""
    largest = 0.0
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        a, b = np.float64(a), np.float64(b)
        largest = max(largest, float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)))))
    return largest


def values(run):
    """The leaves on the host."""
    state, losses = run
    return jax.device_get((execution.held(state), losses))


def main(folder):
    """Trains and prints."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    shard = f"{folder}/shard.bin"
    tokens = np.random.default_rng(0).zipf(1.5, 4000).clip(max=127)
    epath.Path(shard).write_bytes(tokens.astype("<u2").tobytes())
    result = {}
    for name, of in {
        "perceptron": functools.partial(trainer, 4),
        "in groups": functools.partial(trainer, 4, groups=2),
        "language model": functools.partial(language_model, shard),
    }.items():
        expected = values(whole(of(2)))
        runs = {
            "without a model axis": whole(of(1, 4)),
            "resumed on 4 devices": resumed(of(2), of(2, 4), f"{folder}/{name} 1"),
            "resumed, model=1": resumed(of(2), of(1, 4), f"{folder}/{name} 2"),
        }
        for which, run in runs.items():
            result[f"{name}, {which}"] = difference(values(run), expected)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
