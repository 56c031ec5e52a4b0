import jax
import numpy as np
import pytest

import delayjax as dj
from tests.eight import processes, quadratics
from tests.exchange import oracle
from tests.support.commands import free_port, printed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found_by():
    """What each process has found."""
    port, command = free_port(), ("-m", "tests.eight.processes")
    return printed(*([*command, i, port] for i in range(processes.PROCESSES)))


def assert_found(seen, expected, atol):
    assert set(seen) == set(expected)
    for name, x in expected.items():
        np.testing.assert_allclose(seen[name], x, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("across", [2, 4])
def test_exchanged_gradients_follow_a_numpy_loop(found_by, across):
    task = quadratics.gradient, np.ones(5), quadratics.minima()
    expected = {
        name: oracle.train(*task, oracle.adam(quadratics.RATE), **options)[-1]
        for name, options in quadratics.OPTIONS.items()
    }
    for result in found_by[:across]:
        assert_found(result[f"gradients {across}"], expected, atol=1e-10)


def test_averaged_models_are_the_simulated_ones(found_by):
    def workers_of(step):
        return dj.workers.simulate(step, quadratics.WORKERS)

    with jax.enable_x64(True):
        expected = processes.trained("models", workers_of, quadratics.minima())
    for result in found_by[:2]:
        assert_found(result["models 2"], expected, atol=1e-12)
