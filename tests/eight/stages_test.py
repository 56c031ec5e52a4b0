"""A pipeline on eight devices does what its simulation does."""

import pytest

from tests.support.commands import printed

pytestmark = pytest.mark.long


def test_eight_devices_follow_the_simulation_for_fifty_updates_of_each_stage():
    (result,) = printed(["-m", "tests.eight.stages"], timeout=600)
    assert result == {"8, True": 400, "8, False": 400, "4, True": 200, "4, False": 200}
