import jax
import numpy as np
import pytest

import delayjax as dj
from tests.eight import gradients, models, processes
from tests.exchange import oracle

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def printed():
    return processes.printed()


@pytest.mark.parametrize("across", [2, 4])
def test_exchanged_gradients_follow_a_numpy_loop(printed, across):
    expected = {
        name: oracle.train(
            *(gradients.gradient, gradients.start(), gradients.data()),
            oracle.adam(gradients.RATE),
            **options,
        )[-1]
        for name, options in gradients.OPTIONS.items()
    }
    for found in printed[:across]:
        seen = found[f"gradients {across}"]
        assert set(seen) == set(expected)
        for name, x in expected.items():
            np.testing.assert_allclose(seen[name], x, rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def simulated():
    """{name: models [P, 5]}."""

    def workers_of(step):
        return dj.workers.simulate(step, processes.WORKERS)

    with jax.enable_x64(True):
        found = processes.trained(models, workers_of, models.data())
        return jax.tree.map(np.asarray, found)


def test_averaged_models_are_the_simulated_ones(printed, simulated):
    for found in printed[:2]:
        seen = found["models 2"]
        assert set(seen) == set(simulated)
        for name, x in simulated.items():
            np.testing.assert_allclose(seen[name], x, rtol=0, atol=1e-12)
