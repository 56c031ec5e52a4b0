"""Every rule does on eight devices what it does in the simulation."""

import pytest

from tests.contract_test import TABLE
from tests.support.commands import printed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def distances():
    (found,) = printed(["-m", "tests.eight.rules"], timeout=900)
    return found


@pytest.mark.parametrize("name", TABLE)
def test_a_rule_is_the_same_simulated_and_on_eight_devices(distances, name):
    assert distances[name] < 1e-6  # rounding of float32 in the mean over workers
