"""Late outer steps of two islands of four devices equal the simulation."""

import math

import pytest

from tests.eight import islands
from tests.support.commands import printed

pytestmark = pytest.mark.long
WHOLE = 512 + 1  # rows of 128 numbers: of "w" and of "b"
ROWS = {  # the rows that are sent, and the number of slices
    "one fragment": (WHOLE, 5),
    "two fragments": (512, 2),
    "corrected": (WHOLE, 3),
    "compressed": (256 + 1, 2),
    "eager": (WHOLE, 6),
}


@pytest.fixture(scope="module")
def result():
    (result,) = printed(["-m", "tests.eight.islands"])
    return result


@pytest.mark.parametrize("name", islands.CASES)
def test_each_device_sends_a_part_of_a_slice_and_all_end_as_simulated(result, name):
    error, sent = result[name]
    assert error < 1e-6
    rows, slices = ROWS[name]
    of_slice = 8 * math.ceil(rows / (8 * slices))
    of_device = 8 * math.ceil(of_slice / (8 * 4))
    assert sent == 4 * 128 * of_device
