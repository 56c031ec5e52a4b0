"""Every rule does on eight devices what it does in the simulation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract_test import TABLE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def distances():
    run = subprocess.run(
        [sys.executable, "-m", "tests.eight.rules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", TABLE)
def test_a_rule_is_the_same_simulated_and_on_eight_devices(distances, name):
    assert distances[name] < 1e-6  # rounding of float32 in the mean over workers
