"""The mean of the comparison's trainings is the expected loss of delayed SGD."""

import numpy as np
import pytest

from experiments import tasks
from experiments.comparison import clusters, rules
from experiments.comparison.compare import compare
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from tests.support.training_runs import final_loss

pytestmark = pytest.mark.runs

EQUAL = {clusters.NO_DELAY: 0, "constant, 4": 4, "constant, 16": 16}  # delays
CURVATURES, NOISE, UPDATES = (0.2, 1.0), 0.3, 60


def expected_loss(delay, learning_rate, decay):
    """1/2 sum_i lambda_i E x_i^2 after T updates.

        m_{t+1} = (1 - d) m_t + d (lambda x_{t - tau} + sigma z_t)
        x_{t+1} = x_t - eta m_{t+1},    |x_t| = 1 for t <= 0

    is linear: the second moment S of (x_t, ..., x_{t - tau}, m_t) follows
    S <- A S A' + b b'. P equal workers have tau = P - 1.
    """
    loss = 0.0
    for curvature in CURVATURES:
        step, noise = np.eye(delay + 2, k=-1), np.zeros(delay + 2)
        step[-1] = 0.0
        step[-1, -1], step[-1, delay] = 1 - decay, decay * curvature
        step[0] = -learning_rate * step[-1]
        step[0, 0] += 1.0
        noise[-1], noise[0] = decay * NOISE, -learning_rate * decay * NOISE
        state = np.append(np.ones(delay + 1), 0.0)
        moment = np.outer(state, state)
        for _ in range(UPDATES):
            moment = step @ moment @ step.T + np.outer(noise, noise)
        loss += 0.5 * curvature * moment[0, 0]
    return loss


@pytest.mark.parametrize(("cluster", "delay"), EQUAL.items())
def test_it_is_the_mean_of_trainings(cluster, delay):
    """The trainings of the comparison itself, of 200 seeds."""
    task = tasks.quadratic(CURVATURES, noise=NOISE)
    points = [(0.06, 1.0), (0.02, 0.3)]  # learning rate, decay
    experiment = compare(
        [],
        task,
        {"sgd": rules.OPTIMIZERS["sgd"]},
        clusters={cluster: clusters.clusters()[cluster]},
        updates=UPDATES,
        seeds=200,
    )
    (program,) = programs(experiment)
    cells = [
        program.rows[0] | {"learning_rate": rate, "decay": decay}
        for rate, decay in points
    ]
    trainer = Trainer(program.with_cells(cells))
    ends = np.asarray(final_loss(trainer))
    means, errors = ends.mean(axis=0), ends.std(axis=0) / np.sqrt(len(ends))
    for i, (mean, (rate, decay)) in enumerate(zip(means, points, strict=True)):
        expected = expected_loss(delay, rate, decay)
        assert abs(mean - expected) < 4 * errors[i]
        assert errors[i] < 0.1 * expected
