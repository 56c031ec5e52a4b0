"""Reduces the traces of StragglerAnalysis to the seconds that each rank computes.

    python examples/data/reduce_straggler_traces.py StragglerAnalysis/data

writes the .csv files of this folder. It needs pyarrow.
"""

import sys
from pathlib import Path

import numpy as np
from pyarrow import parquet

import delayjax as dj

JOBS = "AR", "SE", "ST"
COMPUTATION = ["forward-compute", "backward-compute"]
HERE = Path(__file__).parent


def rank_rows(trace: Path) -> list[str]:
    """A row for each step of each rank: its computation, in seconds."""
    names = {"worker": "rank", "operation": "optype"}
    recorded = dj.cluster.load_recorded(trace, columns=names, operations=COMPUTATION)
    assert recorded.steps is not None
    table = parquet.read_table(trace, columns=["rank", "dp_rank", "stage"])
    columns = [column.to_numpy() for column in table.columns]
    places = np.unique(np.stack(columns), axis=1).T  # a rank is a stage of a replica
    return [
        f"{replica},{stage},{rank},{step},{seconds:.6f}"
        for (rank, replica, stage), own in zip(places, recorded.seconds, strict=True)
        for step, seconds in zip(recorded.steps, own, strict=True)
    ]


def step_rows(trace: Path) -> list[str]:
    """A row for each step: from its start to the end of its last operation."""
    table = parquet.read_table(trace, columns=["step", "start_ts", "duration"])
    step, start, duration = (column.to_numpy() for column in table.columns)
    steps, place = np.unique(step, return_inverse=True)
    ends = np.zeros(steps.size)
    np.maximum.at(ends, place, start.astype(float) + duration)
    return [f"{k},{end:.6f}" for k, end in zip(steps, ends, strict=True)]


def write(name: str, rows: list[str]) -> None:
    """A file of this folder."""
    (HERE / name).write_text("\n".join([*rows, ""]))


def main(folder: Path) -> None:
    """All files of this folder, from the folder of the traces."""
    for job in JOBS:
        trace = folder / f"trace-{job}.parquet"
        write(f"{job}.csv", ["replica,stage,rank,step,seconds", *rank_rows(trace)])
        write(f"{job}_steps.csv", ["step,seconds", *step_rows(trace)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
