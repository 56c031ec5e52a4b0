"""Images that processes read are the same, and no process remains."""

import os
import signal
import subprocess
import sys
import time

import chex
import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import readers
from tests.support.commands import ROOT

pytestmark = pytest.mark.runs

SIZES = dict(batch_size=8, image_size=32)
CALLS = [(1, 0, 2), (1, 2, 5), (1, 2, 5), (7, 5, 6), (1, 0, 1)]  # seed, start, stop


def test_processes_read_the_batches_that_threads_read(photo_dir):
    threads, processes = (
        tasks.images("photos", data_dir=photo_dir, worker_processes=count, **SIZES)
        for count in (0, 2)
    )
    for call in CALLS:
        chex.assert_trees_all_equal(processes.batches(*call), threads.batches(*call))
    workers = np.array([1, 6])
    chex.assert_trees_all_equal(
        processes.batches(1, 2, 5, workers), threads.batches(1, 2, 5, workers)
    )


def numbered(seed, places):
    """The work of a process in this test, instead of reading."""
    if seed == 13:
        raise OSError(f"no example at {places[0]}")
    if seed == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.stack(
        [np.full(len(places), seed), places, [os.getpid()] * len(places)], 1
    )


@pytest.fixture(scope="module")
def processes():
    return readers.Processes(numbered, 2)


@pytest.mark.long
def test_examples_come_in_order_from_processes_that_stay(processes):
    places = np.random.default_rng(0).permutation(1000)
    result = [np.concatenate(processes(seed, places)) for seed in (3, 4)]
    for seed, examples in zip((3, 4), result, strict=True):
        np.testing.assert_array_equal(examples[:, 1], places)
        assert (examples[:, 0] == seed).all()
    pids = {pid for examples in result for pid in examples[:, 2]}
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids


@pytest.mark.long
def test_an_error_of_a_process_is_the_caller_s_and_the_next_call_works(processes):
    with pytest.raises(OSError, match="no example at 5"):
        processes(13, np.arange(5, 50))
    assert len(np.concatenate(processes(3, np.arange(5, 50)))) == 45


@pytest.mark.long
def test_a_process_that_is_killed_is_named():
    pool = readers.Processes(numbered, 1)
    with pytest.raises(ChildProcessError, match=r"was killed, .* lower `worker_p"):
        pool(9, np.arange(4))


RUN = """
import os, signal, sys, time
import numpy as np
from experiments.tasks import readers
from tests.experiments.tasks.readers_test import numbered

if __name__ == "__main__":
    # a background job of a shell starts with Ctrl-C ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    read = readers.Processes(numbered, 2)
    pids = {part[0, 2] for part in read(0, np.arange(64))}
    try:
        print(*pids, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print(sum(map(len, read(0, np.arange(64)))), flush=True)
        if sys.argv[1] == "raise":
            raise ValueError("of the run")
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("ending", ["return", "raise", "kill"])
def test_processes_outlive_ctrl_c_and_end_with_the_run(tmp_path, ending):
    """Ctrl-C reaches all processes of a group; reading continues until the run ends."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    run = subprocess.Popen(
        [sys.executable, str(script), ending],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
    )
    pids = [int(pid) for pid in run.stdout.readline().split()]
    assert pids and all(map(alive, pids))
    if ending == "kill":
        run.kill()
    else:
        os.killpg(run.pid, signal.SIGINT)
    output, errors = run.communicate(timeout=60)
    if ending == "kill":
        assert run.returncode == -signal.SIGKILL
    else:
        assert output == "64\n"
        assert run.returncode == (ending == "raise"), errors
        assert "Exception ignored" not in errors
        assert ("ValueError: of the run" in errors) == (ending == "raise")
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
