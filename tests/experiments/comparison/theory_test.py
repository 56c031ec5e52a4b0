"""The expected loss of delayed SGD, against simulation and against the limit."""

import numpy as np
import pytest

import delayjax as dj
from experiments import tasks
from experiments.comparison import cures, trials
from experiments.comparison.page import EQUAL
from experiments.comparison.theory import Bowl

BOWL = Bowl((0.2, 1.0), noise=0.3, updates=60)


@pytest.mark.parametrize(("cluster", "delay"), EQUAL.items())
def test_it_is_the_mean_of_trainings(cluster, delay):
    """The trainings of the comparison itself, of 200 seeds."""
    task = tasks.quadratic(BOWL.curvatures, noise=BOWL.noise)
    setting = trials.Setting(task, budget=BOWL.updates)
    numbers = {"learning_rate": [0.06, 0.02], "decay": [1.0, 0.3]}
    given = {name: np.array(own) for name, own in numbers.items()}
    ends = [
        setting.losses(cures.OPTIMIZERS["sgd"], cures.BASELINE, cluster, given, seed)
        for seed in range(200)
    ]
    means, errors = np.mean(ends, axis=0), np.std(ends, axis=0) / np.sqrt(len(ends))
    for i, mean in enumerate(means):
        rate, decay = (own[i] for own in numbers.values())
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
