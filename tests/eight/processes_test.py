import jax
import numpy as np
import pytest

import delayjax as dj
from tests.eight import gradients, models, processes
from tests.exchange import oracle
from tests.support.commands import free_port, printed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found_by():
    """What each process has found."""
    port, command = free_port(), ("-m", "tests.eight.processes")
    return printed(*([*command, i, port] for i in range(processes.PROCESSES)))


@pytest.mark.parametrize("across", [2, 4])
def test_exchanged_gradients_follow_a_numpy_loop(found_by, across):
    expected = {
        name: oracle.train(
            *(gradients.gradient, gradients.start(), gradients.data()),
            oracle.adam(gradients.RATE),
            **options,
        )[-1]
        for name, options in gradients.OPTIONS.items()
    }
    for found in found_by[:across]:
        seen = found[f"gradients {across}"]
        assert set(seen) == set(expected)
        for name, x in expected.items():
            np.testing.assert_allclose(seen[name], x, rtol=0, atol=1e-10)


def test_averaged_models_are_the_simulated_ones(found_by):
    def workers_of(step):
        return dj.workers.simulate(step, processes.WORKERS)

    with jax.enable_x64(True):
        simulated = processes.trained(models, workers_of, models.data())
    for found in found_by[:2]:
        seen = found["models 2"]
        assert set(seen) == set(simulated)
        for name, x in simulated.items():
            np.testing.assert_allclose(seen[name], x, rtol=0, atol=1e-12)
