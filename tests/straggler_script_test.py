"""The script that made examples/data, on a trace that one can add up in the head."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import delayjax as dj
from tests.support.extras import import_or_skip

pyarrow = import_or_skip("pyarrow", "logs")
parquet = importlib.import_module("pyarrow.parquet")

SCRIPT = Path(__file__).parents[1] / "examples/data/reduce_straggler_traces.py"
STEPS = [16, 40]
OPERATIONS = ["forward-compute", "forward-send", "backward-compute", "forward-compute"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three equal traces, two replicas of two stages; and the files made of them."""
    rows = [
        # ranks count stage by stage; each operation starts 1 s after the one before it
        (replica, stage, 4 * stage + replica, step, name, float(k), 1.0 + k + rank)
        for replica in range(2)
        for stage in range(2)
        for rank in [4 * stage + replica]
        for step in STEPS
        for k, name in enumerate(OPERATIONS)
    ]
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration"]
    table = pyarrow.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    spec = importlib.util.spec_from_file_location("reduce_straggler_traces", SCRIPT)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "HERE", tmp_path)
    for job in script.JOBS:
        parquet.write_table(table, tmp_path / f"trace-{job}.parquet")
    script.main(tmp_path)
    return tmp_path


def test_computation_is_added_up_without_messages(folder):
    path = folder / "AR.csv"
    recorded = dj.cluster.load_recorded(path, columns={"worker": "rank"})
    ranks = np.array([0, 1, 4, 5])
    computation = sum(1 + k + ranks for k in (0, 2, 3))  # operation 1 is a message
    np.testing.assert_array_equal(recorded.seconds, np.stack([computation] * 2, axis=1))
    np.testing.assert_array_equal(recorded.steps, STEPS)


def test_a_rank_has_its_replica_and_stage(folder):
    table = np.loadtxt(folder / "SE.csv", delimiter=",", skiprows=1)
    replica, stage, rank = table[:, :3].T
    np.testing.assert_array_equal(rank, 4 * stage + replica)
    assert len(np.unique(rank)) == 4


def test_a_step_ends_with_its_last_operation(folder):
    steps, seconds = np.loadtxt(folder / "ST_steps.csv", delimiter=",", skiprows=1).T
    np.testing.assert_array_equal(steps, STEPS)
    last = len(OPERATIONS) - 1
    np.testing.assert_array_equal(seconds, last + 1.0 + last + 5)  # of rank 5
