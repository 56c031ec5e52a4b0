"""Groups of workers on eight devices, and on those of two processes."""

import numpy as np
import pytest

from experiments import optimizer
from tests.eight import slices
from tests.support.commands import free_port, printed

pytestmark = pytest.mark.long
COMMAND = "-m", "tests.eight.slices"


def assert_as_simulated(result, shapes):
    assert len(result) == len(shapes)
    for workers, groups in shapes:
        state = slices.trained(optimizer, slices.uneven, workers, groups)
        seen = result[f"{workers}, {groups}"]
        np.testing.assert_allclose(seen, slices.params_of(state), rtol=0, atol=1e-6)


def test_eight_devices_in_groups_do_what_the_simulation_does():
    (result,) = printed([*COMMAND, 8])
    assert_as_simulated(result, slices.SHAPES)


def test_two_processes_are_two_groups():
    port = free_port()
    for result in printed([*COMMAND, 2, 0, port], [*COMMAND, 2, 1, port]):
        assert_as_simulated(result, [(4, 2), (8, 2)])
