"""Every version has a slot for itself while it is kept, and there are few slots."""

import dataclasses
import itertools

import numpy as np
import pytest

from delayjax import cluster
from delayjax._src.cluster import slots
from delayjax.cluster import protocols
from tests.cluster.traces import PROTOCOLS, by_hand, simulate
from tests.support.cases import shortened

SEEDS = [1, 2, 3]


def kept_at_each_update(last):
    """By definition: the versions t <= update with last[t] >= update."""
    return [[t for t in range(u + 1) if last[t] >= u] for u in range(len(last))]


def draw(seed, updates=60):
    rng = np.random.default_rng(seed)
    versions = np.arange(updates)
    return np.minimum(versions + rng.geometric(0.2, updates) - 1, updates - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_versions_that_are_kept_together_have_slots_apart(seed):
    last = draw(seed)
    given = slots.of_versions(last)
    for kept in kept_at_each_update(last):
        assert len({given[t] for t in kept}) == len(kept)
    # and no slot is given without need
    assert given.max() + 1 == slots.needed(last)
    assert slots.needed(last) == max(map(len, kept_at_each_update(last)))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_later_changes_no_slot(seed):
    last = draw(seed)
    for cut in (1, 7, 30):
        shorter = np.minimum(last[:cut], cut - 1)
        np.testing.assert_array_equal(
            slots.of_versions(shorter), slots.of_versions(last)[:cut]
        )


def test_versions_of_one_update_take_turns_in_one_slot():
    none, versions = np.zeros(0, int), np.arange(5)
    assert slots.needed(none) == slots.needed(versions) == 1
    assert slots.of_versions(none).tolist() == []
    assert slots.of_versions(versions).tolist() == [0] * 5


def test_versions_that_are_all_equally_late_are_kept_in_a_ring():
    late = np.minimum(np.arange(20) + 3, 19)
    np.testing.assert_array_equal(slots.of_versions(late), np.arange(20) % 4)


CLUSTERS = {
    "exponential": cluster.Cluster(7, cluster.exponential(1.0)),
    "heavy-tailed": cluster.Cluster(7, cluster.pareto(1.0, 1.5)),
    "a server with one link": cluster.Cluster(
        7,
        cluster.exponential(1.0),
        communication=cluster.Communication(0.1, 0.2, 1.0, serial=True),
    ),
}
ALL = PROTOCOLS | {
    "mindflayer": protocols.mindflayer(2, 2.0),
    "hardsync": protocols.hardsync(),
    "k_sync": protocols.k_sync(3),
    "k_batch_sync": protocols.k_batch_sync(3),
    "k_async": protocols.k_async(3),
    "k_batch_async": protocols.k_batch_async(3),
    "3-softsync": protocols.n_softsync(3),
    "ssp": protocols.ssp(2),
    "psp": protocols.psp(2, 1),
    "psp that polls": protocols.psp(2, 1, poll_seconds=0.5),
    "round robin": protocols.round_robin(),
    "dropping at 3": protocols.bounded_staleness(3),
    "restarting": protocols.bounded_staleness(3, late="restart"),
    "restarting late": protocols.bounded_staleness(9, late="restart"),
    "waiting for 2": protocols.bounded_staleness(3, late="wait", batch=2),
    "rennala": protocols.rennala(3),
    "fedbuff": protocols.fedbuff(3, concurrency=5),
    "progressive": protocols.progressive_groups(2, every=10),
}


def law(trace):
    return min(trace.num_workers, trace.max_staleness + 1)


mostly_one_seed = pytest.mark.parametrize(
    ("name", "seed"),
    shortened(
        itertools.product(ALL, SEEDS),
        *((name, SEEDS[0]) for name in ALL),
        *itertools.product(("k_async", "ssp"), SEEDS[1:]),
    ),
)


@pytest.mark.parametrize("workers", CLUSTERS)
@mostly_one_seed
def test_no_more_versions_are_kept_than_there_are_workers_or_ages(name, seed, workers):
    trace = cluster.simulate(CLUSTERS[workers], ALL[name], 80, seed=seed)
    assert 1 <= trace.max_versions <= law(trace)


def test_a_heavy_tail_costs_no_memory():
    workers = cluster.Cluster(17, cluster.pareto(1.0, 1.5))
    trace = cluster.simulate(workers, protocols.k_async(1), 4000, seed=0)
    assert trace.max_staleness >= 10 * 17
    assert trace.max_versions == 17


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_gradient_has_the_slot_of_its_version(name):
    """A slot is written once an update, and read as long as nothing is written over."""
    trace = simulate(name)
    rows, held = trace.arrivals(0, trace.num_updates), {}
    assert rows.slot.dtype == rows.written.dtype == np.int32
    assert rows.slot.shape == rows.staleness.shape
    for t, (ages, places, written) in enumerate(
        zip(rows.staleness, rows.slot, rows.written, strict=True)
    ):
        held[int(written)] = t
        for age, place in zip(ages.tolist(), places.tolist(), strict=True):
            assert held[place] == t - max(age, 0)
    assert max(held) + 1 == trace.max_versions
    some = trace.arrivals(20, 31, width=9)
    np.testing.assert_array_equal(some.written, rows.written[20:31])
    width = rows.slot.shape[1]
    np.testing.assert_array_equal(some.slot[:, :width], rows.slot[20:31])
    assert (some.slot[:, width:] == some.written[:, None]).all()  # of the newest


@pytest.mark.parametrize("workers", CLUSTERS)
@mostly_one_seed
def test_a_longer_simulation_reads_what_the_shorter_one_has_kept(name, seed, workers):
    short, long = (
        cluster.simulate(CLUSTERS[workers], ALL[name], updates, seed=seed)
        for updates in (60, 120)
    )
    before, after = (trace.arrivals(0, 60).written for trace in (short, long))
    np.testing.assert_array_equal(before, after)


def test_a_log_keeps_a_version_until_it_is_read_last():
    log = by_hand(2, [(1, [(0, 0)]), (2, [(0, 1)]), (3, [(1, 0)]), (4, [(0, 3)])])
    assert log.max_staleness == 2 and log.max_versions == 2
    assert log.arrivals(0, 4).written.tolist() == [0, 1, 1, 0]
    # worker 1 reads nothing later, and in a simulation it would hold version 3


def test_a_version_that_is_let_go_of_gives_its_slot_to_the_newest():
    rows = [(t, [(0, t)]) for t in range(6)] + [(6, [(1, 2)])]
    # a worker held version 0 until two updates were done, and another one reads 2
    held_until = np.array([2, 1, 6, 3, 4, 5, 6], np.int32)
    trace = dataclasses.replace(by_hand(3, rows), held_until=held_until)
    assert trace.max_staleness == 4 and trace.max_versions == 2
    assert trace.arrivals(0, 7).written.tolist() == [0, 1, 0, 1, 1, 1, 1]


def test_a_version_older_than_all_that_are_read_is_not_kept_for_its_holder():
    slow = cluster.Cluster(2, cluster.constant(1.0), slowdown=[1.0, 1000.0])
    trace = cluster.simulate(slow, protocols.k_async(1), 9, seed=0)
    assert trace.max_staleness == 0 and trace.max_versions == 1
    assert trace.held_until.tolist() == [9, *range(1, 9)]
