"""Delayed Nesterov against the loop of its paper, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.replayed import START, grad_fn, gradient, noise, replayed, trace_of

STEPS = 40
RATE, BETA = 0.05, 0.9
NOISE = noise(STEPS)
CASES = [(4, 0.0), (4, 0.1), (4, 0.25), (3, 0.2), (1, 0.0)]  # N, c


def server(period, share):
    rule = dj.delayed_nesterov(BETA, period=period, share=share)
    return optax.chain(rule, optax.scale_by_learning_rate(RATE))


def models(trace, period, share, local_steps):
    """D.16: x after each arrival of the change of a worker's local steps."""
    xs, v, total = [START], np.zeros(3), np.zeros(3)
    for t in range(STEPS):
        start = xs[trace.read_version[t]]
        local = start
        for _ in range(local_steps):
            local = local - 0.1 * gradient(local, NOISE[t, 0])
        g, x = start - local, xs[-1]
        total = total + g
        if (t + 1) % period == 0:
            v = BETA * v + total / period
            factor = 1 - share * period + share
            x = x - RATE * (factor * BETA * v + g / period)
            total = np.zeros(3)
        else:
            x = x - RATE * (share * BETA * v + g / period)
        xs.append(x)
    return np.stack(xs)


@pytest.mark.parametrize(("period", "share"), CASES)
def test_islands_along_a_trace_follow_the_paper_s_loop(period, share):
    trace = trace_of(4, dj.cluster.exponential(1.0), STEPS)
    client = dj.local_training(grad_fn, optax.sgd(0.1), 3, split=False)
    xs, _ = replayed(trace, NOISE, server(period, share), client)
    expected = models(trace, period, share, local_steps=3)
    np.testing.assert_allclose(xs, expected, rtol=1e-12, atol=1e-12)


def moved(tx, times):
    """How far so many equal gradients of one move the parameters."""
    state, x = tx.init(jnp.zeros(())), 0.0
    for _ in range(times):
        update, state = tx.update(jnp.ones(()), state)
        x = x - float(update)
    return x


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_four_islands_in_turn_move_the_model_as_their_mean_does_at_once(beta, share):
    """By (1 + beta) g from rest; c of the momentum for each of N - 1 is to come."""
    in_turn = dj.delayed_nesterov(beta, period=4, share=share)
    assert -moved(in_turn, 4) == pytest.approx(1 + beta * (1 - 3 * share), rel=1e-6)


def test_a_period_of_one_is_nesterov_s_momentum():
    txs = dj.delayed_nesterov(BETA, period=1), optax.trace(BETA, nesterov=True)
    states = [tx.init(jnp.zeros(3)) for tx in txs]
    for g in jnp.asarray(NOISE[:8, 0], jnp.float32):
        ours, theirs = (
            tx.update(g, state) for tx, state in zip(txs, states, strict=True)
        )
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
        states = [ours[1], theirs[1]]


def test_a_share_above_one_part_of_the_period_is_refused():
    with pytest.raises(
        ValueError, match=r"`share` must be at most .*, 0\.25, got 0\.5"
    ):
        dj.delayed_nesterov(0.9, period=4, share=0.5)
    with pytest.raises(ValueError, match=r"`share` must be in \[0, 1\], got 5"):
        jax.jit(lambda n: dj.delayed_nesterov(0.9, period=n, share=5.0).init(1.0))(4)
