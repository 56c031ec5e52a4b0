"""Ordered momentum, compared with heavy ball that waits for whole buckets, in NumPy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.replayed import START, STEPS, gradient, noise, replayed, trace_of

RATE, DECAY = 0.03, 0.9
CLUSTERS = {
    "heavy tails": (5, dj.cluster.pareto(1 / 3, 1.5)),
    "round robin": (4, dj.cluster.constant(1.0)),
    "alone": (1, dj.cluster.constant(1.0)),
}
clusters = pytest.mark.parametrize("name", CLUSTERS)


def dispatches(trace):
    """The number j of each gradient: workers begin the gradients in this order.

    The first P are begun at version 0. After that, each update begins one.
    """
    workers = trace.num_workers
    first = dict.fromkeys(range(workers), True)
    numbers = []
    for worker, version in zip(trace.worker, trace.read_version, strict=True):
        numbers.append(worker if first[worker] else workers + version - 1)
        first[worker] = False
    return np.asarray(numbers)


def heavy_ball(sums, decay):
    """The models after a step for each bucket."""
    x, u = START, np.zeros(3)
    for total in sums:
        u = decay * u + total
        x = x - RATE * u
    return x


def models(trace, batches, decay=DECAY):
    """After each update, the model of heavy ball on the gradients so far."""
    workers, numbers = trace.num_workers, dispatches(trace)
    sums, result = np.zeros((STEPS + 2, 3)), [START]
    for t in range(STEPS):
        newest = (workers + t - 1) // workers  # the bucket of the newest dispatch
        g = gradient(result[trace.read_version[t]], batches[t, 0])
        sums[numbers[t] // workers] += g
        result.append(heavy_ball(sums[: newest + 1], decay))
    return np.asarray(result)


def sgd(rule):
    return optax.chain(rule, optax.scale_by_learning_rate(RATE))


@clusters
def test_it_is_heavy_ball_on_the_gradients_so_far_in_the_order_of_their_reads(name):
    trace, batches = trace_of(*CLUSTERS[name]), noise()
    rule = dj.ordered_momentum(DECAY, workers=trace.num_workers)
    xs, _ = replayed(trace, batches, sgd(rule))
    # in float64, with numbers below 10 and sums of 100 terms
    np.testing.assert_allclose(xs, models(trace, batches), rtol=0, atol=1e-13)


def test_the_momentum_is_of_the_newest_bucket():
    rule, decay, workers = dj.ordered_momentum(0.5, workers=3), 0.5, 3
    state, by_bucket = rule.init(jnp.zeros(())), {}
    for t, tau in enumerate((0, 0, 2, 1, 4, 0, 5, 3)):
        g = 1.0 + t
        _, state = rule.update(jnp.asarray(g), state, staleness=tau)
        b = -(-(t - tau) // workers)
        by_bucket[b] = by_bucket.get(b, 0.0) + g
        newest = -(-t // workers)
        expected = sum(decay ** (newest - b) * total for b, total in by_bucket.items())
        np.testing.assert_allclose(state.momentum, expected, rtol=1e-6)
        assert state.step == t + 1


def test_one_worker_is_heavy_ball():
    trace, batches = trace_of(*CLUSTERS["alone"]), noise()
    ours, _ = replayed(trace, batches, sgd(dj.ordered_momentum(DECAY, workers=1)))
    theirs, _ = replayed(trace, batches, optax.sgd(RATE, momentum=DECAY))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_without_decay_gradients_pass_unchanged():
    trace, batches = trace_of(*CLUSTERS["heavy tails"]), noise()
    ours, _ = replayed(trace, batches, sgd(dj.ordered_momentum(0.0, workers=5)))
    theirs, _ = replayed(trace, batches, optax.sgd(RATE))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_the_learning_rate_may_stand_before_it_or_after_it():
    trace, batches = trace_of(*CLUSTERS["heavy tails"]), noise()
    rule, rate = dj.ordered_momentum(DECAY, workers=5), optax.scale(-RATE)
    before, _ = replayed(trace, batches, optax.chain(rate, rule))
    after, _ = replayed(trace, batches, optax.chain(rule, rate))
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-13)


def test_each_leaf_may_have_its_own_staleness():
    rule, ones = (
        dj.ordered_momentum(0.5, workers=2),
        {"a": jnp.ones(2), "b": jnp.ones(2)},
    )
    both = alone = rule.init(ones)
    for tau in ({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 2, "b": 1}):
        moved, both = rule.update(ones, both, staleness=tau)
        expected, alone = rule.update(ones, alone, staleness=tau["a"])
        np.testing.assert_array_equal(moved["a"], expected["a"])
    assert (both.momentum["a"] != both.momentum["b"]).all()


def test_it_says_that_it_needs_staleness():
    rule = dj.ordered_momentum(0.9, workers=2)
    with pytest.raises(TypeError, match=r"`ordered_momentum` needs .*`staleness`"):
        rule.update(jnp.ones(2), rule.init(jnp.ones(2)))
