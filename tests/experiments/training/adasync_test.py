"""AdaSync as a kind of training, against counts that one can do in the head."""

import math

import pytest

import delayjax as dj
from experiments import Experiment, run, tasks
from experiments.training.adasync import AdaSync

UPDATES, K, SECONDS = 5, 2, 3.0


def measured(name):
    return lambda model, task: 1.0 * model.state[name]


@pytest.fixture(scope="module")
def ended():
    """K of four workers kept, all of whose gradients take equally long."""
    cluster = dj.cluster.Cluster(4, dj.cluster.constant(SECONDS))
    asked = Experiment(
        question="Does it count?",
        task=tasks.quadratic((1.0,)),
        training=AdaSync(cluster, K, math.inf, UPDATES),
        grid={"learning_rate": (0.1,)},
        seeds=1,
        updates=1,
        metrics={
            "elapsed_seconds": measured("seconds"),
            "gradients": measured("gradients"),
            "k": measured("k"),
        },
    )
    (row,) = run(asked).results.to_dict("records")
    return row


def test_a_kept_k_uses_as_many_gradients_at_each_update(ended):
    assert ended["updates"] == UPDATES
    assert ended["k"] == K and ended["gradients"] == K * UPDATES


def test_seconds_are_measured_in_the_state(ended):
    assert ended["elapsed_seconds"] == pytest.approx(SECONDS * UPDATES)
    assert ended["staleness_max"] == 0


def test_the_loss_falls_as_sgd_of_a_quadratic_makes_it_fall(ended):
    """Without noise each update multiplies the distance by 0.9."""
    assert ended["train_loss"] == pytest.approx(0.5 * 0.9 ** (2 * UPDATES), rel=1e-5)
