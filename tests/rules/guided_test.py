"""Consistent gradients are used once more, at every rho-th step."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.support.compiled import compile_as_usual

TARGET = jnp.array([1.0, -2.0, 0.5])


def verification(x):
    return 0.5 * jnp.sum((x - TARGET) ** 2)


def oracle(gradients, losses, path, *, period, replays):
    """The gradients that `guided` hands on, and how many it replayed, by lists."""
    kept, before, used, counts = [], 0.0, [], []
    for t, (g, loss, x) in enumerate(zip(gradients, losses, path, strict=True)):
        error = 0.5 * ((x - np.asarray(TARGET, float)) ** 2).sum()
        sign = 1.0 if error < before else -1.0
        for item in kept:  # [score, loss, gradient]
            item[0] += sign * (before - item[1])
        before = error
        if len(kept) > replays:
            kept.remove(min(kept, key=lambda item: item[0]))
        newest = [0.0, loss, g]
        again = []
        if (t + 1) % period == 0:
            again = [item[2] for item in kept if item[0] > 0]
            kept = []
        if np.isfinite(loss):
            kept.append(newest)
        used.append(g + sum(again))
        counts.append(len(again))
    return np.array(used), np.array(counts)


RANDOM = np.random.default_rng(0)
GRADIENTS = RANDOM.normal(size=(100, 3)).astype(np.float32)
# losses near those for verification: about half of the batches are consistent
LOSSES = (2.6 + 2.0 * RANDOM.normal(size=100)).astype(np.float32)
PATH = (0.5 * RANDOM.normal(size=(100, 3))).astype(np.float32)


def handed_on(tx, gradients=GRADIENTS, losses=LOSSES, path=PATH):
    def step(state, now):
        g, loss, x = now
        g, state = tx.update(g, state, x, value=loss)
        return state, (g, state)

    run = jax.jit(lambda rows: jax.lax.scan(step, tx.init(path[0]), rows)[1])
    return jax.tree.map(np.asarray, run((gradients, losses, path)))


@pytest.mark.parametrize(("period", "replays"), [(10, 4), (7, 1), (3, 5), (1, 2)])
def test_a_hundred_steps_are_those_of_lists(period, replays):
    tx = dj.guided(verification, period=period, replays=replays)
    got, states = handed_on(tx)
    wide = (np.asarray(x, float) for x in (GRADIENTS, LOSSES, PATH))
    wanted, counts = oracle(*wide, period=period, replays=replays)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.diff(states.replayed, prepend=0), counts)
    assert counts.sum() > 0 or period == 1
    if period == 3:  # there is something to see
        assert set(counts[2::3]) >= {1, 2, 3}


def trained(tx, steps=60):
    """SGD on noisy slopes of the verification loss, each with its batch's loss."""

    def step(carry, noise):
        x, state = carry
        loss, gradient = jax.value_and_grad(lambda x: verification(x) + x @ noise)(x)
        updates, state = tx.update(gradient, state, x, value=loss)
        return (optax.apply_updates(x, updates), state), verification(x)

    tx = dj.delayed(tx, dj.delays.uniform(jax.random.key(1), 0, 6), max_delay=6)
    noise = jax.random.normal(jax.random.key(0), (steps, 3))
    start = jnp.zeros(3), tx.init(jnp.zeros(3))
    return jax.jit(lambda noise: jax.lax.scan(step, start, noise))(noise)


def test_the_loss_of_a_late_gradient_stays_with_it():
    """Behind `delayed` the rule sees late gradients, with their own losses."""

    def record(updates, state, params=None, *, value, **extra):
        return updates, (updates, value, params)

    start = jnp.zeros(3), jnp.zeros(()), jnp.zeros(3)
    recorder = optax.GradientTransformationExtraArgs(lambda params: start, record)
    rule = dj.guided(verification, period=4, replays=2)
    used, states = handed_on(
        dj.delayed(
            optax.chain(recorder, rule),
            dj.delays.uniform(jax.random.key(1), 0, 3),
            max_delay=3,
        )
    )
    rows = (np.asarray(x, float) for x in states.inner_state[0])
    wanted, counts = oracle(*rows, period=4, replays=2)
    np.testing.assert_allclose(used, wanted, rtol=1e-5, atol=1e-5)
    assert counts.sum() > 0 and (states.inner_state[0][1] != LOSSES).any()


def test_nothing_is_replayed_where_no_batch_is_consistent():
    """The verification loss falls, and all batches' losses are above it: plain SGD."""
    path = np.linspace(0.0, 0.9, 40)[:, None] * np.asarray(TARGET)
    got, states = handed_on(
        dj.guided(verification, period=5), GRADIENTS[:40], LOSSES[:40] + 99, path
    )
    np.testing.assert_array_equal(got, GRADIENTS[:40])
    assert states.replayed[-1] == 0
    # where the verification loss stays, those above it are consistent
    still, (high, low) = 0 * path, (LOSSES[:40] + 99, LOSSES[:40] - 99)
    for losses, count in ((high, 4 * 8), (low, 0)):
        rule = dj.guided(verification, period=5)
        _, states = handed_on(rule, GRADIENTS[:40], losses, still)
        assert states.replayed[-1] == count
    # below it: all that a list of four holds, and the rest of the list is the newest
    _, states = handed_on(
        dj.guided(verification, period=5), GRADIENTS[:40], LOSSES[:40] - 99, path
    )
    assert states.replayed[-1] == 4 * 8


def test_the_best_are_kept_and_not_the_last():
    """The losses grow within a period, so the first ones are the most consistent."""
    path = np.linspace(0.0, 0.9, 20)[:, None] * np.asarray(TARGET)
    losses = np.arange(20.0) - 99
    got, _ = handed_on(
        dj.guided(verification, period=10, replays=3), GRADIENTS[:20], losses, path
    )
    np.testing.assert_allclose(
        got[9], GRADIENTS[9] + GRADIENTS[:3].sum(0), rtol=1e-5, atol=1e-5
    )
    # the newest of a period stays for the next one
    np.testing.assert_allclose(
        got[19], GRADIENTS[19] + GRADIENTS[9:12].sum(0), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_whose_loss_is_not_finite_is_not_replayed(bad):
    losses = LOSSES.copy()
    losses[::3] = bad
    got, states = handed_on(dj.guided(verification, period=5), losses=losses)
    wide = (np.asarray(x, float) for x in (GRADIENTS, losses, PATH))
    wanted, counts = oracle(*wide, period=5, replays=4)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert states.replayed[-1] == counts.sum() > 0


def test_narrow_gradients_are_kept_as_they_are_and_added_in_float32():
    x = {"w": jnp.zeros(2, jnp.bfloat16)}
    tx = dj.guided(lambda x: -x["w"].sum(), period=6, replays=5)
    state, update = tx.init(x), jax.jit(tx.update)
    for t in range(6):
        x = {"w": jnp.full(2, 0.01 * t, jnp.bfloat16)}
        g = {"w": jnp.full(2, 256.0 if t == 0 else 1.0, jnp.bfloat16)}
        got, state = update(g, state, x, value=-9.0)
    # each of five ones would be lost in bfloat16 beside 256
    assert got["w"].dtype == jnp.bfloat16 and state.replayed == 5
    np.testing.assert_array_equal(got["w"].astype(float), 260.0)
    assert state.gradients["w"].dtype == jnp.uint16


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_step_writes_one_gradient_whatever_the_number_kept(dtype):
    params = {"w": jnp.ones(5000, dtype), "b": jnp.ones(3, dtype)}

    def program(replays):
        guided = dj.guided(lambda x: x["b"].sum(), period=10, replays=replays)
        tx = optax.chain(guided, optax.sgd(0.1))

        def step(params, state, loss):
            updates, state = tx.update(params, state, params, value=loss)
            return optax.apply_updates(params, updates), state

        step = jax.jit(step, donate_argnums=(0, 1))
        shapes = jax.eval_shape(tx.init, params)
        return compile_as_usual(step.lower(params, shapes, jnp.float32(0)))

    few, many = program(2), program(34)
    # no copy: 32 gradients more are held, and written over where they lie
    temporary = [one.memory_analysis().temp_size_in_bytes for one in (few, many)]
    assert temporary[1] - temporary[0] < 4 * params["w"].nbytes
    # their one reading stands in the branch of a step that replays
    text = many.as_text()
    assert "conditional" in text
    assert many.cost_analysis()["bytes accessed"] < few.cost_analysis()[
        "bytes accessed"
    ] + 1.2 * 32 * params["w"].nbytes * (4 / params["w"].dtype.itemsize + 1)


def on_workers(tx, batches, shared=None):
    def step(state, noise):
        x, opt_state = state
        loss, gradient = jax.value_and_grad(lambda x: verification(x) + x @ noise)(
            dj.workers.vary(x)
        )
        value = jax.lax.pmean(loss, "workers") if shared is None else loss
        updates, opt_state = tx.update(gradient, opt_state, x, value=value)
        return (optax.apply_updates(x, updates), opt_state), ()

    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
    for workers in (dj.workers.simulate(step, 4), dj.workers.run(step, mesh)):
        start = jnp.zeros(3), tx.init(jnp.zeros(3))
        state = workers.init(start, batches[0], shared=shared)
        run = jax.jit(lambda s, b, step=workers.step: jax.lax.scan(step, s, b))
        yield jax.tree.map(np.asarray, run(state, batches)[0].state)


BATCHES = RANDOM.normal(size=(24, 4, 3)).astype(np.float32)
RULE = dj.guided(verification, period=4, replays=2)


@pytest.mark.parametrize("place", ["on the server", "on each worker"])
def test_workers_are_the_same_simulated_and_on_devices(place):
    if place == "on the server":
        tx, shared = dj.exchange.mean(optax.chain(RULE, optax.sgd(0.1))), None
    else:  # with a list of its own
        tx = optax.chain(RULE, dj.exchange.mean(optax.sgd(0.1)))
        shared = (True, False)
    simulated, ran = on_workers(tx, BATCHES, shared)
    chex.assert_trees_all_close(simulated, ran, rtol=1e-4, atol=1e-5)
    replayed = optax.tree.get(ran[1], "replayed")
    assert (replayed > 0).all()
    assert np.shape(replayed) == (() if shared is None else (4,))
    if shared is not None:
        assert len(set(replayed.tolist())) > 1


def test_periods_are_one_program():
    def count(period):
        tx = optax.chain(dj.guided(verification, period=period), optax.sgd(0.05))
        return optax.tree.get(trained(tx)[0][1], "replayed")

    periods = jnp.array([2, 5, 12])
    together = jax.vmap(count)(periods)
    assert together.tolist() == [int(count(int(period))) for period in periods]
    assert len(set(together.tolist())) == 3


TREE = {"w": jnp.ones(2), "b": jnp.zeros(())}
TX = dj.guided(lambda x: x["b"], period=2)


def update(tx=TX, given=TREE, params=TREE, **told):
    return tx.update(given, tx.init(TREE), params, **told)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: dj.guided(TREE),
            TypeError,
            "`loss_fn` must be a function of the parameters, got",
        ),
        (lambda: dj.guided(len, period=0), ValueError, "`period` must be .*, got 0"),
        (lambda: dj.guided(len, replays=0), ValueError, "`replays` must be .*, got 0"),
        (
            lambda: update(params=None, value=1.0),
            TypeError,
            r"`guided` needs the extra argument `params`.*update\(grads, state, params",
        ),
        (
            lambda: update(),
            TypeError,
            r"`guided` needs the extra .*`value`.*value=loss",
        ),
        (
            lambda: update(value=jnp.ones(2)),
            ValueError,
            "`value` handed to `guided` must be a scalar",
        ),
        (
            lambda: update(tx=dj.guided(lambda x: x["w"]), value=1.0),
            ValueError,
            r"`loss_fn\(params\)` must be a scalar, got shape \(2,\)",
        ),
        (
            lambda: update(given={**TREE, "b": jnp.int32(1)}, value=1.0),
            TypeError,
            r"`guided` needs floating-point gradients, got int32 at \['b'\]",
        ),
        (
            lambda: update(given={"w": TREE["w"]}, value=1.0),
            ValueError,
            "`updates` must have the structure",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
