"""Recorded step times of a real job, for experiments."""

from pathlib import Path

import numpy as np

import delayjax as dj

_LOG = Path(__file__).parents[2] / "examples" / "data" / "SE.csv"


def recorded_job(workers: int) -> dj.cluster.Recorded:
    """Worker w has the times of the job's replica w % 32, float64 [workers, 43].

    The job trained a language model on sequences of unequal length, in replicas of two
    stages. Times are scaled to a mean of 1 s over all replicas. The steps are a sample
    of the run and not consecutive (examples/data/README.txt).
    """
    names = {"worker": "replica", "stage": "stage"}
    job = dj.cluster.load_recorded(_LOG, columns=names)
    seconds = job.seconds / job.seconds.mean()
    rows = np.arange(workers) % job.workers
    return dj.cluster.Recorded(seconds[rows], steps=job.steps)
