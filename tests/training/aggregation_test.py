"""Rules in place of the mean: sums by worker, and Ringleader's tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.training.traces import (
    TRACES,
    assert_same,
    batches_of,
    bowl,
    follower,
    only,
    rows_of,
    trace_of,
)


def weighed():
    """Sums w + 1 times the gradient of worker w."""

    def add(total, gradients, workers):
        weights = jnp.where(workers < 0, 0.0, workers + 1.0)
        return total + jnp.tensordot(weights, gradients, axes=1)

    def finish(total, last):
        return total, jnp.zeros_like(total)

    return dj.Aggregation(jnp.zeros_like, add, finish)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("threshold", [-np.inf, 0.0])
def test_a_rule_in_place_of_the_mean_is_told_whose_gradients_are_there(
    threshold, chunk
):
    trace = TRACES["with empty updates"]
    targets = batches_of(trace)["target"]
    xs = [np.array([1.0, -2.0])]
    for t, row in enumerate(rows_of(trace)):
        grads = [xs[v] - targets[t, k] for k, (_, v) in enumerate(row)]
        weights = [
            worker + 1 if g[0] > threshold else 0
            for g, (worker, _) in zip(grads, row, strict=True)
        ]
        direction = sum((w * g for w, g in zip(weights, grads, strict=True)), 0 * xs[0])
        xs.append(xs[-1] - 0.01 * direction)
    refuse = {"each": only(lambda grads, staleness: grads[0] > threshold)}
    replay = dj.replay(
        trace,
        bowl,
        optax.sgd(0.01),
        aggregation=weighed(),
        chunk=chunk,
        **(refuse if threshold == 0.0 else {}),
    )
    start = jnp.asarray(xs[0], jnp.float32)
    path, _, _ = follower(replay)(trace, targets, params=start)
    np.testing.assert_allclose(path, xs[1:], rtol=1e-5, atol=1e-6)


FOR_UNEQUAL_DATA = (
    dj.cluster.protocols.malenia(1.0),
    dj.cluster.protocols.ia2sgd(),
    dj.cluster.protocols.ringleader(),
)


def table_of(protocol):
    """A trace along a protocol, the targets, and the training along the trace."""
    spec = dj.cluster.Cluster(3, dj.cluster.exponential(1.0), slowdown=[1.0, 2.0, 6.0])
    trace = dj.cluster.simulate(spec, protocol, 12, seed=1)
    targets = np.random.default_rng(0).normal(size=(*trace.staleness.shape, 2))

    def follow(aggregation, chunk):
        replay = dj.replay(
            trace, bowl, optax.sgd(0.3), aggregation=aggregation, chunk=chunk
        )
        start = jnp.asarray([1.0, -2.0], jnp.float32)
        return follower(replay)(trace, targets.astype(np.float32), params=start)[0]

    return trace, targets, follow


@pytest.mark.parametrize("chunk", [None, 3])
def test_malenia_takes_the_mean_of_each_worker_s_mean(chunk):
    protocol = dj.cluster.protocols.malenia(1.5)
    trace, targets, follow = table_of(protocol)
    x, xs = np.array([1.0, -2.0]), []
    for t, row in enumerate(rows_of(trace)):
        means = [
            np.mean([x - targets[t, k] for k, (w, _) in enumerate(row) if w == v], 0)
            for v in range(3)
        ]
        x = x - 0.3 * np.mean(means, axis=0)
        xs.append(x)
    path = follow(protocol.aggregation(3), chunk)
    np.testing.assert_allclose(path, xs, rtol=1e-5, atol=1e-6)


def test_a_worker_without_a_gradient_counts_with_zeros_in_malenia_s_mean():
    means = dj.cluster.protocols.malenia(1.0).aggregation(2)
    state = means.add(means.init(jnp.zeros(())), jnp.ones(1), jnp.array([1]))
    assert means.finish(state, 1)[0] == 0.5


def test_malenia_s_workers_read_once_a_round():
    """Worker 0 goes on at the parameters that it has; only rounds pay the message."""
    link = dj.cluster.Communication(latency_seconds=1.0)
    spec = dj.cluster.Cluster(
        2, dj.cluster.constant(1.0), slowdown=[1.0, 6.5], communication=link
    )
    trace = dj.cluster.simulate(spec, dj.cluster.protocols.malenia(1.0), 1, seed=0)
    # 1 s down, tasks, 1 s up: worker 0 arrives at 3, 5, 7 s, worker 1 at 8.5 s
    assert trace.counts.tolist() == [4] and trace.seconds[0] == 8.5


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_ia2sgd_takes_the_mean_of_the_newest_gradients(chunk):
    protocol = dj.cluster.protocols.ia2sgd()
    trace, targets, follow = table_of(protocol)
    xs, table = [np.array([1.0, -2.0])], np.zeros((3, 2))
    for t, row in enumerate(rows_of(trace)):
        for k, (worker, version) in enumerate(row):
            table[worker] = xs[version] - targets[t, k]
        xs.append(xs[-1] - 0.3 * table.mean(axis=0))
    path = follow(protocol.aggregation(3), chunk)
    np.testing.assert_allclose(path, xs[1:], rtol=1e-5, atol=1e-6)


def test_ia2sgd_keeps_the_last_of_several_gradients_of_a_worker():
    table = dj.cluster.protocols.ia2sgd().aggregation(2)
    state = table.init(jnp.zeros(()))
    state = table.add(state, jnp.arange(1.0, 6.0), jnp.array([0, 1, 0, -1, 1]))
    assert table.finish(state, 1)[0] == (3 + 5) / 2


def test_ia2sgd_is_finite_again_when_the_worker_of_a_nan_delivers():
    table = dj.cluster.protocols.ia2sgd().aggregation(2)
    state = table.init(jnp.zeros(()))
    means = []
    for worker, gradient in (0, 1.0), (1, jnp.nan), (0, 3.0), (1, 5.0), (0, 7.0):
        state = table.add(state, jnp.full(1, gradient), jnp.full(1, worker))
        mean, state = table.finish(state, worker)
        means.append(float(mean))
    np.testing.assert_array_equal(means, [0.5, np.nan, np.nan, 4.0, 6.0])


def test_roundings_of_large_gradients_leave_ia2sgd_s_sum():
    """The sum of 1e8 and ones less 1e8 is not the number of ones in float32."""
    table = dj.cluster.protocols.ia2sgd().aggregation(3)
    state = table.init(jnp.zeros(()))
    for gradient in 1e8, 1.0, 1.0:
        for worker in range(3):
            state = table.add(state, jnp.full(1, gradient), jnp.full(1, worker))
            mean, state = table.finish(state, worker)
    assert mean == 1.0


@pytest.mark.parametrize("protocol", FOR_UNEQUAL_DATA[1:], ids=repr)
def test_an_update_along_a_table_copies_no_table(protocol):
    workers, size = 64, 10_000
    spec = dj.cluster.Cluster(workers, dj.cluster.constant(1.0))
    trace = dj.cluster.simulate(spec, protocol, 4, seed=0)
    rule = protocol.aggregation(workers)
    replay = dj.replay(trace, bowl, optax.sgd(0.1), aggregation=rule, chunk=1)
    state = replay.init(jnp.zeros(size), jax.random.key(0))
    rows = trace.arrivals(0, 4), np.zeros((4, workers), np.float32)
    scan = jax.jit(
        lambda state, rows: jax.lax.scan(replay.step, state, rows), donate_argnums=0
    )
    table = workers * size * np.dtype(np.float32).itemsize
    memory = scan.lower(state, rows).compile().memory_analysis()
    assert memory.temp_size_in_bytes < table


def test_rules_for_unequal_data_end_at_the_mean_of_the_workers_optima():
    """ASGD ends at their mean with the weights 1 / seconds."""
    optima = jnp.array([1.0, 2.0, 9.0])
    spec = dj.cluster.Cluster(3, dj.cluster.constant(1.0), slowdown=[1.0, 2.3, 7.1])

    def end(protocol, rule):
        trace = dj.cluster.simulate(spec, protocol, 3000, seed=0)
        replay = dj.replay(
            trace,
            lambda x, worker, key: (0.0, x - optima[worker]),
            optax.sgd(0.02),
            aggregation=rule,
        )
        rows = np.maximum(trace.arrivals(0, 3000).worker, 0)
        state = replay.init(jnp.zeros(()), jax.random.key(0))
        return float(replay.run(state, rows)[0].params)

    for protocol in FOR_UNEQUAL_DATA:
        assert end(protocol, protocol.aggregation(3)) == pytest.approx(4.0, abs=1e-3)
    rates = 1 / np.array([1.0, 2.3, 7.1])
    expected = rates @ np.asarray(optima) / rates.sum()  # by gradients a second
    assert end(dj.cluster.protocols.k_async(1), None) == pytest.approx(expected, 0.02)


@pytest.mark.parametrize("protocol", FOR_UNEQUAL_DATA, ids=repr)
@pytest.mark.parametrize("workers", [2, 4])
def test_tables_of_another_number_of_workers_are_refused(protocol, workers):
    spec = dj.cluster.Cluster(3, dj.cluster.constant(1.0), slowdown=[1.0, 2.3, 7.1])
    trace = dj.cluster.simulate(spec, protocol, 4, seed=0)
    rule = protocol.aggregation(workers)
    with pytest.raises(ValueError, match=f"`aggregation` .* the 3 workers .*{workers}"):
        dj.replay(trace, bowl, optax.sgd(0.1), aggregation=rule)


@pytest.mark.parametrize("protocol", FOR_UNEQUAL_DATA, ids=repr)
def test_sums_of_many_bfloat16_gradients_are_exact(protocol):
    """In bfloat16 a sum of ones ends at 256."""
    rule = protocol.aggregation(1)
    state = rule.init(jnp.zeros((), jnp.bfloat16))
    ones, workers = jnp.ones(900, jnp.bfloat16), jnp.zeros(900, jnp.int32)
    assert float(rule.finish(rule.add(state, ones, workers), 0)[0]) == 1.0


def test_an_update_without_gradients_moves_along_the_table():
    table = dj.cluster.protocols.ia2sgd().aggregation(1)
    trace = trace_of([[(0, 0)], [], []])
    replay = dj.replay(trace, constant_gradients, optax.sgd(1.0), aggregation=table)
    state = replay.init(jnp.zeros(2), jax.random.key(0))
    state, _ = replay.run(state, np.full((3, 1), 2.0))
    np.testing.assert_array_equal(state.params, [-6.0, -6.0])


# Ringleader's tables


def ringleader(order, workers, targets, start, rate):
    """Maranjyan and Richtarik's server, arrival by arrival (papers B.11).

    Returns the rows (worker, version) of the gradients that were new at each update,
    and the parameters after it.
    """
    xs, reads = [start], [0] * workers
    table = [[] for _ in range(workers)]
    surplus = [[] for _ in range(workers)]
    rows, row, unserved = [], [], set()
    for worker in order:
        gradient = xs[reads[worker]] - targets(len(rows), len(row))
        row.append((worker, reads[worker]))
        if not unserved:  # first phase: until everybody has delivered
            table[worker].append(gradient)
            if not all(table):
                continue
            unserved = set(range(workers)) - {worker}
        elif worker in unserved:
            table[worker].append(gradient)
            unserved.remove(worker)
        else:
            surplus[worker].append(gradient)
            continue
        direction = sum(sum(gs) / len(gs) for gs in table) / workers
        xs.append(xs[-1] - rate * direction)
        reads[worker] = len(xs) - 1
        rows.append(row)
        row = []
        if not unserved:
            table, surplus = surplus, [[] for _ in range(workers)]
    return rows, xs[1:]


@functools.cache
def target(t, k):
    return np.random.default_rng((t, k)).normal(size=3)


def assert_leads(order, workers, chunk=None):
    start = np.array([1.0, -2.0, 0.5])
    rows, xs = ringleader(order, workers, target, start, 0.3)
    trace = trace_of(rows)
    targets = np.zeros((*trace.staleness.shape, 3), np.float32)
    for t, row in enumerate(rows):
        targets[t, : len(row)] = [target(t, k) for k in range(len(row))]
    tables = dj.cluster.protocols.ringleader().aggregation(workers)
    replay = dj.replay(trace, bowl, optax.sgd(0.3), aggregation=tables, chunk=chunk)
    start = jnp.asarray(start, jnp.float32)
    path, _, _ = follower(replay)(trace, targets, params=start)
    np.testing.assert_allclose(path, xs, rtol=1e-5, atol=1e-6)
    return rows


@pytest.mark.parametrize(
    ("workers", "chunk"), [(1, None), (2, None), (5, None), (3, 2)]
)
def test_ringleader_s_tables_are_those_of_its_server(workers, chunk):
    # the first worker delivers half of the gradients
    speeds = np.ones(workers)
    speeds[0] = max(1, workers - 1)
    order = np.random.default_rng(workers).choice(
        workers, size=16 * workers, p=speeds / speeds.sum()
    )
    rows = assert_leads(order.tolist(), workers, chunk)
    # or nothing is proven: several rounds, surplus in some
    assert len(rows) >= 2 * workers
    assert workers == 1 or max(map(len, rows[1:])) > 1


def test_slots_without_a_gradient_leave_ringleader_s_tables_alone():
    tables = dj.cluster.protocols.ringleader().aggregation(3)
    state = tables.add(tables.init(jnp.zeros(2)), jnp.ones((2, 2)), jnp.array([0, 2]))
    nobody = jnp.full((2, 2), jnp.nan), jnp.array([-1, -1])
    assert_same(tables.add(state, *nobody), state)


def constant_gradients(params, batch, key):
    return 0.0, jnp.full_like(params, batch)


def finite(grads, memory, params, **extra_args):
    return jnp.isfinite(grads).all(), grads, memory


def ringleader_rows(updates):
    order = np.random.default_rng(0).choice(3, size=90, p=[0.6, 0.2, 0.2]).tolist()
    return ringleader(order, 3, target, np.zeros(3), 0.1)[0][:updates]


def test_a_gradient_that_each_refuses_leaves_ringleader_s_rounds_as_they_are():
    """The mean of worker 1 is 0, and the rounds are the rounds of the trace."""
    rows = ringleader_rows(12)
    trace = trace_of(rows)
    values = np.full(trace.staleness.shape, 1.0, np.float32)
    values[trace.arrivals(0, 12).worker == 1] = np.nan
    tables = dj.cluster.protocols.ringleader().aggregation(3)
    each = dj.refusing(optax.identity(), finite)
    tx = optax.sgd(1.0)
    replay = dj.replay(trace, constant_gradients, tx, each=each, aggregation=tables)
    state = replay.init(jnp.zeros(2), jax.random.key(0))
    state, _ = replay.run(state, values)
    # an update whose gradients are all refused moves nothing
    some = sum({worker for worker, _ in row} != {1} for row in rows)
    np.testing.assert_allclose(state.params, -2 / 3 * some, rtol=1e-6)


def test_a_nan_in_ringleader_s_tables_is_refused_for_one_round():
    rows = ringleader_rows(30)
    trace = trace_of(rows)
    values = np.ones(trace.staleness.shape, np.float32)
    update = next(t for t, row in enumerate(rows) if t > 3 and len(row) > 1)
    values[update, 0] = np.nan  # for the next round
    tables = dj.cluster.protocols.ringleader().aggregation(3)
    tx = dj.refusing(optax.sgd(1.0), finite)
    replay = dj.replay(trace, constant_gradients, tx, aggregation=tables)
    state = replay.init(jnp.zeros(2), jax.random.key(0))
    _, report = replay.run(state, values)
    (refused,) = np.nonzero(np.asarray(report.gradients) == 0)
    first = 3 * (update // 3 + 1)  # a round has three updates
    np.testing.assert_array_equal(refused, np.arange(first, first + 3))


def test_what_overflowed_in_a_round_of_ringleader_does_not_outlive_it():
    tables = dj.cluster.protocols.ringleader().aggregation(1)
    state = tables.init(jnp.zeros(()))
    for gradient in jnp.inf, 3.0, 4.0:
        state = tables.add(state, jnp.full(1, gradient), jnp.zeros(1, jnp.int32))
        direction, state = tables.finish(state, 0)
        assert direction == gradient


def test_the_cluster_s_ringleader_hands_its_tables_what_its_server_hands_them():
    workers = 4
    cluster = dj.cluster.Cluster(
        workers, dj.cluster.exponential(1.0), slowdown=[1.0, 1.0, 2.0, 6.0]
    )
    protocol = dj.cluster.protocols.ringleader()
    trace = dj.cluster.simulate(cluster, protocol, 24, seed=1)
    assert trace.max_staleness <= 2 * workers - 2
    rows = assert_leads(trace.worker.tolist(), workers)
    assert rows == rows_of(trace)
