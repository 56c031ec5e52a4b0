"""A real job's step times, for experiments beside those of simulated laws."""

from pathlib import Path

import delayjax as dj

_LOG = Path(__file__).parents[2] / "examples" / "data" / "SE.csv"


def recorded_job() -> dj.cluster.Recorded:
    """Of 32 replicas of a language model on sequences of unequal length, mean 1 s.

    Replicas of two stages; 43 steps, a sample of the run (examples/data/README.txt).
    """
    names = {"worker": "replica", "stage": "stage"}
    job = dj.cluster.load_recorded(_LOG, columns=names)
    return dj.cluster.Recorded(job.seconds / job.seconds.mean(), steps=job.steps)
