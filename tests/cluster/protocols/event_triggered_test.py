import math

import numpy as np
import pytest

from delayjax.cluster import protocols
from tests.cluster.given_times import SEEDS, simulate, times_of


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("probability", [0.2, 0.7, 1.0])
def test_event_triggering_thins_the_arrivals(probability, seed):
    p, n = 4, 600
    times = times_of("exponential", p, seed)
    trace = simulate(times, protocols.event_triggered(probability), n, seed=seed)
    dropped = trace.dropped
    seen = sorted(
        (*row, record is trace)
        for record in (trace, dropped)
        for row in zip(record.arrived, record.worker, record.read_version, strict=True)
    )
    # the arrivals are plain ASGD's: P streams that never pause
    stream = sorted(
        (end, w) for w, row in enumerate(times) for end in np.cumsum(row[: len(seen)])
    )[: len(seen)]
    assert [row[1] for row in seen] == [w for _, w in stream]
    np.testing.assert_allclose(
        [row[0] for row in seen], [end for end, _ in stream], rtol=1e-12
    )
    # a worker reads at each arrival, uploaded or not
    version, read, versions = 0, [0] * p, []
    for _, w, read_version, uploaded in seen:
        assert read_version == read[w]
        if not uploaded:
            versions.append(version)
        version += uploaded
        read[w] = version
    assert list(dropped.version) == versions
    mean, deviation = probability * len(seen), probability * (1 - probability)
    assert abs(n - mean) <= 4 * math.sqrt(deviation * len(seen))
