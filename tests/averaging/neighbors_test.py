"""Methods that mix with a few other workers, compared with their mixing matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    SGD,
    STEPS,
    assert_follows,
    path,
    seen_of,
    train,
)
from tests.exchange.driving import WORKERS, executions, program

KEY = jax.random.key(11)
SENDS = np.random.default_rng(9).random((STEPS, WORKERS)) < 0.6


def sends(step):
    return jnp.asarray(SENDS)[step, jax.lax.axis_index("workers")]


def ring(t, workers=WORKERS):
    """W of D-PSGD: a third each of a worker's model and of both neighbors' models."""
    matrix = np.zeros((workers, workers))
    for i in range(workers):
        for j in (i - 1, i, i + 1):
            matrix[i, j % workers] += 1 / 3
    return matrix


def pairs(t, workers=WORKERS):
    """W of AD-PSGD: the even ranks and their random partners."""
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
    """x^i <- (W (x + U))^i, or (W x + U)^i with the models before the step."""

    def mix(t, x, v):
        w = matrix(t) if (t + 1) % period == 0 else np.eye(WORKERS)
        return w @ x + v if before else w @ (x + v)

    return path(mix, momentum=momentum)


def exponential(exchange, peers, workers=WORKERS, sending=None):
    """The column-stochastic matrix of SGP: what j sends to i."""
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
    """Sums w z and weights w; the gradient is taken at z."""
    w = np.ones((WORKERS, 1))

    def mix(t, z, v):
        nonlocal w
        if (t + 1) % period:
            return z + v / w
        row = None if table is None else table[t]
        matrix = exponential(t // period, peers, sending=row)
        total, w = matrix @ (w * z + v), matrix @ w
        return total / w

    return path(mix)


METHODS = {
    "gossip, pull": (averaging.gossip(SGD, key=KEY), lambda: mixed(pull)),
    "gossip, push, H = 3": (
        averaging.gossip(SGD, key=KEY, push=True, period=3),
        lambda: mixed(push, period=3),
    ),
    "D-PSGD": (
        averaging.d_psgd(optax.sgd(ETA, momentum=0.9)),
        lambda: mixed(ring, before=True, momentum=0.9),
    ),
    "D-PSGD after the step, H = 2": (
        averaging.d_psgd(SGD, overlap=False, period=2),
        lambda: mixed(ring, period=2),
    ),
    "AD-PSGD": (
        averaging.ad_psgd(SGD, key=KEY),
        lambda: mixed(pairs, before=True),
    ),
    "AD-PSGD, H = 2": (
        averaging.ad_psgd(SGD, key=KEY, period=2),
        lambda: mixed(pairs, before=True, period=2),
    ),
    "SGP, two peers": (averaging.sgp(SGD, peers=2), lambda: push_sum(2)),
    "SGP, some silent": (
        averaging.sgp(SGD, participates=sends),
        lambda: push_sum(1, table=SENDS),
    ),
    "SGP every second step, as SwarmSGD": (
        averaging.sgp(SGD, period=2),
        lambda: push_sum(1, period=2),
    ),
}


@executions
def test_models_follow_the_mixing_matrices(execution):
    trained = train(execution, {name: tx for name, (tx, _) in METHODS.items()})
    for name, (_, expected) in METHODS.items():
        assert_follows(trained[name][0], expected(), name)


STILL = optax.sgd(1.0)
MIXING = {
    "D-PSGD": (averaging.d_psgd(STILL), ring),
    "AD-PSGD": (averaging.ad_psgd(STILL, key=KEY), pairs),
    "pull": (averaging.gossip(STILL, key=KEY), pull),
    "push": (averaging.gossip(STILL, key=KEY, push=True), push),
    "SGP": (averaging.sgp(STILL), lambda t, p: exponential(t, 1, p)),
    "SGP, two peers": (
        averaging.sgp(STILL, peers=2),
        lambda t, p: exponential(t, 2, p),
    ),
}


@pytest.mark.parametrize("workers", [2, 6, 8])
def test_workers_of_any_number_mix_by_their_matrices(workers):
    """With two workers on a ring, each is the neighbor of the other on both sides."""
    start, steps = np.random.default_rng(1).normal(size=(workers, 3)), 7
    names = [n for n in MIXING if workers > 2 or n != "SGP, two peers"]
    txs = {name: MIXING[name][0] for name in names}
    seen = seen_of(txs, start, np.zeros((steps, workers, 3)))
    for name in names:
        x = start
        for t in range(steps):
            x = MIXING[name][1](t, workers) @ x
            np.testing.assert_allclose(
                seen[name][t], x, rtol=1e-12, atol=1e-13, err_msg=name
            )


def test_sums_and_weights_are_conserved_whoever_sends():
    start = np.random.default_rng(1).normal(size=(8, 3))
    tables = [np.random.default_rng(seed).random((30, 8)) < 0.5 for seed in (1, 2, 3)]

    def sender(table):
        return lambda step: jnp.asarray(table)[step, jax.lax.axis_index("workers")]

    def model_and_weight(x, state):
        return x, state.memory.weight

    txs = {
        i: averaging.sgp(STILL, participates=sender(t)) for i, t in enumerate(tables)
    }
    seen = seen_of(txs, start, np.zeros((30, 8, 3)), see=model_and_weight)
    for xs, weights in seen.values():
        assert np.ptp(weights[-1]) > 0.1
        np.testing.assert_allclose(weights.sum(axis=1), np.full(30, 8), rtol=1e-12)
        total = (weights[-1][:, None] * xs[-1]).sum(axis=0)
        np.testing.assert_allclose(total, start.sum(axis=0), rtol=1e-11, atol=1e-12)
        # at the end all agree on the mean: the rows of the matrices do not sum to one
        assert np.abs(xs[-1] - start.mean(axis=0)).max() < 0.1


def disagreement(x):
    """Sum over the workers of the squared distance to their mean."""
    return np.sum((x - x.mean(axis=-2, keepdims=True)) ** 2, axis=(-1, -2))


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
        (averaging.d_psgd(SGD), [1, 3]),
        (averaging.sgp(SGD, participates=lambda step: step >= 0), [1, 2]),
    ):
        text = program(tx, params, shared=False).as_text()
        assert "all-reduce" not in text
        assert "all-gather" not in text
        for hop in hops:
            pairs = ",".join(f"{{{i},{(i + hop) % WORKERS}}}" for i in range(WORKERS))
            assert f"source_target_pairs={{{pairs}}}" in text
