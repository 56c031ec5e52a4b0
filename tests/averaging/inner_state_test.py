"""The inner optimizers' states: averaged (DES-LOC) or begun anew (DiLoCo's rounds)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    START,
    STEPS,
    assert_follows,
    gradient,
    replicas,
    train,
)
from tests.averaging.methods import methods
from tests.exchange.driving import WORKERS, executions

RATE, B1, B2, EPS = 0.05, 0.9, 0.99, 1e-8
ADAM = optax.adam(RATE, b1=B1, b2=B2, eps=EPS)


def desynced(of_models, of_first, of_second, restart=None):
    """O.2, DES-LOC: x, m and v averaged every K_x, K_u, K_v steps, before their use.

    With `restart` m, v and the count begin anew at every so many steps.
    """
    x, m, v, xs = replicas(), np.zeros((WORKERS, 5)), np.zeros((WORKERS, 5)), []
    count = 0

    def mean_if(t, period, tree):
        due = period and t and t % period == 0
        return np.tile(tree.mean(axis=0), (WORKERS, 1)) if due else tree

    for t in range(STEPS):
        m, v = mean_if(t, of_first, m), mean_if(t, of_second, v)
        if restart and t % restart == 0:
            m, v, count = np.zeros_like(m), np.zeros_like(v), 0
        g = gradient(t, x)
        count += 1
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        corrected = m / (1 - B1**count), v / (1 - B2**count)
        x = x - RATE * corrected[0] / (np.sqrt(corrected[1]) + EPS)
        x = mean_if(t + 1, of_models, x)  # before its use in the next step
        xs.append(x)
    return np.stack(xs)


TXS = {
    "DES-LOC": (
        averaging.local_sgd(
            averaging.mean_of_state(ADAM, {"mu": 6, "nu": 12}), period=2
        ),
        lambda: desynced(2, 6, 12),
    ),
    "the first moment at each step": (
        averaging.local_sgd(averaging.mean_of_state(ADAM, {"mu": 1}), period=4),
        lambda: desynced(4, 1, None),
    ),
    "a new state each round": (
        averaging.local_sgd(averaging.reset_every(ADAM, 5), period=5),
        lambda: desynced(5, None, None, restart=5),
    ),
    "both": (
        averaging.outer(
            averaging.reset_every(averaging.mean_of_state(ADAM, {"nu": 3}), 9),
            optax.sgd(1.0),
            period=3,
        ),
        lambda: desynced(3, None, 3, restart=9),
    ),
}


@executions
def test_models_follow_adam_with_averaged_or_new_moments(execution):
    trained = train(execution, {name: tx for name, (tx, _) in TXS.items()})
    for name, (_, loop) in TXS.items():
        assert_follows(trained[name][0], loop(), name)


@pytest.mark.long
def test_under_every_method_both_wrappers_act_and_do_on_devices_as_simulated():
    """The first moment is averaged after step 50, and the state is of step 48."""
    inner = averaging.reset_every(averaging.mean_of_state(ADAM, {"mu": 2, "nu": 3}), 6)
    txs = {name: make(inner, 2) for name, make in methods(WORKERS).items()}
    del txs["outer, in fragments"]  # of two leaves; here is one
    simulated, ran = (train(execution, txs) for execution in ("simulate", "run"))
    for name in txs:
        assert_follows(ran[name][0], simulated[name][0], name)
        reset = simulated[name][1].state[1].inner_state
        (adam, *_) = reset.inner_state.inner_state
        moments = np.asarray(adam.mu)
        assert_follows(moments, np.tile(moments[0], (WORKERS, 1)), name)
        assert (np.asarray(adam.count) == STEPS % 6).all()


def test_what_has_no_name_in_the_state_is_left_to_each_worker():
    """Momentum averaged every step, and models too: SGD of the mean gradient."""
    inner = averaging.mean_of_state(optax.sgd(ETA, momentum=0.5), {"trace": 4})
    txs = {
        "averaged": averaging.local_sgd(inner, period=4),
        "apart": averaging.local_sgd(optax.sgd(ETA, momentum=0.5), period=4),
    }
    traces = {
        name: np.asarray(optax.tree.get(split.state[1], "trace"))
        for name, (_, split) in train("simulate", txs).items()
    }
    for trace in traces.values():  # fifty steps: two after the last mean
        assert np.ptp(trace, axis=0).max() > 1e-3


def test_every_state_of_a_name_is_averaged():
    """One for each group of parameters, as `optax.partition` keeps them."""
    groups = optax.partition({"a": ADAM, "b": ADAM}, {"x": "a", "y": "b"})
    tx = averaging.mean_of_state(groups, {"mu": 1})

    def step(g):
        grads = {"x": g, "y": 2 * g}
        return tx.update(grads, tx.init(grads), grads)[1]

    state = jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
    means = [leaf for _, leaf in optax.tree.get_all_with_path(state, "mu")]
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(means)])
    np.testing.assert_allclose(sorted(numbers), [0.2, 0.2, 0.4, 0.4], rtol=1e-6)


def stepped(tx):
    params = {"mu": jnp.ones(2)}  # a parameter's name is no field of the state

    def step(_):
        return tx.update(params, tx.init(params), params)

    return jax.vmap(step, axis_name="workers", axis_size=2, in_axes=None)(0)


@pytest.mark.parametrize(
    ("inner", "periods", "message"),
    [
        (ADAM, {"momentum": 4}, r"some of \['mu', 'nu'\], .* got \['momentum'\]"),
        (optax.trace(0.5), {"mu": 4}, r"some of \['trace'\], .* got \['mu'\]"),
        (ADAM, {"count": 4}, r"some of \['mu', 'nu'\], .* got \['count'\]"),
        (ADAM, {"mu": 0}, r"`periods\['mu'\]` must be at least 1, got 0"),
        (ADAM, {}, "`periods` must name a field of the state, got none"),
        (ADAM, 4, "'int' object has no attribute 'items'"),
    ],
)
def test_a_state_that_is_not_there_or_counts_is_refused(inner, periods, message):
    with pytest.raises((ValueError, AttributeError), match=message):
        stepped(averaging.mean_of_state(inner, periods))


def test_a_reset_optimizer_is_bitwise_a_new_one():
    tx = averaging.reset_every(ADAM, 3)
    x, state = jnp.asarray(START), tx.init(jnp.asarray(START))
    y, new = x, ADAM.init(x)
    for t in range(7):
        if t % 3 == 0:
            new = ADAM.init(y)
        moves, state = tx.update(x + t, state, x)
        x = x + moves
        moves, new = ADAM.update(y + t, new, y)
        y = y + moves
        np.testing.assert_array_equal(x, y)


def test_a_period_of_the_state_may_be_traced():
    """To the rounding of float32: XLA compiles the branches otherwise."""

    def run(period):
        averaged = averaging.mean_of_state(ADAM, {"mu": period})
        tx = averaging.reset_every(averaged, period + 1)

        def worker(grad):
            moves, state = [], tx.init(grad)
            for _ in range(5):
                move, state = tx.update(grad, state, grad)
                moves.append(move)
            return jnp.stack(moves)

        return jax.vmap(worker, axis_name="workers")(jnp.asarray([[1.0], [-3.0]]))

    known, traced = run(2), jax.jit(run)(jnp.int32(2))
    np.testing.assert_allclose(known, traced, rtol=1e-5)


def test_extra_arguments_reach_the_optimizer():
    inner = dj.drop_stale(optax.sgd(1.0), 1)
    for tx in (
        averaging.mean_of_state(dj.drop_stale(ADAM, 1), {"mu": 2}),
        averaging.reset_every(inner, 2),
    ):

        def step(x, staleness, tx=tx):
            return tx.update(x, tx.init(x), x, staleness=staleness)[0]

        over = jax.vmap(step, in_axes=(0, None), axis_name="workers")
        assert (np.asarray(over(jnp.ones(2), 5)) == 0).all()
        assert (np.asarray(over(jnp.ones(2), 0)) < 0).all()
