"""Eight workers on eight devices of one, two and four processes are a numpy loop."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.exchange import eight, oracle


def gradient(x, rows):
    inputs, labels = rows[:, :-1], rows[:, -1]
    push = -labels / (1 + np.exp(labels * (inputs @ x)))
    return inputs.T @ push / len(rows) + eight.WEIGHT_DECAY * x


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_devices_and_processes_follow_a_numpy_loop(processes):
    port = str(free_port())
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.exchange.eight"),
                str(i),
                str(processes),
                port,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    printed = [process.communicate(timeout=300) for process in running]
    for process, (_, errors) in zip(running, printed, strict=True):
        assert process.returncode == 0, errors[-2000:]
    for text, _ in printed:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        found = {k: v for line in lines for k, v in json.loads(line).items()}
        for name, options in eight.OPTIONS.items():
            expected = oracle.train(
                *(gradient, eight.start(), eight.data(), oracle.adam(eight.RATE)),
                **options,
            )[-1]
            np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-10)
