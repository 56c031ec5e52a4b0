"""Groups of workers on eight devices, and on those of two processes."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from experiments import optimizer
from tests.eight import slices
from tests.support.commands import ROOT

pytestmark = pytest.mark.long


def printed(*arguments):
    """What commands print that run at once."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.eight.slices", *map(str, each)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]


def assert_as_simulated(found, shapes):
    assert len(found) == len(shapes)
    for workers, groups in shapes:
        state = slices.trained(optimizer, slices.uneven, workers, groups)
        seen = found[f"{workers}, {groups}"]
        np.testing.assert_allclose(seen, slices.params_of(state), rtol=0, atol=1e-6)


def test_eight_devices_in_groups_do_what_the_simulation_does():
    (found,) = printed([8])
    assert_as_simulated(found, slices.SHAPES)


def test_two_processes_are_two_groups():
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    for found in printed([2, 0, port], [2, 1, port]):
        assert_as_simulated(found, [(4, 2), (8, 2)])
