"""The step times in examples/data equal the source's, and are complete."""

import csv
from pathlib import Path

import numpy as np
import pytest

import delayjax as dj

DATA = Path(__file__).parents[1] / "examples" / "data"
# Replicas, stages and recorded steps. By a loop over the source's files: the mean of
# all seconds, the least and the largest mean of a rank, std / mean, and the mean of a
# step. By the analysis of the source: a step as recorded, and without stragglers.
FACTS = {
    "AR": (4, 4, 44, 21.06, 19.1, 45.3, 0.30, 46.6, 46.34, 23.48),
    "SE": (32, 2, 43, 5.08, 3.85, 6.23, 0.23, 9.1, 9.07, 5.90),
    "ST": (2, 4, 32, 0.975, 0.836, 1.377, 0.237, 2.21, 2.17, 1.84),
}
each_job = pytest.mark.parametrize("job", FACTS)


def ranks(job):
    return dj.cluster.load_recorded(DATA / f"{job}.csv", columns={"worker": "rank"})


def replicas(job):
    names = {"worker": "replica", "stage": "stage"}
    return dj.cluster.load_recorded(DATA / f"{job}.csv", columns=names)


def whole_steps(job):
    return np.loadtxt(DATA / f"{job}_steps.csv", delimiter=",", skiprows=1).T


@each_job
def test_ranks_have_the_seconds_of_the_source(job):
    copies, stages, steps, mean, low, high, spread, *_ = FACTS[job]
    seconds = ranks(job).seconds
    assert seconds.shape == (copies * stages, steps)
    assert seconds.mean() == pytest.approx(mean, rel=2e-3)
    means = seconds.mean(axis=1)
    assert (means.min(), means.max()) == pytest.approx((low, high), rel=2e-3)
    assert seconds.std() / seconds.mean() == pytest.approx(spread, abs=0.005)


@each_job
def test_a_replica_is_as_slow_as_its_slowest_stage(job):
    copies, stages, *_ = FACTS[job]
    with (DATA / f"{job}.csv").open() as file:
        rows = list(csv.DictReader(file))
    result = replicas(job)
    assert result.steps is not None
    for worker, step in ((0, 0), (copies - 1, len(result.steps) - 1)):
        seconds = [
            float(row["seconds"])
            for row in rows
            if int(row["replica"]) == worker and int(row["step"]) == result.steps[step]
        ]
        assert len(seconds) == stages
        assert result.seconds[worker, step] == max(seconds)


@each_job
def test_a_step_is_longer_than_its_slowest_rank_and_takes_what_the_source_says(job):
    steps, seconds = whole_steps(job)
    recorded = ranks(job)
    np.testing.assert_array_equal(steps, recorded.steps)
    assert (seconds > recorded.seconds.max(axis=0)).all()
    *_, mean, actual, ideal = FACTS[job]
    assert seconds.mean() == pytest.approx(mean, abs=0.05)
    assert seconds.mean() == pytest.approx(actual, rel=0.03)
    assert ideal < seconds.mean()


def test_the_replicas_of_unequal_sequences_wait_a_quarter_of_their_mean():
    seconds = replicas("SE").seconds
    assert (seconds.max(0) / seconds.mean(0)).mean() == pytest.approx(1.26, abs=0.005)


def test_the_license_and_the_source_are_beside_the_data():
    assert "Apache License" in (DATA / "LICENSE").read_text()
    text = (DATA / "README.txt").read_text()
    assert "8efcd7f37f158af26ac64d0b6fbf1f22d28a6e83" in text
    for path in DATA.glob("*.csv"):
        assert path.name in text
