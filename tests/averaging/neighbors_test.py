"""Methods that mix with a few others: each against its mixing matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    STEPS,
    assert_follows,
    gradient,
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions, program

KEY = jax.random.key(11)
SENDS = np.random.default_rng(9).random((STEPS, WORKERS)) < 0.6


def sgd():
    return optax.sgd(ETA)


def sends(step):
    return jnp.asarray(SENDS)[step, jax.lax.axis_index("workers")]


def ring(t, workers=WORKERS):
    """D-PSGD's W: a third each of a worker's own model and of its neighbors'."""
    matrix = np.zeros((workers, workers))
    for i in range(workers):
        for j in (i - 1, i, i + 1):
            matrix[i, j % workers] += 1 / 3
    return matrix


def pairs(t, workers=WORKERS):
    """AD-PSGD's: the even ranks and the partners that they draw."""
    drawn = jax.random.randint(jax.random.fold_in(KEY, t), (), 0, workers // 2, "int32")
    hop, matrix = 2 * int(drawn) + 1, np.zeros((workers, workers))
    for i in range(0, workers, 2):
        both = [i, (i + hop) % workers]
        matrix[np.ix_(both, both)] = 0.5
    return matrix


def peers_of(t, workers):
    keys = [jax.random.fold_in(jax.random.fold_in(KEY, t), i) for i in range(workers)]
    hops = [int(jax.random.randint(k, (), 1, workers, "int32")) for k in keys]
    return [(i + hop) % workers for i, hop in enumerate(hops)]


def pull(t, workers=WORKERS):
    matrix = np.eye(workers) / 2
    for i, j in enumerate(peers_of(t, workers)):
        matrix[i, j] += 0.5
    return matrix


def push(t, workers=WORKERS):
    matrix = np.eye(workers)
    for i, j in enumerate(peers_of(t, workers)):
        matrix[j, i] += 1
    return matrix / matrix.sum(axis=1, keepdims=True)


def mixed(matrix, *, before=False, period=1, momentum=0.0):
    """x^i <- (W (x + U))^i, or (W x + U)^i with the models as they were before."""
    x, v, xs = replicas(), np.zeros((WORKERS, 5)), []
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        w = matrix(t) if (t + 1) % period == 0 else np.eye(WORKERS)
        x = w @ x + v if before else w @ (x + v)
        xs.append(x)
    return np.stack(xs)


def exponential(exchange, peers, workers=WORKERS, sending=None):
    """SGP's column-stochastic matrix: what j sends to i."""
    hops = int(np.ceil(np.log2(workers)))
    matrix = np.zeros((workers, workers))
    for j in range(workers):
        if sending is not None and not sending[j]:
            matrix[j, j] = 1
            continue
        matrix[j, j] += 1 / (1 + peers)
        for k in range(peers):
            matrix[(j + 2 ** ((exchange + k) % hops)) % workers, j] += 1 / (1 + peers)
    return matrix


def push_sum(peers, *, period=1, table=None):
    """Sums x and weights w; the gradient is taken at z = x / w."""
    x, w, zs = replicas(), np.ones((WORKERS, 1)), []
    for t in range(STEPS):
        x = x - ETA * gradient(t, x / w)
        if (t + 1) % period == 0:
            row = None if table is None else table[t]
            matrix = exponential(t // period, peers, sending=row)
            x, w = matrix @ x, matrix @ w
        zs.append(x / w)
    return np.stack(zs)


METHODS = {
    "gossip, pull": (lambda: averaging.gossip(sgd(), key=KEY), lambda: mixed(pull)),
    "gossip, push, H = 3": (
        lambda: averaging.gossip(sgd(), key=KEY, push=True, period=3),
        lambda: mixed(push, period=3),
    ),
    "D-PSGD": (
        lambda: averaging.d_psgd(optax.sgd(ETA, momentum=0.9)),
        lambda: mixed(ring, before=True, momentum=0.9),
    ),
    "D-PSGD after the step, H = 2": (
        lambda: averaging.d_psgd(sgd(), overlap=False, period=2),
        lambda: mixed(ring, period=2),
    ),
    "AD-PSGD": (
        lambda: averaging.ad_psgd(sgd(), key=KEY),
        lambda: mixed(pairs, before=True),
    ),
    "AD-PSGD, H = 2": (
        lambda: averaging.ad_psgd(sgd(), key=KEY, period=2),
        lambda: mixed(pairs, before=True, period=2),
    ),
    "SGP, one peer": (lambda: averaging.sgp(sgd()), lambda: push_sum(1)),
    "SGP, two peers": (lambda: averaging.sgp(sgd(), peers=2), lambda: push_sum(2)),
    "SGP, some silent": (
        lambda: averaging.sgp(sgd(), participates=sends),
        lambda: push_sum(1, table=SENDS),
    ),
    "SGP every second step, as SwarmSGD": (
        lambda: averaging.sgp(sgd(), period=2),
        lambda: push_sum(1, period=2),
    ),
}


@functools.cache
def trained(execution):
    return train(execution, {name: make for name, (make, _) in METHODS.items()})


@executions
@pytest.mark.parametrize("name", METHODS)
def test_models_follow_the_mixing_matrices(execution, name):
    xs, _ = trained(execution)[name]
    assert_follows(xs, METHODS[name][1]())


def all_exchanges(makes, start, steps):
    """By name, x [T, P, n] of exchanges alone, and the last state, in float64."""
    with jax.enable_x64(True):
        txs = {name: make(optax.sgd(1.0)) for name, make in makes.items()}

        def run(x):
            def step(carry, _):
                xs = {}
                for name, tx in txs.items():
                    x, state = carry[name]
                    updates, state = tx.update(jnp.zeros_like(x), state, x)
                    carry = carry | {name: (x + updates, state)}
                    xs[name] = x + updates
                return carry, xs

            states = {name: (x, tx.init(x)) for name, tx in txs.items()}
            states, xs = jax.lax.scan(step, states, length=steps)
            return xs, {name: state for name, (_, state) in states.items()}

        xs, states = jax.jit(jax.vmap(run, axis_name="workers"))(jnp.asarray(start))
        states = jax.tree.map(np.asarray, states)
        return {n: (np.moveaxis(np.asarray(xs[n]), 0, 1), states[n]) for n in txs}


def exchanges(make, start, steps):
    """The same, of one."""
    return all_exchanges({"": make}, start, steps)[""]


MIXING = {
    "D-PSGD": (averaging.d_psgd, ring),
    "AD-PSGD": (lambda inner: averaging.ad_psgd(inner, key=KEY), pairs),
    "pull": (lambda inner: averaging.gossip(inner, key=KEY), pull),
    "push": (lambda inner: averaging.gossip(inner, key=KEY, push=True), push),
    "SGP": (averaging.sgp, lambda t, p: exponential(t, 1, p)),
    "SGP, three peers": (
        lambda inner: averaging.sgp(inner, peers=3),
        lambda t, p: exponential(t, 3, p),
    ),
}


@functools.cache
def mixing(workers):
    """Models before, and as `all_exchanges` after."""
    start = np.random.default_rng(1).normal(size=(workers, 3))
    makes = {name: make for name, (make, _) in MIXING.items()}
    return start, all_exchanges(makes, start, 30)


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("workers", [6, 8])
def test_workers_of_any_number_mix_by_their_matrices(name, workers):
    x, found = mixing(workers)
    matrix = MIXING[name][1]
    for t, seen in enumerate(found[name][0][:7]):
        x = matrix(t, workers) @ x
        np.testing.assert_allclose(seen, x, rtol=1e-12, atol=1e-13)


def test_two_neighbors_on_a_ring_of_two_are_one():
    xs, _ = exchanges(averaging.d_psgd, np.asarray([[0.0], [3.0]]), 1)
    np.testing.assert_allclose(xs[0], [[2.0], [1.0]])  # (x^j + x^i + x^j) / 3


@pytest.mark.parametrize("name", ["D-PSGD", "AD-PSGD", "SGP"])
def test_the_workers_mean_is_conserved(name):
    start, found = mixing(8)
    xs, _ = found[name]
    expected = np.broadcast_to(start.mean(axis=0), (30, 3))
    np.testing.assert_allclose(xs.mean(axis=1), expected, rtol=1e-12, atol=1e-13)
    assert np.ptp(xs[-1], axis=0).max() < 0.05 * np.ptp(start, axis=0).max()


SEEDS = [1, 2, 3]


@functools.cache
def partly_sent():
    """By seed of who sends, models before, and as `exchanges` after."""

    def sender(seed):
        table = jnp.asarray(np.random.default_rng(seed).random((30, 8)) < 0.5)
        return lambda step: table[step, jax.lax.axis_index("workers")]

    def maker(seed):
        return lambda inner: averaging.sgp(inner, participates=sender(seed))

    start = np.random.default_rng(1).normal(size=(8, 3))
    makes = {str(seed): maker(seed) for seed in SEEDS}
    return start, all_exchanges(makes, start, 30)


def test_sums_and_weights_are_conserved_whoever_sends():
    start, found = partly_sent()
    for xs, state in found.values():
        weights = state.memory.weight[:, None]
        assert np.ptp(weights) > 0.1
        np.testing.assert_allclose(weights.sum(), 8, rtol=1e-12)
        total = (weights * xs[-1]).sum(axis=0)
        np.testing.assert_allclose(total, start.sum(axis=0), rtol=1e-11, atol=1e-12)
        # all agree on the mean in the end: the matrices' rows do not sum to one
        assert np.abs(xs[-1] - start.mean(axis=0)).max() < 0.1


def test_weights_stay_one_where_all_send():
    start = np.random.default_rng(1).normal(size=(8, 3))
    _, state = exchanges(lambda i: averaging.sgp(i, peers=2), start, 30)
    np.testing.assert_allclose(state.memory.weight, np.ones(8), rtol=1e-13)


def disagreement(x):
    """Sum over the workers of the squared distance to their mean."""
    return np.sum((x - x.mean(axis=-2, keepdims=True)) ** 2, axis=(-1, -2))


def test_the_ring_contracts_by_its_second_eigenvalue():
    """Of W of 8 workers: (1 + 2 cos(2 pi / 8)) / 3, a slowest mode of one period."""
    workers, steps = 8, 10
    slowest = np.cos(2 * np.pi * np.arange(workers) / workers)[:, None]
    xs, _ = exchanges(averaging.d_psgd, slowest, steps)
    factor = ((1 + 2 * np.cos(2 * np.pi / workers)) / 3) ** 2
    expected = disagreement(slowest) * factor ** np.arange(1, steps + 1)
    np.testing.assert_allclose(disagreement(xs), expected, rtol=1e-10)


@pytest.mark.parametrize("workers", [4, 16])
def test_pulling_contracts_and_drifts_as_computed(workers):
    """D.6: the mean factor of a step, and the variance of the mean's drift."""
    start = np.random.default_rng(1).normal(size=(workers, 3))
    draws = 4000

    def step(key):
        tx = averaging.gossip(optax.sgd(1.0), key=key)

        def one(x):
            return x + tx.update(jnp.zeros(3), tx.init(x), x)[0]

        return jax.vmap(one, axis_name="workers")(jnp.asarray(start, jnp.float32))

    after = jax.jit(jax.vmap(step))(jax.random.split(KEY, draws))
    after = np.asarray(after, np.float64)
    p, before = workers, disagreement(start)
    factors = disagreement(after) / before
    drift = np.sum((after.mean(axis=1) - start.mean(axis=0)) ** 2, axis=-1) / before
    for seen, expected in (
        (factors, (1 - 1 / (p - 1)) / 2 - (1 - 1 / (p - 1) ** 2) / (4 * p)),
        (drift, (1 - 1 / (p - 1) ** 2) / (4 * p**2)),
    ):
        error = seen.std() / np.sqrt(draws)
        assert abs(seen.mean() - expected) < 4 * error
        assert error < 0.05 * expected


def test_a_step_on_devices_sends_to_the_drawn_or_due_peers_alone():
    params = jnp.zeros((8, 4))
    for tx, hops in (
        (averaging.d_psgd(sgd()), [1, 3]),
        (averaging.sgp(sgd(), participates=lambda step: step >= 0), [1, 2]),
    ):
        text = program(tx, params, shared=False).as_text()
        assert "all-reduce" not in text
        assert "all-gather" not in text
        for hop in hops:
            over = ",".join(f"{{{i},{(i + hop) % WORKERS}}}" for i in range(WORKERS))
            assert f"source_target_pairs={{{over}}}" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: averaging.gossip(sgd(), key=KEY, period=0), "`period` must be at"),
        (lambda: averaging.sgp(sgd(), period=0), "`period` must be at least"),
        (lambda: averaging.sgp(sgd(), peers=0), "`peers` must be at least"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("workers", "make", "error", "message"),
    [
        (1, averaging.d_psgd, ValueError, "`averaging.d_psgd` needs two workers"),
        (1, averaging.sgp, ValueError, "`averaging.sgp` needs two workers"),
        (1, lambda i: averaging.gossip(i, key=KEY), ValueError, "needs two workers"),
        (
            3,
            lambda i: averaging.ad_psgd(i, key=KEY),
            ValueError,
            "an even .* got 3",
        ),
        (
            4,
            lambda i: averaging.sgp(i, peers=3),
            ValueError,
            "`peers` must be at most 2, the number of hops of 4 workers, got 3",
        ),
        (
            4,
            lambda i: averaging.sgp(i, participates=lambda step: 1.0),
            TypeError,
            r"`participates\(step\)` must be a bool",
        ),
        (
            4,
            lambda i: averaging.sgp(i, participates=lambda step: jnp.zeros(4, bool)),
            ValueError,
            r"`participates\(step\)` must be a scalar",
        ),
    ],
)
def test_workers_that_cannot_be_served_are_refused(workers, make, error, message):
    with pytest.raises(error, match=message):
        exchanges(make, np.zeros((workers, 2)), 1)
