import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax._src.exchange.error_feedback import ErrorFeedbackState
from tests.exchange.driving import (
    MIXED,
    WORKERS,
    as_workers,
    assert_agree,
    bytes_summed,
    drive,
    drive_all,
    executions,
    lowered,
    owners,
    program,
    types_inside,
)

STEPS = 40
PARAMS = {"w": jnp.zeros((5, 3), jnp.float32), "b": jnp.zeros(2, jnp.float32)}
SGD = optax.sgd(0.5)  # a power of two: whole numbers stay exact


def one_entry(tree, step):
    """Entry t of each leaf, counted around: a compressor anyone can follow."""

    def chosen(leaf):
        return (jnp.arange(leaf.size) == step % leaf.size).reshape(leaf.shape)

    sent = jax.tree.map(lambda leaf: jnp.where(chosen(leaf), leaf, 0), tree)
    return sent, lambda message: message


def everything(tree, step):
    return tree, lambda message: message


def in_bfloat16(tree, step):
    """Half the bytes; `error_feedback` casts back what arrives."""
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


@executions
@pytest.mark.parametrize(
    ("strength", "momentum"),
    [(0.0, 0.0), (0.5, 0.9), (1.0, 0.0), (lambda step: 0.9 / (1.0 + step), 0.9)],
    ids=["EF", "DEF", "step ahead", "DEF-A"],
)
def test_iterates_and_errors_are_those_of_the_paper_s_loop(
    execution, momentum, strength
):
    tx = dj.exchange.error_feedback(
        optax.sgd(0.05, momentum=momentum or None), one_entry
    )

    def loss(x, minimum):
        return jnp.sum(jnp.float32(CURVATURE) * (x - minimum) ** 2) / 2

    def step(state, minimum):
        x, opt_state = state
        point = dj.exchange.detached(x, opt_state, strength)
        grad = jax.grad(loss)(point, minimum)
        updates, opt_state = tx.update(grad, opt_state, x)
        x = optax.apply_updates(x, updates)
        return (x, opt_state), x

    held = as_workers(execution, step)
    start, batch = jnp.zeros(6), jnp.asarray(MINIMA, jnp.float32)
    split = held.init((start, tx.init(start)), batch)
    split, xs = jax.lax.scan(lambda s, _: held.step(s, batch), split, length=STEPS)

    schedule = strength if callable(strength) else lambda step: strength
    expected, error = papers_loop(
        MINIMA,
        STEPS,
        eta=0.05,
        momentum=momentum,
        strengths=map(schedule, range(STEPS)),
    )
    np.testing.assert_allclose(xs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(split.state[1].error, -error, rtol=1e-4, atol=1e-5)
    assert np.abs(error).max() > 0.05


WHOLE = {"everything": everything, "all in one block": blocks(1, fraction=1.0)}
PARTS = {"one entry": one_entry, "in bfloat16": in_bfloat16} | {
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
    grads, found = driven("simulate")
    split, updates = found[compress]
    _, state = split.state
    for name in PARAMS:
        assert updates[name].dtype == state.error[name].dtype == jnp.float32
        applied = WORKERS * np.asarray(updates[name], np.float64).sum(axis=0)
        kept = np.asarray(state.error[name], np.float64).sum(axis=0)
        made = -0.5 * grads[name].sum(axis=(0, 1), dtype=np.float64)
        if compress == "in bfloat16":  # the mean of what travels is rounded once more
            np.testing.assert_allclose(applied + kept, made, rtol=0.05, atol=2.0)
        else:
            np.testing.assert_array_equal(applied + kept, made)


@executions
@pytest.mark.parametrize("compress", WHOLE)
def test_sending_everything_is_the_mean_of_the_updates_bitwise(execution, compress):
    grads, found = driven(execution)
    split, updates = found[compress]
    for name in PARAMS:
        np.testing.assert_array_equal(updates[name], -0.5 * grads[name].mean(axis=1))
        assert not split.state[1].error[name].any()


def test_what_arrives_is_what_was_sent_and_it_leaves_the_error():
    compress = blocks(3)
    tx = dj.exchange.error_feedback(SGD, compress)
    grads = whole_numbers(1, steps=1)
    split, updates = drive("simulate", tx, grads, PARAMS)

    @jax.jit
    def those_sent(tree):
        message, restore = compress(tree, 0)
        return restore(message)

    sent = those_sent(jax.tree.map(jnp.ones_like, PARAMS))
    for name in PARAMS:
        assert 0 < sent[name].sum() < sent[name].size
        own = -0.5 * grads[name][0]
        expected = np.where(sent[name], own.mean(axis=0), 0)
        np.testing.assert_array_equal(updates[name][0], expected)
        kept = np.where(sent[name], 0, own)
        np.testing.assert_array_equal(split.state[1].error[name], kept)


def waits(share, longest=20_000):
    """Steps from one sending of an entry to the next, and their probabilities."""
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
    sent = 4000 * 0.01  # times, on average
    expected = exponent(factor * EDGE, strength, 0.01)
    seen = growth()[strength][FACTORS.index(factor), 0] / sent
    # log of a factor has a deviation of about one, over 4000 sendings; what begins
    # and what ends the run count for about one of the 40
    assert abs(seen - expected) < 4 / np.sqrt(100 * sent) + 2 / sent
    if strength == 0:
        assert (seen > 0.1) == (factor > 1)
    else:
        assert seen < -0.1


def test_the_edges_are_ordered_as_the_formula_says():
    # lam = 1/2: the factor 2 (1 - a / 2)^k - 1 lies within (-1, 1) for 0 < a < 2
    assert 0.01 < EDGE < 0.1
    assert all(exponent(a, 0.5, 0.01) < 0 for a in (EDGE, 0.3, 0.7, 1.9))


@functools.cache
def on_adam_and_in_bfloat16(execution):
    params = PARAMS | {"half": jnp.ones((5,), jnp.bfloat16)}
    rng = np.random.default_rng(1)
    grads = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=(STEPS, WORKERS, *p.shape)), p.dtype),
        params,
    )
    tx = dj.exchange.error_feedback(optax.adam(0.1), blocks(1))
    return drive(execution, tx, grads, params)


def test_simulate_and_run_agree_on_adam_and_in_bfloat16():
    simulated, ran = (on_adam_and_in_bfloat16(e) for e in ("simulate", "run"))
    assert simulated[0].axes == ran[0].axes
    assert_agree(simulated, ran, narrow=2.0**-5, wide=1e-4)


@MIXED
def test_the_error_keeps_the_parameters_dtype_and_updates_the_gradients(
    dtype, grad_dtype
):
    params = {"w": jnp.zeros(3, dtype)}
    grads = {"w": jnp.ones((5, WORKERS, 3), grad_dtype)}
    tx = dj.exchange.error_feedback(SGD, one_entry)
    split, updates = drive("simulate", tx, grads, params)  # scan checks the carry
    assert updates["w"].dtype == grad_dtype
    assert split.state[1].error["w"].dtype == dtype


def test_a_state_made_inside_of_a_mesh_begins_as_what_it_becomes():
    before, after = types_inside(
        dj.exchange.error_feedback(optax.adam(0.1), one_entry), PARAMS
    )
    assert before == after


@executions
def test_errors_and_moments_are_the_workers_own_and_the_rest_is_shared(execution):
    split, _ = on_adam_and_in_bfloat16(execution)
    apart = owners(split)
    assert not any(jax.tree.leaves(apart[0]))
    assert all(jax.tree.leaves(apart[1].error))
    adam = apart[1].inner_state[0]
    assert all(jax.tree.leaves((adam.mu, adam.nu)))
    assert not any((apart[1].step, adam.count))


def test_an_optimizer_behind_it_in_a_chain_is_shared():
    tx = optax.chain(
        dj.exchange.error_feedback(optax.identity(), one_entry), optax.adam(0.1)
    )
    split, _ = drive("simulate", tx, whole_numbers(1), PARAMS)
    _, (feedback, adam) = owners(split)
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


def test_a_bucket_holds_so_many_bytes():
    """Blocks of 12 and 4 bytes."""

    def sums(bucket_bytes):
        tx = dj.exchange.error_feedback(SGD, blocks(1), bucket_bytes=bucket_bytes)
        return lowered(tx, PARAMS).as_text().count('"stablehlo.all_reduce"')

    assert [sums(bucket_bytes) for bucket_bytes in (0, 16)] == [2, 1]


def test_the_state_is_updated_in_place():
    big = {"w": jnp.zeros((300, 200), "f4"), "b": jnp.zeros(100, "f4")}
    tx = dj.exchange.error_feedback(optax.sgd(0.1), blocks(1, fraction=0.01))
    memory = program(tx, big).memory_analysis()
    one = 4 * (300 * 200 + 100)
    assert memory.alias_size_in_bytes >= 2 * one  # parameters and errors
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < one / 100
    assert memory.temp_size_in_bytes < 3.1 * one  # the whole, what is sent, the mean


def test_the_worker_s_own_extra_arguments_come_through():
    told = {}

    def update(updates, state, params=None, **extra_args):
        told.update(extra_args)
        return updates, state

    recorder = optax.GradientTransformationExtraArgs(lambda _: (), update)
    tx = dj.exchange.error_feedback(recorder, everything)
    extras = {"staleness": 3, "stale_params": "hers", "worker": 2}

    def step(grad):
        return tx.update(grad, tx.init(grad), **extras)[0]

    jax.vmap(step, axis_name="workers")(jnp.ones(2))
    assert told == extras


def state_with(error, step=0):
    return ErrorFeedbackState(jnp.int32(step), error, ())


def test_the_detached_point_keeps_dtypes_and_is_the_parameters_at_strength_zero():
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.float32(1 / 3)}
    state = state_with(jax.tree.map(lambda p: p + 2, params))
    nothing = dj.exchange.detached(params, state, jnp.float32(0))
    jax.tree.map(np.testing.assert_array_equal, nothing, params)
    half = dj.exchange.detached(params, state, jnp.float32(0.5))
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


def test_a_strength_may_be_traced_and_a_schedule_sees_the_step():
    state = state_with(jnp.asarray([2.0, 4.0]), step=3)
    point = jax.jit(lambda lam: dj.exchange.detached(jnp.zeros(2), state, lam))(0.25)
    np.testing.assert_array_equal(point, [0.5, 1.0])
    point = dj.exchange.detached(jnp.zeros(2), state, lambda step: step / 4)
    np.testing.assert_array_equal(point, [1.5, 3.0])


@pytest.mark.parametrize("states", [(), (0, 1)])
def test_a_state_without_one_error_is_refused(states):
    opt_state = tuple(state_with(jnp.ones(2)) for _ in states)
    with pytest.raises(ValueError, match=f"must hold one error, got {len(states)}"):
        dj.exchange.detached(jnp.ones(2), opt_state, 0.5)


@pytest.mark.parametrize(
    ("strength", "error", "message"),
    [
        (-0.1, ValueError, "`strength` must be finite and non-negative, got -0.1"),
        (1.5, ValueError, r"`strength` must be in \[0, 1\], got 1.5"),
        (float("nan"), ValueError, "`strength` must be finite"),
        ("half", TypeError, "`strength` must be a number, got 'half'"),
    ],
)
def test_a_bad_strength_is_refused(strength, error, message):
    with pytest.raises(error, match=message):
        dj.exchange.detached(jnp.ones(2), state_with(jnp.ones(2)), strength)


@executions
def test_late_gradients_are_compressed_as_deco_sgd_does(execution):
    # Lu et al., arXiv:2507.17346: D_t = C(e + g_{t-tau}), e <- e + g_{t-tau} - D_t; the
    # order of the recipe: each worker delays its own gradients, then compresses
    tau = 3
    tx = dj.delayed(dj.exchange.error_feedback(SGD, one_entry), tau, warmup="skip")
    params, gradients = (
        {"x": jnp.zeros(6)},
        {"x": MINIMA[None] * np.ones((STEPS, 1, 1))},
    )
    gradients["x"] *= np.random.default_rng(1).normal(size=(STEPS, 1, 1))
    gradients = jax.tree.map(np.float32, gradients)
    _, updates = drive(execution, tx, gradients, params)
    error = np.zeros((WORKERS, 6))
    for t in range(STEPS):
        expected = np.zeros(6)
        if t >= tau:
            whole = error + gradients["x"][t - tau]
            sent = np.zeros_like(whole)
            entry = (t - tau) % 6  # the inner optimizer's own count
            sent[:, entry] = whole[:, entry]
            error, expected = whole - sent, -0.5 * sent.mean(axis=0)
        np.testing.assert_allclose(
            np.reshape(updates["x"][t], (-1, 6))[0], expected, rtol=1e-4, atol=1e-5
        )
