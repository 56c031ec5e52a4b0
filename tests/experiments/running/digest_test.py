"""A digest belongs to one computation: another computation has another one."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import pallas

import delayjax as dj
from experiments import Experiment, Simulation, along, figures, optimizer
from experiments.run import prepared
from experiments.running import digest
from experiments.tasks.task import Task
from tests.support.commands import ROOT
from tests.support.training_runs import NOISY

pytestmark = pytest.mark.runs

UPDATES = 8


def experiment(make=optax.sgd, updates=UPDATES, *, task=NOISY, **changes):
    """Two cells and two seeds of a quadratic."""
    options = dict(
        question="?",
        task=task,
        training=make,
        grid={"learning_rate": (0.05, 0.1)},
        seeds=2,
        updates=updates,
        evaluate_every=4,
    )
    return Experiment(**(options | changes))


def cosine(updates):
    def make(learning_rate):
        return optax.sgd(optax.cosine_decay_schedule(learning_rate, updates))

    return make


def scaled(factor):
    """A training with this constant in its code."""
    return lambda learning_rate: optax.chain(
        optax.sgd(learning_rate), optax.scale(factor)
    )


def masked(mask, compiled=lambda function: function):
    """A training with this array as a constant, in a function that may be compiled."""
    weights = np.asarray(mask, np.float32)
    weighted = compiled(lambda u: u * weights)
    return lambda learning_rate: optax.chain(
        optax.sgd(learning_rate), optax.stateless(lambda u, p: weighted(u))
    )


def shifted(shift, at):
    """Other data in one update; the names are the same."""

    def batches(seed, start, stop):
        return NOISY.batches(seed, start, stop) + shift * (start == at)

    return Task(NOISY.init, NOISY.loss, batches, NOISY.evaluate)


def of_two_workers(shift):
    """Other data only for the second worker, which has the last four examples."""

    def batches(seed, start, stop, examples=slice(None)):
        drawn = np.zeros((stop - start, 8, 2), np.float32)
        drawn[:, 4:] += shift
        return drawn[:, examples]

    task = Task(NOISY.init, linear, batches, NOISY.evaluate, examples=8)

    def mean(learning_rate):
        return dj.exchange.mean(optax.sgd(learning_rate))

    return experiment(optimizer(mean, workers=2), task=task)


def linear(params, batch):
    return (params * batch.mean(0)).sum()


def of_clients(shift):
    """Other data only for the last of three clients, who is not in updates 0, 4, 7."""

    def batches_of(seed, start, workers):
        return np.where(workers == 2, shift, 0.0)[:, None, None] * np.ones((1, 4, 2))

    task = dataclasses.replace(NOISY, loss=linear, batches_of=batches_of)
    return experiment(following(2.0), task=task)


def following(seconds, workers=3):
    cluster = dj.cluster.Cluster(workers, dj.cluster.uniform(1.0, seconds))
    return along(Simulation(cluster, dj.cluster.protocols.round_robin()), optax.sgd)


def squared(model, task):
    return jnp.square(model.params).sum()


def cubed(model, task):
    return (model.params**3).sum()


SQUARED, CUBED = {"metrics": {"own": squared}}, {"metrics": {"own": cubed}}
WHOLE, LONG = experiment(), 2 * UPDATES
DATA, UPDATE, GRID = {"data"}, {"update"}, {"grid and seeds"}
# name: (first experiment, second one, the parts of the digest that differ)
SECOND = {
    "more updates": (WHOLE, experiment(updates=LONG), set()),
    "another text": (WHOLE, experiment(question="!"), set()),
    "another figure": (WHOLE, experiment(figures=[figures.curves()]), set()),
    "a metric more": (WHOLE, experiment(**SQUARED), set()),
    "more updates of a schedule with its own end": (
        *(experiment(cosine(100), updates) for updates in (UPDATES, LONG)),
        set(),
    ),
    "more updates of a schedule that ends with them": (
        *(experiment(cosine(updates), updates) for updates in (UPDATES, LONG)),
        UPDATE,
    ),
    "another constant": (*map(experiment, map(scaled, (1.0, 1.5))), UPDATE),
    "another array": (*map(experiment, map(masked, ([1, 1], [1, 2]))), UPDATE),
    "another array inside of a compiled function": (
        *(experiment(masked(mask, jax.jit)) for mask in ([1, 1], [1, 2])),
        UPDATE,
    ),
    "another rule": (WHOLE, experiment(optax.adam), UPDATE),
    **{
        f"other data in the {name} update": (
            *(experiment(task=shifted(shift, at=at)) for shift in (0.0, 0.5)),
            DATA,
        )
        for name, at in (("first", 0), ("last", UPDATES - 1), ("mid", UPDATES // 2))
    },
    "other data of another worker": (*map(of_two_workers, (0.0, 0.5)), DATA),
    "other data of another client": (*map(of_clients, (0.0, 0.5)), DATA),
    # these are arguments of one compiled program
    "another grid": (WHOLE, experiment(grid={"learning_rate": (0.05, 0.2)}), GRID),
    "other seeds": (WHOLE, experiment(seeds=(3, 4)), GRID | DATA),
    "another metric of the same name": (
        *(experiment(**SQUARED), experiment(**CUBED)),
        {"metric own"},
    ),
    "another cluster": (
        *map(experiment, map(following, (2.0, 3.0))),
        {"traces", "clocks"},
    ),
    # its checkpoints have other shapes: it cannot continue the folder of the first
    "more updates that need a deeper history": (
        *(experiment(following(2.0, workers=64), updates) for updates in (8, 64)),
        UPDATE,
    ),
    "more updates along a cluster": (
        *(experiment(following(2.0), updates) for updates in (UPDATES, LONG)),
        set(),
    ),
}


@functools.cache
def whole():
    """The digest of the experiment that many cases change."""
    return digest.of_trainer(*prepared(WHOLE))(UPDATES)


@pytest.mark.parametrize("name", SECOND)
def test_what_computes_the_same_first_updates_has_their_digest(name):
    *both, expected = SECOND[name]
    parts, now = (
        whole() if one is WHOLE else digest.of_trainer(*prepared(one))(UPDATES)
        for one in both
    )
    differing = {part for part in {*parts} & {*now} if parts[part] != now[part]}
    assert differing == expected
    assert {"update", "data", "traces"} <= {*parts} & {*now}


class Sine:
    """An object whose text has its address."""

    def __call__(self, x):
        return np.sin(x)


def written():
    """The digest of a function with a callback, a set of axes and constants."""
    weights = jnp.arange(2000, dtype=jnp.float32) / 3

    def function(x):
        indexed = x[jnp.array([2, 0]), :]
        chosen = jax.lax.cond(x[0, 0] > 0, jnp.sum, jnp.max, x * 0.1234567890123)
        drawn = jax.random.normal(jax.random.key(3), (2,))
        shape = jax.ShapeDtypeStruct((), "float32")
        called = jax.pure_callback(Sine(), shape, chosen, vmap_method="sequential")
        return weights.sum(), indexed, drawn.sum(), called

    axes = ("workers", "model", "groups")  # a set of axes is a parameter
    mesh = jax.make_mesh((1, 1, 1), axes, (jax.sharding.AxisType.Auto,) * 3)
    spec = jax.P(*axes)
    divided = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    both = jax.jit(lambda x: (jax.vmap(function)(x), divided(x)))
    return digest.hash_of(both.trace(jnp.ones((2, 3, 3))))


def test_a_digest_does_not_depend_on_the_process_or_on_the_checkout(tmp_path):
    code = "import tests.experiments.running.digest_test as t; print(t.written())"
    (tmp_path / "elsewhere").symlink_to(ROOT)
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(tmp_path / "elsewhere"), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
    )
    assert process.stdout == written() + "\n", process.stderr


def kernel(line, factor):
    """A function with a Pallas kernel from a line of a file; its text is bytes."""
    text = f"def multiply(x, y): y[...] = x[...] * {factor}"
    names = {}
    exec(compile("\n" * line + text, f"file_{line}.py", "exec"), names)

    def function(x):
        return pallas.pallas_call(names["multiply"], jax.typeof(x))(x)

    return jax.jit(function).trace(jnp.ones((128, 128)))


def test_a_digest_of_a_kernel_does_not_depend_on_its_file(monkeypatch):
    lower = functools.partialmethod(
        jax.stages.Traced.lower, lowering_platforms=("tpu",)
    )
    monkeypatch.setattr(jax.stages.Traced, "lower", lower)
    first, moved, edited = (
        digest.hash_of(kernel(*one)) for one in [(0, 2.0), (7, 2.0), (0, 3.0)]
    )
    assert first == moved != edited


def test_a_digest_is_of_each_constant_and_literal():
    long = jnp.arange(2000, dtype=jnp.float32) / 3
    kinds = {
        "number": lambda x: x + 1.0,
        "another number": lambda x: x + (1.0 + 2**-20),
        "order": lambda x: 1.0 + x,
        "constant": lambda x: x + long.sum(),
        "its middle": lambda x: x + long.at[1000].add(1.0).sum(),
        "the same variable": lambda x: jnp.sin(x) * jnp.sin(x),
        "axis": lambda x: x.sum(0),
        "another axis": lambda x: x.sum(1),
        "mode": lambda x: x.at[7].get(mode="clip"),
        "another mode": lambda x: x.at[7].get(mode="fill"),
        "branches": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        "branches turned": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
        "a large number": lambda x: x + jnp.uint32(2**31 + 1).astype(jnp.float32),
        "dtype": lambda x: x.astype(jnp.bfloat16),
        "output": lambda x: (x, jnp.sin(x)),
        "output turned": lambda x: (jnp.sin(x), x),
    }
    x = jnp.ones((3, 3))
    hashes = {
        name: digest.hash_of(jax.jit(function).trace(x))
        for name, function in kinds.items()
    }
    assert len({*hashes.values()}) == len(kinds), hashes
    for name, function in kinds.items():
        copy = digest.hash_of(jax.jit(function).trace(x))
        assert copy == hashes[name]
