"""Eight replicas on eight devices, of one process or two, are those simulated."""

import functools
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import delayjax as dj
from tests.averaging import eight
from tests.exchange.processes_test import free_port


@functools.cache
def simulated():
    """{name: models [P, 5]}."""
    batches = eight.data()

    def workers_of(step):
        return dj.workers.simulate(step, eight.WORKERS)

    with jax.enable_x64(True):
        return {
            name: np.asarray(eight.trained(tx, workers_of, batches))
            for name, tx in eight.transformations().items()
        }


@pytest.mark.parametrize("processes", [1, 2])
def test_devices_and_processes_hold_the_simulated_models(processes):
    port = str(free_port())
    command = [sys.executable, "-m", "tests.averaging.eight"]
    running = [
        subprocess.Popen(
            [*command, str(i), str(processes), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    expected = simulated()
    printed = [process.communicate(timeout=300) for process in running]
    for process, (_, errors) in zip(running, printed, strict=True):
        assert process.returncode == 0, errors[-2000:]
    for text, _ in printed:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        found = {k: v for line in lines for k, v in json.loads(line).items()}
        assert set(found) == set(expected)
        for name, models in expected.items():
            np.testing.assert_allclose(found[name], models, rtol=0, atol=1e-12)
