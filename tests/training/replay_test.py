"""`replay` against a server that keeps every version and takes gradients one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.edge_test import edge, spectral_radius
from tests.support.cases import shortened
from tests.training.traces import (
    ADAM,
    ADAPTIVE,
    KEY,
    MOMENTUM,
    RUNS,
    SGD,
    TRACES,
    Server,
    assert_close,
    batches_of,
    bowl,
    draw,
    follower,
    grad_fn,
    itself,
    mean_age,
    only,
    pick,
    rows_of,
    runs,
    trace_of,
    young,
)


def versions_agree(trace):
    return all(len({version for _, version in row}) <= 1 for row in rows_of(trace))


LATE = dj.scale_by_staleness(dj.modulation.inverse)


# a law that tells 0 from 1
KARDAM = dj.scale_by_staleness(dj.modulation.polynomial(1.0))


CONSTANT = dj.compensate_delay(0.5)


BOTH = optax.chain(ADAPTIVE, LATE)


def large(grads, staleness):
    """Event-triggered upload: the gradient's norm reaches a threshold."""
    return optax.tree.norm(grads) >= 2.5


# name: options of `replay`
OPTIONS = {
    "momentum": dict(tx=MOMENTUM),
    "rate over staleness": dict(tx=SGD, each=LATE),
    "DC-ASGD-c": dict(tx=SGD, each=CONSTANT),
    "both": dict(tx=ADAM, each=BOTH),
    "one chain": dict(tx=optax.chain(ADAPTIVE, ADAM, KARDAM)),
    "mean staleness": dict(tx=optax.chain(SGD, KARDAM)),
    "large ones": dict(tx=optax.chain(MOMENTUM, KARDAM), each=ADAPTIVE),
    "young ones": dict(tx=MOMENTUM, each=KARDAM),
}


ACCEPTS = {"large ones": large, "young ones": young}


@functools.cache
def library(company, options, chunk=None):
    traces = [TRACES[name] for name in company]
    arguments = dict(OPTIONS[options])
    if options in ACCEPTS:
        arguments["each"] = only(ACCEPTS[options], arguments["each"])
    return follower(dj.replay(traces, grad_fn, chunk=chunk, **arguments))


@functools.cache
def oracle(options):
    return Server(**OPTIONS[options], accept=ACCEPTS.get(options))


def assert_replays(options, name, company, chunk):
    trace = TRACES[name]
    batches = batches_of(trace)
    path, reports, state = library(company, options, chunk)(trace, batches)
    agree = all(versions_agree(TRACES[name]) for name in company)
    expected, rows, states = oracle(options).train(trace, batches, agree=agree)
    opt_state, each_state = states
    assert_close(path, expected)
    assert_close(state.opt_state, opt_state)
    if options in ACCEPTS:
        assert_close(state.each_state.inner_state, each_state)
    elif "each" in OPTIONS[options]:
        assert_close(state.each_state, each_state)
    ages, metrics = zip(*rows, strict=True)
    used = [len(row) for row in ages]
    np.testing.assert_array_equal(reports.gradients, used)
    np.testing.assert_allclose(reports.staleness, list(map(mean_age, ages)), rtol=1e-6)
    for t, row in enumerate(metrics):
        if row:
            seen = reports.metrics["fit"][t]
            np.testing.assert_allclose(seen, np.mean(row), rtol=1e-5)
    if options in ACCEPTS:  # or nothing is proven about it
        assert 0 < sum(used) < len(trace.update)


@runs
def test_replay_is_a_server_that_keeps_every_version(run):
    assert_replays("momentum", *RUNS[run])


KEPT = [
    ("rate over staleness", "ragged, at once"),
    ("DC-ASGD-c", "four equally late, alone"),
    ("both", "with empty updates"),
    ("both", "fifteen"),
    # at one version an update: the optimizer is told all about it
    ("one chain", "deep"),
    # several: it is told their mean staleness, Rudra's <sigma>
    ("mean staleness", "ragged"),
    ("large ones", "ragged"),
    ("large ones", "four, alone"),
    ("young ones", "ragged"),
]


LONG = [
    ("both", "ragged"),
    ("both", "some equally late, alone"),
    ("one chain", "one by one"),
    ("one chain", "some equally late, alone"),
    ("large ones", "one by one"),
    ("large ones", "four equally late, alone"),
]


@pytest.mark.parametrize(("options", "run"), shortened([*KEPT, *LONG], *KEPT))
def test_every_option_is_the_server_s(options, run):
    assert_replays(options, *RUNS[run])


def test_one_gradient_at_a_time_is_all_of_them_at_once():
    assert_replays("both", "fifteen", ("fifteen",), 1)


@pytest.mark.parametrize(
    ("width", "rate", "momentum", "chunk"),
    [(1, 0.25, 0.5, None), (2, 0.5, 0.0, None), (4, 0.5, 0.0, 3)],
)
def test_every_bit_is_right_where_no_operation_rounds(width, rate, momentum, chunk):
    """Integers and powers of two: float32 holds each number of these few updates."""
    rows = draw(width, [width] * (8 if width == 1 else 6), 3)
    targets = np.random.default_rng(1).integers(-8, 9, (len(rows), width, 2))
    xs, velocity = [np.array([4.0, -8.0])], 0.0
    for t, row in enumerate(rows):
        grads = [xs[v] - targets[t, k] for k, (_, v) in enumerate(row)]
        velocity = momentum * velocity + sum(grads) / width
        xs.append(xs[-1] - rate * velocity)
    trace = trace_of(rows)
    replay = dj.replay(trace, bowl, optax.sgd(rate, momentum=momentum), chunk=chunk)
    start = jnp.asarray(xs[0], jnp.float32)
    path, _, _ = follower(replay)(trace, targets.astype(np.float32), params=start)
    np.testing.assert_array_equal(path, xs[1:])


WORKERS, BATCH, UPDATES = 4, 8, 50


def mean_squares(params, batch):
    features, targets = batch
    return jnp.mean((jnp.tanh(features @ params) - targets) ** 2)


def mean_squares_grad(params, batch, key):
    return {}, jax.grad(mean_squares)(params, batch)


@functools.cache
def hardsync():
    trace = trace_of([[(w, t) for w in range(WORKERS)] for t in range(UPDATES)])
    return trace, follower(dj.replay(trace, mean_squares_grad, SGD))


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_hardsync_is_serial_sgd_on_the_union_of_the_batches(seed):
    """Papers I10, to round-off after fifty updates."""
    rng = np.random.default_rng(seed)
    shape = UPDATES, WORKERS, BATCH
    features = rng.normal(size=(*shape, 3)).astype(np.float32)
    targets = rng.normal(size=shape).astype(np.float32)
    params = start = jnp.asarray(rng.normal(size=3), jnp.float32)
    trace, follow = hardsync()
    path, _, _ = follow(trace, (features, targets), params=start)
    union = features.reshape(UPDATES, -1, 3), targets.reshape(UPDATES, -1)
    for t in range(UPDATES):
        params -= 0.1 * union_gradient(params, pick(union, t))
    np.testing.assert_allclose(path[-1], params, rtol=1e-6, atol=1e-6)


union_gradient = jax.jit(jax.grad(mean_squares))


# theory


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_round_robin_asgd_is_stable_up_to_the_edge_of_its_delay(workers):
    """Papers I6 and E.5: P workers in turn are a delay of P - 1."""
    tau = workers - 1
    window = 2 * (2 * tau + 1)  # a period of the slowest root at the edge
    updates = 400 * (2 * tau + 1)
    trace = trace_of([[(t % workers, max(0, t - tau))] for t in range(updates)])
    step_sizes = np.array([0.98, 1.02]) * edge(tau)

    def train(rate):
        replay = dj.replay(trace, itself, optax.sgd(rate))

        def body(state, inputs):
            state, _ = replay.step(state, inputs)
            return state, state.params

        inputs = trace.arrivals(0, updates), np.zeros((updates, 1))
        state = replay.init(jnp.ones((), jnp.float64), KEY)
        return jax.lax.scan(body, state, inputs)[1]

    with jax.enable_x64(True):
        path = np.asarray(jax.jit(jax.vmap(train))(jnp.asarray(step_sizes)))
    windows = updates // window
    norms = np.linalg.norm(path[:, : windows * window].reshape(2, windows, -1), axis=2)
    late = slice(windows // 2, None)
    slopes = np.polyfit(window * np.arange(windows)[late], np.log(norms[:, late].T), 1)
    assert slopes[0, 0] < 0 < slopes[0, 1]
    expected = np.log([spectral_radius(tau, a) for a in step_sizes])
    # the other roots and the ripple of the slowest one leave a little
    np.testing.assert_allclose(slopes[0], expected, rtol=0.02)
