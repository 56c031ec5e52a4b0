"""The arguments of the optimizer, and the change of an update if a rule refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.training.traces import (
    FULL,
    KEY,
    TRACES,
    assert_same,
    batches_of,
    bowl,
    counting,
    follower,
    grad_fn,
    shapes_after,
    trace_of,
)


@pytest.mark.parametrize(
    ("name", "spread", "names", "kind"),
    [
        ("deep", 0.0, {"staleness", "stale_params", "worker"}, jnp.int32),
        ("deep", 1.0, {"staleness", "stale_params", "worker"}, jnp.int32),
        ("four equally late", 0.0, {"staleness", "stale_params"}, jnp.int32),
        ("four equally late", 1.0, {"staleness"}, jnp.float32),
        ("ragged", 0.0, {"staleness"}, jnp.float32),
    ],
)
def test_the_optimizer_is_told_what_an_update_s_gradients_share(
    name, spread, names, kind
):
    seen, trace = [], TRACES[name]
    replay = dj.replay(trace, grad_fn, counting(seen), read_spread=spread)
    shapes_after(replay, trace, batches_of(trace))
    for extra in seen:
        assert set(extra) == names
        assert (extra["staleness"].dtype, extra["staleness"].shape) == (kind, ())
    assert seen


@pytest.mark.parametrize("name", ["deep", "ragged"])
def test_transformations_that_take_no_extra_arguments_are_fine(name):
    trace, plain = TRACES[name], optax.GradientTransformation(*optax.scale(-0.1))
    replay = dj.replay(trace, grad_fn, plain, each=plain)
    shapes_after(replay, trace, batches_of(trace))


@pytest.mark.parametrize("names", [("deep", "four"), ("four", "deep")])
def test_rows_of_several_traces_are_as_wide_as_the_widest(names):
    """The staleness is then a mean, also along the narrow trace."""
    seen, traces = [], [TRACES[name] for name in names]
    replay = dj.replay(traces, grad_fn, counting(seen))
    shapes_after(replay, TRACES["four"], batches_of(TRACES["four"]))
    assert {extra["staleness"].dtype for extra in seen} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("place", ["each", "tx"])
def test_an_update_whose_gradients_are_all_refused_moves_nothing(place):
    trace = TRACES["ragged"]

    def none(gradients, memory, params, **extra_args):
        return jnp.zeros((), bool), gradients, memory

    replay = dj.replay(trace, bowl, **FULL | {place: dj.refusing(FULL[place], none)})
    start = jnp.array([1.0, -2.0])
    fresh = replay.init(start, KEY)
    batches = batches_of(trace)["target"]
    path, reports, state = follower(replay)(trace, batches, params=start)
    np.testing.assert_array_equal(path, np.tile(start, (trace.num_updates, 1)))
    rule = {"each": state.each_state, "tx": state.opt_state}[place]
    assert not rule.applied
    refused = len(trace.update) if place == "each" else trace.num_updates
    assert rule.dropped == rule.dropped_in_row == refused
    if place == "each":
        assert_same(state.opt_state, fresh.opt_state)
        assert_same(rule.inner_state, fresh.each_state.inner_state)
    else:
        assert_same(rule.inner_state, fresh.opt_state.inner_state)
    assert state.version == 0 and (reports.ages == -1).all()
    assert not reports.gradients.any()
    assert not reports.staleness.any()
    assert state.versions.pushed == trace.num_updates


@pytest.mark.parametrize("place", ["each", "tx"])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_staleness_counts_the_updates_that_were_applied(spread, place):
    accepted = np.random.default_rng(1).random(30) < 0.5
    trace = trace_of([[(0, max(0, t - 4))] for t in range(30)])

    def flag(params, batch, key):
        return {}, params * 0 + batch

    def positive(gradients, memory, params, *, staleness, **extra_args):
        return gradients > 0, gradients, memory

    rules = {"each": optax.identity(), "tx": counting()}
    rules[place] = dj.refusing(rules[place], positive)
    replay = dj.replay(trace, flag, **rules, read_spread=spread)
    batches = accepted[:, None].astype(np.float32)
    path, reports, _ = follower(replay)(trace, batches, params=jnp.zeros(()))
    applied = np.concatenate([[0], np.cumsum(accepted)])
    expected = np.array([applied[t] - applied[max(0, t - 4)] for t in range(30)])
    np.testing.assert_array_equal(path, applied[1:])
    np.testing.assert_array_equal(reports.gradients, accepted)
    np.testing.assert_array_equal(reports.staleness[accepted], expected[accepted])
    ages = np.where(accepted, expected, -1)
    np.testing.assert_array_equal(reports.ages, ages[:, None])


def test_the_loss_goes_with_its_gradient_where_it_is_the_only_metric():
    """Each gradient has its own loss, and the server has their mean."""

    def recorder():
        def init(params):
            return jnp.full((), jnp.nan)

        def update(updates, state, params=None, *, value=None, **extra_args):
            return updates, jnp.full((), -1.0) if value is None else value

        return optax.GradientTransformationExtraArgs(init, update)

    cluster = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    rule = dj.cluster.protocols.k_async(2)
    trace = dj.cluster.simulate(cluster, rule, 5, seed=0)
    batches = jnp.arange(10.0).reshape(5, 2)

    def trained(grad_fn):
        tx = optax.chain(optax.sgd(0.1), recorder())
        training = dj.replay(trace, grad_fn, tx, each=recorder())
        state = training.init(jnp.zeros(()), jax.random.key(0))
        state, report = training.run(state, batches)
        return state.opt_state[-1], state.each_state, report.metrics

    def loss(x, batch, key):
        return 0.5 * (x - batch) ** 2, x - batch

    def metrics(x, batch, key):
        return {"loss": 0.5 * (x - batch) ** 2}, x - batch

    mean, metric, reported = trained(loss)
    np.testing.assert_allclose(mean, reported[-1])
    assert not np.isclose(metric, mean)  # the loss of the last of two gradients
    assert [float(result) for result in trained(metrics)[:2]] == [-1.0, -1.0]


def test_an_update_without_gradients_moves_nothing_and_tells_the_optimizer_nothing():
    """The momentum would move, and a loss of 0 would stop `reduce_on_plateau`."""
    rows = [[(0, 0)], [], [], [(0, 3)], []]
    tx = optax.chain(
        optax.sgd(0.5, momentum=0.5),
        optax.contrib.reduce_on_plateau(factor=0.5, patience=1),
    )

    def square(x, batch, key):
        return 1.0 + x @ x / 2, x

    few, ends = [row for row in rows if row], []
    for each in rows, [[(0, t)] for t in range(len(few))]:
        replay = dj.replay(trace_of(each), square, tx)
        state = replay.init(jnp.ones(2), jax.random.key(0))
        state, report = replay.run(state, np.zeros((len(each), 1)))
        ends.append((state.params, state.opt_state))
        assert report.gradients.tolist() == [len(row) for row in each]
    assert_same(*ends)
