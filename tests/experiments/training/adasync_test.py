"""AdaSync as a kind of training, against counts that one can do in the head."""

import math

import pytest

import delayjax as dj
from experiments import Experiment, run, tasks
from experiments.training.adasync import AdaSync

pytestmark = pytest.mark.runs

UPDATES, K, SECONDS = 5, 2, 3.0


def measured(name):
    return lambda model, task: 1.0 * model.state[name]


def test_a_kept_k_has_as_many_gradients_and_sgd_s_loss_at_each_update():
    """K of four workers, all of whose gradients take equally long, without noise."""
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
    assert row["updates"] == UPDATES
    assert row["k"] == K and row["gradients"] == K * UPDATES
    assert row["elapsed_seconds"] == pytest.approx(SECONDS * UPDATES)
    assert row["staleness_max"] == 0
    # each update multiplies the distance by 0.9
    assert row["train_loss"] == pytest.approx(0.5 * 0.9 ** (2 * UPDATES), rel=1e-5)
