import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax._src.exchange.error_feedback import ErrorFeedbackState
from tests.exchange.driving import (
    WORKERS,
    as_workers,
    bytes_summed,
    drive,
    drive_all,
    executions,
    owners_at_first,
    parted,
    program,
    scanned,
    side_by_side,
)

STEPS = 40
PARAMS = {"w": jnp.zeros((5, 3), jnp.float32), "b": jnp.zeros(2, jnp.float32)}
SGD = optax.sgd(0.5)  # a power of two: integers stay exact


def one_entry(tree, step):
    """A simple compressor: entry t of each leaf, modulo its size."""

    def chosen(leaf):
        return (jnp.arange(leaf.size) == step % leaf.size).reshape(leaf.shape)

    sent = jax.tree.map(lambda leaf: jnp.where(chosen(leaf), leaf, 0), tree)
    return sent, lambda message: message


def everything(tree, step):
    return tree, lambda message: message


def in_bfloat16(tree, step):
    """A compressor to bfloat16; `error_feedback` casts the result back."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree), lambda m: m


def blocks(seed, fraction=0.2):
    return dj.exchange.random_blocks(jax.random.key(seed), fraction)


def whole_numbers(seed, steps=STEPS):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.integers(-9, 10, (steps, WORKERS, *p.shape)).astype(np.float32),
        PARAMS,
    )


def papers_loop(minima, steps, *, eta, momentum, strengths):
    """D.14 as written, e in units of +eta g, on f_i(x) = sum(curvature (x - b_i)^2)/2.

    Momentum on each worker, in front of the compressor: entry t mod n.
    """
    workers, entries = minima.shape
    x, error, velocity = np.zeros(entries), np.zeros((workers, entries)), 0.0
    xs = []
    for t, lam in zip(range(steps), strengths, strict=True):
        gradient = CURVATURE * (x - lam * error - minima)
        velocity = momentum * velocity + gradient
        p = eta * velocity + error
        sent = np.zeros_like(p)
        sent[:, t % entries] = p[:, t % entries]
        error = p - sent
        x = x - sent.mean(axis=0)
        xs.append(x)
    return np.stack(xs), error


CURVATURE = np.asarray([1.0, 0.5, 2.0, 0.1, 1.5, 0.7])
MINIMA = np.random.default_rng(0).normal(size=(WORKERS, 6))


PAPERS = {  # strength, momentum
    "EF": (0.0, 0.0),
    "DEF": (0.5, 0.9),
    "step ahead": (1.0, 0.0),
    "DEF-A": (lambda step: 0.9 / (1.0 + step), 0.9),
}


def detaching(strength, momentum):
    """The step of a worker on its quadratic, and its first state."""
    inner = optax.sgd(0.05, momentum=momentum)
    tx = dj.exchange.error_feedback(inner, one_entry)

    def step(state, minimum):
        x, opt_state = state
        point = dj.exchange.detached(x, opt_state, strength)
        grad = jnp.float32(CURVATURE) * (point - minimum)
        updates, opt_state = tx.update(grad, opt_state, x)
        x = optax.apply_updates(x, updates)
        return (x, opt_state), x

    return step, (jnp.zeros(6), tx.init(jnp.zeros(6)))


@executions
def test_iterates_and_errors_are_those_of_the_paper_s_loop(execution):
    made = {name: detaching(*of) for name, of in PAPERS.items()}
    held = as_workers(
        execution, side_by_side({n: step for n, (step, _) in made.items()})
    )
    batches = jnp.tile(jnp.asarray(MINIMA, jnp.float32), (STEPS, 1, 1))
    states = {name: start for name, (_, start) in made.items()}
    split, xs = scanned(held, states, batches, dict.fromkeys(made, (True, False)))
    split = parted(split)
    for name, (strength, momentum) in PAPERS.items():
        strengths = [
            strength(t) if callable(strength) else strength for t in range(STEPS)
        ]
        expected, error = papers_loop(
            MINIMA, STEPS, eta=0.05, momentum=momentum, strengths=strengths
        )
        np.testing.assert_allclose(xs[name], expected, rtol=1e-4, atol=1e-5)
        seen = split[name].state[1].error
        np.testing.assert_allclose(seen, -error, rtol=1e-4, atol=1e-5)
        assert np.abs(error).max() > 0.05


WHOLE = {"everything": everything, "all in one block": blocks(1, fraction=1.0)}
PARTS = {"in bfloat16": in_bfloat16} | {
    f"blocks {seed}": blocks(seed) for seed in (1, 2, 3)
}


@functools.cache
def driven(execution):
    """The gradients, and by compressor the split and the updates."""
    compressors = WHOLE | PARTS if execution == "simulate" else WHOLE
    txs = {
        name: dj.exchange.error_feedback(SGD, compress)
        for name, compress in compressors.items()
    }
    grads = whole_numbers(1)
    return grads, drive_all(execution, txs, grads, PARAMS)


@pytest.mark.parametrize("compress", PARTS)
def test_no_update_is_lost(compress):
    grads, result = driven("simulate")
    split, updates = result[compress]
    _, state = split.state
    for name in PARAMS:
        assert updates[name].dtype == state.error[name].dtype == jnp.float32
        applied = WORKERS * np.asarray(updates[name], np.float64).sum(axis=0)
        kept = np.asarray(state.error[name], np.float64).sum(axis=0)
        sums = -0.5 * grads[name].sum(axis=(0, 1), dtype=np.float64)
        if compress == "in bfloat16":  # the mean of the messages is rounded once more
            np.testing.assert_allclose(applied + kept, sums, rtol=0.05, atol=2.0)
        else:
            np.testing.assert_array_equal(applied + kept, sums)


@executions
@pytest.mark.parametrize("compress", WHOLE)
def test_sending_everything_is_the_mean_of_the_updates_bitwise(execution, compress):
    grads, result = driven(execution)
    split, updates = result[compress]
    for name in PARAMS:
        np.testing.assert_array_equal(updates[name], -0.5 * grads[name].mean(axis=1))
        assert not split.state[1].error[name].any()


def waits(share, longest=20_000):
    """The steps between two sendings of an entry, and their probabilities."""
    k = np.arange(1, longest + 1)
    return k, share * (1 - share) ** (k - 1)


def exponent(step, strength, share):
    """Mean log of what an entry of a quadratic is multiplied by when it is sent.

    With a = eta h, and k steps since it was sent last, e grows to
    x (1 - (1 - lam a)^k) / lam, k a x at lam = 0, and is subtracted.
    """
    k, probability = waits(share)
    left = k * step if strength == 0 else (1 - (1 - strength * step) ** k) / strength
    return np.sum(probability * np.log(np.abs(1 - left)))


def edge(strength, share):
    """The least a above which the exponent is positive, by bisection."""
    low, high = 1e-3, 1.0
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (
            (low, middle) if exponent(middle, strength, share) > 0 else (middle, high)
        )
    return low


EDGE = edge(0.0, 0.01)
FACTORS, STRENGTHS = [0.5, 2.0], [0.0, 0.5]


@functools.cache
def growth(*, entries=100, steps=4000):
    """Mean log of the entries of x after so many steps on |x|^2 / 2, 1 % blocks.

    By strength, of each step size.
    """
    compress = dj.exchange.random_blocks(jax.random.key(1), 0.01)

    def run(x, step_size):
        tx = dj.exchange.error_feedback(optax.sgd(step_size), compress)

        def step(states, _):
            for strength in STRENGTHS:
                x, opt_state = states[strength]
                point = dj.exchange.detached(x, opt_state, strength)
                updates, opt_state = tx.update(point, opt_state, x)  # the gradient is x
                x = optax.apply_updates(x, updates)
                states = states | {strength: (x, opt_state)}
            return states, None

        states = dict.fromkeys(STRENGTHS, (x, tx.init(x)))
        states, _ = jax.lax.scan(step, states, length=steps)
        return {s: jnp.log(jnp.abs(x)).mean() for s, (x, _) in states.items()}

    workers = jax.vmap(run, in_axes=(0, None), axis_name="workers")
    sizes = jnp.asarray(FACTORS) * EDGE
    return jax.jit(jax.vmap(workers, in_axes=(None, 0)))(jnp.ones((2, entries)), sizes)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_error_feedback_has_an_edge_where_detached_error_feedback_has_none(
    factor, strength
):
    """1 % random blocks on a quadratic: each entry is sent with probability 1 %."""
    sent = 4000 * 0.01  # the number of sendings, on average
    expected = exponent(factor * EDGE, strength, 0.01)
    seen = growth()[strength][FACTORS.index(factor), 0] / sent
    # log of a factor has a deviation of about one, over 4000 sendings; what begins
    # and what ends the run count for about one of the 40
    assert abs(seen - expected) < 4 / np.sqrt(100 * sent) + 2 / sent
    if strength == 0:
        assert (seen > 0.1) == (factor > 1)
    else:
        assert seen < -0.1


def test_errors_and_moments_are_the_workers_own_and_the_rest_is_shared():
    tx = dj.exchange.error_feedback(optax.adam(0.1), one_entry)
    params, state = owners_at_first(tx, PARAMS)
    assert not any(jax.tree.leaves(params))
    adam = state.inner_state[0]
    assert all(jax.tree.leaves((state.error, adam.mu, adam.nu)))
    assert not any((state.step, adam.count))


def test_an_optimizer_behind_it_in_a_chain_is_shared():
    feedback = dj.exchange.error_feedback(optax.identity(), one_entry)
    _, (feedback, adam) = owners_at_first(
        optax.chain(feedback, optax.adam(0.1)), PARAMS
    )
    assert all(jax.tree.leaves(feedback.error))
    assert not any(jax.tree.leaves(adam))


def test_the_kept_blocks_travel_and_nothing_else():
    big = {"w": jnp.zeros((100, 100), "f4"), "b": jnp.zeros(50, "f4")}

    def sent(compress):
        tx = dj.exchange.error_feedback(optax.sgd(0.1), compress)
        return bytes_summed(program(tx, big))

    assert sent(everything) == 4 * (100 * 100 + 50)
    assert sent(blocks(1, fraction=0.01)) == 4 * (100 * 100 // 100 + 1)
    assert sent(blocks(1, fraction=0.5)) == 4 * (100 * 100 + 50) // 2


def state_with(error, step=0):
    return ErrorFeedbackState(jnp.int32(step), error, ())


def test_the_detached_point_keeps_dtypes_and_is_the_parameters_at_strength_zero():
    """The strength may be traced."""
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.float32(1 / 3)}
    state = state_with(jax.tree.map(lambda p: p + 2, params))
    detached = jax.jit(lambda strength: dj.exchange.detached(params, state, strength))
    jax.tree.map(np.testing.assert_array_equal, detached(jnp.float32(0)), params)
    half = detached(jnp.float32(0.5))
    assert jax.tree.map(jnp.result_type, half) == jax.tree.map(jnp.result_type, params)
    np.testing.assert_array_equal(half["w"], [2.5, 2.5, 2.5])


def test_the_error_is_found_inside_of_other_states():
    error = jnp.asarray([2.0, 4.0])
    for wrapped in (
        optax.chain(optax.clip(9.0), dj.exchange.error_feedback(SGD, everything)),
        dj.delayed(dj.exchange.error_feedback(SGD, everything), 2),
    ):
        state = optax.tree.set(wrapped.init(error), error=error)
        point = dj.exchange.detached(jnp.zeros(2), state, 0.5)
        np.testing.assert_array_equal(point, [1.0, 2.0])


@executions
def test_late_gradients_are_compressed_as_deco_sgd_does(execution):
    # Lu et al., arXiv:2507.17346: D_t = C(e + g_{t-tau}), e <- e + g_{t-tau} - D_t; the
    # order of the recipe: each worker delays its own gradients, then compresses
    tau = 3
    tx = dj.delayed(dj.exchange.error_feedback(SGD, one_entry), tau, warmup="skip")
    gradients = MINIMA * np.random.default_rng(1).normal(size=(STEPS, 1, 1))
    _, updates = drive(execution, tx, np.float32(gradients), jnp.zeros(6))
    error = np.zeros((WORKERS, 6))
    for t in range(STEPS):
        expected = np.zeros(6)
        if t >= tau:
            whole = error + gradients[t - tau]
            sent = np.zeros_like(whole)
            entry = (t - tau) % 6  # the inner optimizer's own count
            sent[:, entry] = whole[:, entry]
            error, expected = whole - sent, -0.5 * sent.mean(axis=0)
        np.testing.assert_allclose(
            np.reshape(updates[t], (-1, 6))[0], expected, rtol=1e-4, atol=1e-5
        )
