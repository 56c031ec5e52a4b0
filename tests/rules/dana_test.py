"""DANA against the paper's server, in numpy: a model, P momenta and what was sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.replayed import (
    CURVATURE,
    START,
    STEPS,
    gradient,
    noise,
    replayed,
    trace_of,
)

RATE, DECAY = 0.05, 0.9
CLUSTERS = {
    "random": (5, dj.cluster.exponential(1.0)),
    "round robin": (4, dj.cluster.constant(1.0)),
    "alone": (1, dj.cluster.constant(1.0)),
}


class Server:
    """Hakimi et al.: v_i <- b v_i + g; x <- x - eta v_i; send x - eta b sum_j v_j."""

    def __init__(self, workers):
        self.x, self.v = START, np.zeros((workers, 3))
        self.sent = [self.x]  # after each update

    def receive(self, worker, g):
        self.v[worker] = DECAY * self.v[worker] + g
        self.x = self.x - RATE * self.v[worker]
        self.sent.append(self.x - RATE * DECAY * self.v.sum(axis=0))


def dana_server(trace, batches):
    server = Server(trace.num_workers)
    for t in range(STEPS):
        g = gradient(server.sent[trace.read_version[t]], batches[t, 0])
        server.receive(trace.worker[t], g)
    return server


def sgd(rule):
    return optax.chain(rule, optax.scale_by_learning_rate(RATE))


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_parameters_are_what_the_papers_server_sends(name):
    trace, batches = trace_of(*CLUSTERS[name]), noise()
    server = dana_server(trace, batches)
    rule = dj.dana(DECAY, workers=trace.num_workers)
    xs, state = replayed(trace, batches, sgd(rule))
    momenta = state.opt_state[0].momenta
    # float64, and the problem contracts: rounding stays near 1e-16
    np.testing.assert_allclose(xs, server.sent, rtol=0, atol=1e-12)
    np.testing.assert_allclose(momenta, server.v, rtol=0, atol=1e-12)
    model = xs[-1] + RATE * DECAY * momenta.sum(axis=0)
    np.testing.assert_allclose(model, server.x, rtol=0, atol=1e-12)


def test_for_each_gradient_it_is_the_same_as_for_the_update():
    trace, batches = trace_of(*CLUSTERS["random"]), noise()
    rule = dj.dana(DECAY, workers=5)
    update, _ = replayed(trace, batches, sgd(rule))
    each, _ = replayed(trace, batches, optax.sgd(RATE), each=rule)
    np.testing.assert_allclose(update, each, rtol=0, atol=1e-12)


def test_one_worker_is_nesterov():
    trace, batches = trace_of(*CLUSTERS["alone"]), noise()
    ours, _ = replayed(trace, batches, sgd(dj.dana(DECAY, workers=1)))
    theirs, _ = replayed(trace, batches, optax.sgd(RATE, momentum=DECAY, nesterov=True))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def workers_step(tx):
    """A step of workers that keep momenta of their own: DANA-Slim."""

    def step(state, batch):
        params, opt_state = state
        point = dj.workers.vary(params)
        grads = jnp.asarray(CURVATURE, point.dtype) * point + batch
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    return step


def test_in_workers_it_is_nesterov_before_the_mean():
    """P workers in step: `replay` along hardsync and `simulate` agree."""
    workers, steps = 4, 20
    batches = np.random.default_rng(3).normal(size=(steps, workers, 3))
    cluster = dj.cluster.Cluster(workers, dj.cluster.constant(1.0))
    hardsync = dj.cluster.protocols.hardsync()
    trace = dj.cluster.simulate(cluster, hardsync, steps, seed=0)
    in_order = np.take_along_axis(batches, trace.workers[..., None], axis=1)
    rule = dj.dana(DECAY, workers=workers)
    served, _ = replayed(trace, in_order, optax.sgd(RATE), each=rule)
    slim = optax.trace(DECAY, nesterov=True)
    with jax.enable_x64(True):

        def before_the_mean(grads, state, params=None, **extra_args):
            return tx.update(grads, state, params, **extra_args)

        tx = optax.chain(slim, dj.exchange.mean(optax.sgd(RATE)))
        step = workers_step(
            optax.GradientTransformationExtraArgs(tx.init, before_the_mean)
        )
        loop, start = dj.workers.simulate(step, workers), jnp.asarray(START)
        held = loop.init((start, tx.init(start)), jnp.asarray(batches[0]))
        scan = jax.jit(lambda held, batches: jax.lax.scan(loop.step, held, batches)[0])
        end = np.asarray(scan(held, jnp.asarray(batches)).one()[0])
    np.testing.assert_allclose(end, served[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("worker", [-1, 4, 17])
def test_a_worker_that_is_not_there_makes_the_update_nan(worker):
    """JAX would move another worker's momentum."""
    rule, params = dj.dana(DECAY, workers=4), jnp.ones(2)
    state = rule.init(params)
    updates, after = jax.jit(rule.update)(params, state, worker=worker)
    assert np.isnan(updates).all()
    np.testing.assert_array_equal(after.momenta, state.momenta)


@pytest.mark.parametrize("scanned", [False, True])
def test_one_row_is_written_and_none_is_copied(scanned):
    workers, size = 64, 4096
    rule, params = dj.dana(DECAY, workers=workers), jnp.ones(size)

    def step(carry, worker):
        params, state = carry
        updates, state = rule.update(jnp.cos(params), state, worker=worker)
        return (params - updates, state), updates.sum()

    run, turn = step, jnp.int32(1)
    if scanned:
        run, turn = lambda *given: jax.lax.scan(step, *given), jnp.arange(9)
    program = jax.jit(run, donate_argnums=0)
    costs = program.lower((params, rule.init(params)), turn).compile().cost_analysis()
    assert costs["bytes accessed"] < workers * params.nbytes / 2


def test_only_the_workers_own_momentum_changes():
    rule = dj.dana(0.5, workers=3)
    state = rule.init(jnp.zeros(2))
    for worker, grad in ((0, 1.0), (2, 4.0), (0, 1.0)):
        _, state = rule.update(jnp.full(2, grad), state, worker=worker)
    np.testing.assert_array_equal(state.momenta, [[1.5, 1.5], [0.0, 0.0], [4.0, 4.0]])
