"""A fingerprint is of one computation: what else is computed has another."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import Experiment, Simulation, along, figures
from experiments.run import prepared
from experiments.running import digest
from experiments.tasks.task import Task
from tests.support.training_runs import NOISY

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
    """A constant of the code."""
    return lambda learning_rate: optax.chain(
        optax.sgd(learning_rate), optax.scale(factor)
    )


def masked(mask, compiled=lambda function: function):
    """A constant that is an array, perhaps of a function that is compiled itself."""
    weights = np.asarray(mask, np.float32)
    weighted = compiled(lambda u: u * weights)
    return lambda learning_rate: optax.chain(
        optax.sgd(learning_rate), optax.stateless(lambda u, p: weighted(u))
    )


def shifted(shift, at):
    """Other data of one update under the same name."""

    def batches(seed, start, stop):
        return NOISY.batches(seed, start, stop) + shift * (start == at)

    return Task(NOISY.init, NOISY.loss, batches, NOISY.evaluate)


def following(seconds):
    cluster = dj.cluster.Cluster(3, dj.cluster.uniform(1.0, seconds))
    return along(Simulation(cluster, dj.cluster.protocols.round_robin()), optax.sgd)


def squared(model, task):
    return jnp.square(model.params).sum()


def cubed(model, task):
    return (model.params**3).sum()


SQUARED, CUBED = {"own": squared}, {"own": cubed}
# name: what is run first, then, and the parts that differ, as far as both have them
SECOND = {
    "more updates": (experiment(), experiment(updates=16), set()),
    "another text": (experiment(), experiment(question="!", notes="."), set()),
    "another figure": (
        experiment(),
        experiment(figures=[figures.curves("train_loss")]),
        set(),
    ),
    "a metric more": (experiment(), experiment(measure=SQUARED), set()),
    "more updates of a schedule with its own end": (
        experiment(cosine(100)),
        experiment(cosine(100), 16),
        set(),
    ),
    "more updates of a schedule that ends with them": (
        experiment(cosine(8)),
        experiment(cosine(16), 16),
        {"update"},
    ),
    "another constant": (
        experiment(scaled(1.0)),
        experiment(scaled(1.5)),
        {"update"},
    ),
    "another array": (
        experiment(masked([1, 1])),
        experiment(masked([1, 2])),
        {"update"},
    ),
    "another array inside of a compiled function": (
        experiment(masked([1, 1], jax.jit)),
        experiment(masked([1, 2], jax.jit)),
        {"update"},
    ),
    "another rule": (
        experiment(),
        experiment(optax.adam),
        {"start", "update", "evaluation"},
    ),
    "other data in the first update": (
        experiment(task=shifted(0.0, at=0)),
        experiment(task=shifted(0.5, at=0)),
        {"data"},
    ),
    "other data in the last update": (
        experiment(task=shifted(0.0, at=UPDATES - 1)),
        experiment(task=shifted(0.5, at=UPDATES - 1)),
        {"data"},
    ),
    "another metric of the same name": (
        experiment(measure=SQUARED),
        experiment(measure=CUBED),
        {"metric own"},
    ),
    "another cluster": (
        experiment(following(2.0)),
        experiment(following(3.0)),
        {"traces"},
    ),
    "more updates along a cluster": (
        experiment(following(2.0)),
        experiment(following(2.0), 16),
        set(),
    ),
}


@pytest.mark.parametrize("name", SECOND)
def test_what_computes_the_same_first_updates_has_their_fingerprint(name):
    first, second, expected = SECOND[name]
    there, now = (digest.of(*prepared(own))(UPDATES) for own in (first, second))
    differing = {part for part in {*there} & {*now} if there[part] != now[part]}
    assert differing == expected
    assert {"update", "data", "traces"} <= {*there} & {*now}
