"""The recorded job: its mean, and more workers than it has replicas."""

import numpy as np

from experiments.training.recorded_job import recorded_job


def test_workers_have_the_times_of_the_replicas_again():
    job, larger = recorded_job(32), recorded_job(40)
    np.testing.assert_allclose(job.seconds.mean(), 1.0, rtol=1e-12)
    assert larger.seconds.shape == (40, 43)
    np.testing.assert_array_equal(larger.seconds[:32], job.seconds)
    np.testing.assert_array_equal(larger.seconds[32:], job.seconds[:8])
    assert len(np.unique(job.seconds, axis=0)) == 32
