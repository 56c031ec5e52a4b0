"""A folder's records are of one computation: what else is computed is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import delayjax as dj
from experiments import Experiment, Simulation, along, figures, run
from experiments.tasks.task import Task
from tests.support.training_runs import NOISY


def experiment(updates=8, *, make=None, task=NOISY, **changes):
    """Two cells and two seeds of a quadratic."""
    options = dict(
        question="?",
        task=task,
        training=make or (lambda learning_rate: optax.sgd(learning_rate)),
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


def shifted(shift):
    """Other data under the same name."""

    def batches(seed, start, stop):
        return NOISY.batches(seed, start, stop) + shift

    return Task(NOISY.init, NOISY.loss, batches, NOISY.evaluate)


def following(seconds):
    cluster = dj.cluster.Cluster(3, dj.cluster.uniform(1.0, seconds))
    return along(Simulation(cluster, dj.cluster.protocols.round_robin()), optax.sgd)


def squared(model, task):
    return jnp.square(model.params).sum()


def cubed(model, task):
    return (model.params**3).sum()


# name: what is run first, then; and what the error names, None where it is the same run
SECOND = {
    "more updates": (experiment(), experiment(16), None),
    "another text": (experiment(), experiment(question="!", notes="."), None),
    "another figure": (
        experiment(),
        experiment(figures=[figures.curves("train_loss")]),
        None,
    ),
    "a metric more": (experiment(), experiment(measure={"square": squared}), None),
    "more updates of a schedule with its own end": (
        experiment(make=cosine(100)),
        experiment(16, make=cosine(100)),
        None,
    ),
    "fewer updates": (experiment(), experiment(4), "updates of all: 8 there, 4 now"),
    "more updates of a schedule that ends with them": (
        experiment(make=cosine(8)),
        experiment(16, make=cosine(16)),
        "the update of all: other code, constants or data",
    ),
    "another constant": (
        experiment(make=scaled(1.0)),
        experiment(make=scaled(1.5)),
        "the update of all",
    ),
    "another array": (
        experiment(make=masked([1, 1])),
        experiment(make=masked([1, 2])),
        "the update of all",
    ),
    "another array inside of a compiled function": (
        experiment(make=masked([1, 1], jax.jit)),
        experiment(make=masked([1, 2], jax.jit)),
        "the update of all",
    ),
    "another rule": (
        experiment(make=scaled(1.0)),
        experiment(make=optax.adam),
        "the update of all",
    ),
    "other data": (
        experiment(task=shifted(0.0)),
        experiment(task=shifted(0.5)),
        "the data of all",
    ),
    "another metric of the same name": (
        experiment(measure={"own": squared}),
        experiment(measure={"own": cubed}),
        "the metric own of all",
    ),
    "another cluster": (
        experiment(training=following(2.0)),
        experiment(training=following(3.0)),
        "the traces of all",
    ),
    "more updates along a cluster": (
        experiment(training=following(2.0)),
        experiment(16, training=following(2.0)),
        None,
    ),
}


@pytest.mark.parametrize("name", SECOND)
def test_a_folder_goes_on_with_what_it_has_and_refuses_another(name, tmp_path):
    first, second, refused = SECOND[name]
    there = run(first, str(tmp_path / "one")).results
    if refused:
        with pytest.raises(ValueError, match=refused):
            run(second, str(tmp_path / "one"))
        kept = pd.read_csv(tmp_path / "one" / "results.csv")
        assert kept["updates"].tolist() == there["updates"].tolist()
        anew = run(second, str(tmp_path / "one"), anew=True)
    else:
        anew = run(second, str(tmp_path / "one"))
    whole = run(second, str(tmp_path / "two"))
    pd.testing.assert_frame_equal(anew.results, whole.results, rtol=0)
