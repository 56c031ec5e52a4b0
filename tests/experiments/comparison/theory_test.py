"""The expected loss of delayed SGD, against simulation and against the limit."""

import numpy as np
import pytest

import delayjax as dj
from experiments import tasks
from experiments.comparison import clusters, rules
from experiments.comparison.compare import compare
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from tests.experiments.comparison.bowl import Bowl
from tests.support.training_runs import final_loss

pytestmark = pytest.mark.runs

EQUAL = {clusters.NO_DELAY: 0, "constant, 4": 4, "constant, 16": 16}  # delays
BOWL = Bowl((0.2, 1.0), noise=0.3, updates=60)


@pytest.mark.parametrize(("cluster", "delay"), EQUAL.items())
def test_it_is_the_mean_of_trainings(cluster, delay):
    """The trainings of the comparison itself, of 200 seeds."""
    task = tasks.quadratic(BOWL.curvatures, noise=BOWL.noise)
    points = [(0.06, 1.0), (0.02, 0.3)]  # learning rate, decay
    experiment = compare(
        [],
        task,
        {"sgd": rules.OPTIMIZERS["sgd"]},
        clusters={cluster: clusters.clusters()[cluster]},
        updates=BOWL.updates,
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
        expected = BOWL.expected_loss(delay, rate, decay)
        assert abs(mean - expected) < 4 * errors[i]
        assert errors[i] < 0.1 * expected


@pytest.mark.parametrize("delay", [0, 4, 16])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_grows_beyond_the_limit_and_falls_below(delay, momentum):
    limit = dj.stability.Dynamics(delay, momentum=momentum).step_limit()
    decay = 1 - momentum  # an average of gradients: its step is larger by 1/decay
    loss = [
        Bowl([1.0], noise=0.0, updates=3000).expected_loss(delay, a / decay, decay)
        for a in (0.9 * limit, 1.1 * limit)
    ]
    assert loss[0] < 0.1 and loss[1] > 10


def test_the_least_loss_is_a_minimum():
    least, rate, decay = BOWL.least(4)
    for factor in (0.9, 1.1):
        assert BOWL.expected_loss(4, factor * rate, decay) > least
        assert BOWL.expected_loss(4, rate, min(factor * decay, 1.0)) >= least


def test_two_updates_are_those_of_a_hand():
    """x_2 = x_1 - eta m_2, whose noises z_0 and z_1 are independent."""
    eta, d, lam, sigma = 0.4, 0.3, 0.7, 2.0
    step = eta * d
    mean = 1 - step * lam  # x_1
    mean = mean - eta * ((1 - d) * d * lam + d * lam * mean)
    of_first, of_second = step * sigma * (1 + (1 - d) - step * lam), step * sigma
    expected = 0.5 * lam * (mean**2 + of_first**2 + of_second**2)
    result = Bowl([lam], noise=sigma, updates=2).expected_loss(0, eta, d)
    assert result == pytest.approx(expected, rel=1e-12)
