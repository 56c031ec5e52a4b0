"""How far an arm is followed, and what had happened by then."""

import math

import numpy as np
import pytest

import delayjax as dj
from experiments import course
from experiments.course import Budget

SEEDS = [1, 2, 3]


def simulator(protocol, seed=0, workers=6, service=None):
    cluster = dj.cluster.Cluster(workers, service or dj.cluster.exponential(1.0))
    return lambda updates, seconds: dj.cluster.simulate(
        cluster, protocol, updates, seed=seed, seconds=seconds
    )


def followed(protocol, budget, evaluations=5, seeds=SEEDS, **keywords):
    return course.simulated(
        "arm",
        [simulator(protocol, seed, **keywords) for seed in seeds],
        budget,
        evaluations=evaluations,
        batch_size=4,
    )


@pytest.mark.parametrize("evaluations", [1, 7, 20, 200])
def test_chunks_are_equal_and_lose_less_than_one_of_them(evaluations):
    updates = 100
    protocol = dj.cluster.protocols.k_async(1)
    found = followed(protocol, Budget(updates=updates), evaluations)
    assert found.steps % found.chunk == 0
    assert updates - found.chunk < found.steps <= updates
    assert found.steps // found.chunk >= min(evaluations, updates)
    assert {trace.num_updates for trace in found.traces} == {found.steps}


def test_an_arm_ends_before_the_first_update_beyond_its_seconds():
    protocol = dj.cluster.protocols.n_softsync(2)
    found = followed(protocol, Budget(seconds=200.0), evaluations=10**6)
    ends = [
        dj.cluster.simulate(
            dj.cluster.Cluster(6, dj.cluster.exponential(1.0)),
            protocol,
            10**6,
            seed=seed,
            seconds=200.0,
        ).num_updates
        for seed in SEEDS
    ]
    assert found.steps == min(ends)  # as many as every seed has time for
    assert (found.seconds(found.steps) <= 200.0).all()


@pytest.mark.parametrize("gradients", [6, 100, 1000])
def test_an_arm_uses_no_more_gradients_than_it_may(gradients):
    protocol = dj.cluster.protocols.n_softsync(2)  # three gradients an update
    found = followed(protocol, Budget(gradients=gradients), evaluations=10**6)
    assert found.steps == gradients // 3


def test_both_limits_hold():
    protocol = dj.cluster.protocols.hardsync()
    service = dj.cluster.constant(2.0)
    for seconds, gradients, updates in ((9.0, 10**6, 4), (1e6, 17, 2), (9.0, 17, 2)):
        budget = Budget(seconds=seconds, gradients=gradients)
        assert followed(protocol, budget, service=service).steps == updates


def test_static_groups_share_the_updates_that_are_followed():
    protocol = dj.cluster.protocols.groups(3, data="static")
    found = followed(protocol, Budget(gradients=100), evaluations=4)
    for trace in found.traces:
        shares = np.bincount(trace.worker, minlength=6)
        assert found.steps == 48 and (shares == 16).all()


def test_nothing_to_follow_is_refused():
    with pytest.raises(ValueError, match=r"no update is done within config\.cluster"):
        followed(dj.cluster.protocols.hardsync(), Budget(seconds=1e-9))


def test_a_budget_that_is_never_used_is_refused(monkeypatch):
    monkeypatch.setattr(course, "_MOST", 500)
    rarely = dj.cluster.protocols.mindflayer(1, 0.01)  # one trial in a hundred is done
    with pytest.raises(ValueError, match="500 updates use up neither"):
        followed(rarely, Budget(gradients=1000))


def ragged():
    """Two seeds whose updates have 0 to 3 gradients, some of them dropped."""
    cluster = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    rules = dj.cluster.protocols.mindflayer(1, 0.7), dj.cluster.protocols.ringmaster(2)
    traces = tuple(
        dj.cluster.simulate(cluster, rule, 40, seed=seed)
        for seed, rule in enumerate(rules)
    )
    return course.Course("arm", traces, 40, 10, 4)


def test_arrivals_of_all_seeds_have_one_width():
    found = ragged()
    assert found.width == 3
    rows = found.arrivals(10, 30)
    assert rows.staleness.shape == rows.worker.shape == (20, 2, 3)
    for s, trace in enumerate(found.traces):
        own = trace.arrivals(10, 30)
        width = own.staleness.shape[1]
        for got, wanted in ((rows.staleness, own.staleness), (rows.worker, own.worker)):
            np.testing.assert_array_equal(got[:, s, :width], wanted)
            assert (got[:, s, width:] == -1).all()
        np.testing.assert_array_equal(rows.divisor[:, s], own.divisor)


def test_the_clock_and_the_counts_are_those_of_each_update():
    found = ragged()
    assert (found.seconds(0) == 0).all() and (found.gradients(0) == 0).all()
    for s, trace in enumerate(found.traces):
        for step in (1, 17, 40):
            used = sum(int(t) < step for t in trace.update)
            dropped = sum(int(v) < step for v in trace.dropped.version)
            assert found.seconds(step)[s] == trace.seconds[step - 1]
            assert found.gradients(step)[s] == used
            assert found.examples(step)[s] == 4 * used
            share = found.dropped_share(step)[s]
            assert share == pytest.approx(dropped / max(dropped + used, 1))
        np.testing.assert_array_equal(found.counts(3, 9)[:, s], trace.counts[3:9])
    assert found.dropped_share(40)[1] > 0.1
    ages = np.concatenate([x.update - x.read_version for x in found.traces])
    assert found.mean_staleness == pytest.approx(math.fsum(ages) / len(ages))
    assert found.max_staleness == max(ages)


def test_the_full_batch_counts_gradients():
    found = ragged()
    full = course.Course("arm", found.traces, 40, 10, 0)
    np.testing.assert_array_equal(full.examples(40), found.gradients(40))
