"""Delay-blind rows, compared with NumPy and with docs/howto/slow_momentum.md."""

import doctest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.comparison import rules

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "slow_momentum.md"


@pytest.fixture(scope="module")
def lines():
    """The names that the code of the page defines."""
    defined = {}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text()):
        exec(compile(example.source, PAGE.name, "single"), defined)
    return defined


def gradients(steps):
    """A tree of standard normal numbers for each step."""
    for key in jax.random.split(jax.random.key(0), steps):
        yield {"w": jax.random.normal(key, (3, 2))}


ZEROS = {"w": jnp.zeros((3, 2))}


def plain_means(share, decay, steps):
    """(1 - share) g_t + share m_t, m_t = decay sum_i (1 - decay)^(t - i) g_i."""
    grads = [np.asarray(g["w"], np.float64) for g in gradients(steps)]
    for t, gradient in enumerate(grads):
        weights = decay * (1 - decay) ** np.arange(t, -1, -1)
        slow = np.tensordot(weights, np.stack(grads[: t + 1]), 1)
        yield (1 - share) * gradient + share * slow


@pytest.mark.parametrize(("decay", "share"), [(0.005, 0.75), (0.1, 0.3), (0.2, 0.0)])
def test_the_slow_momentum_of_the_page_is_the_rule_that_was_compared(
    lines, decay, share
):
    page = lines["slow_momentum"](decay, share)
    rule = rules.quasi_hyperbolic(decay, share)
    states = page.init(ZEROS), rule.init(ZEROS)
    for gradient, expected in zip(
        gradients(12), plain_means(share, decay, 12), strict=True
    ):
        ours, first = page.update(gradient, states[0])
        theirs, second = rule.update(gradient, states[1])
        states = first, second
        for result in (ours, theirs):
            np.testing.assert_allclose(result["w"], expected, atol=1e-6)


@pytest.mark.parametrize("decay", [0.3, 0.024])
def test_the_average_of_the_page_is_the_rule_that_was_compared(lines, decay):
    rule = rules.averaging(optax.sgd(0.1), decay)
    params = average = ZEROS
    state, expected = rule.init(params), 0.0
    for step, gradient in enumerate(gradients(12), 1):
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        average = lines["averaged"](average, params, step, decay)
        weight = max(decay, 1 / step)
        expected = (1 - weight) * expected + weight * np.asarray(params["w"])
        for result in (average, state.average):
            np.testing.assert_allclose(result["w"], expected, atol=1e-6)


NAMED = {rule.name: rule for rule in rules.RULES}
RATE, STEPS = 0.1, 4


def trained(row, optimizer, **numbers):
    """The evaluated parameters after each of four updates from 0, as NumPy arrays."""
    rule = NAMED[row]
    trial = rules.Trial(
        optimizer=rules.OPTIMIZERS[optimizer],
        numbers={"learning_rate": jnp.float32(RATE)}
        | {name: jnp.float32(value) for name, value in numbers.items()},
        shape=lambda step: 1.0,
        mean=jnp.int32(0),
        most=1,
        updates=STEPS,
        loss=lambda params: 0.0,
    )
    tx = rule.make(trial)
    params, state = ZEROS, tx.init(ZEROS)
    for gradient in gradients(STEPS):
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        yield np.asarray(rule.output(params, state)["w"])


PAST = [np.asarray(g["w"], np.float64) for g in gradients(STEPS)]


def by_factors(factors):
    """x_t = -rate sum_i f_i g_i, as SGD without momentum makes it."""
    return -RATE * np.cumsum([f * g for f, g in zip(factors, PAST, strict=True)], 0)


def by_momentum(beta, *, nesterov=False):
    x, m = np.zeros_like(PAST[0]), np.zeros_like(PAST[0])
    for g in PAST:
        m = beta * m + (1 - beta) * g
        x = x - RATE * (beta * m + (1 - beta) * g if nesterov else m)
        yield x


def by_adam(beta, *, nesterov):
    """Adam; with Nesterov's momentum, both of its terms are bias-corrected (Dozat)."""
    x = m = v = np.zeros_like(PAST[0])
    for t, g in enumerate(PAST, 1):
        m, v = beta * m + (1 - beta) * g, 0.999 * v + 0.001 * g * g
        top = m / (1 - beta**t)
        if nesterov:
            top = beta * m / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
        x = x - RATE * top / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        yield x


def schedule_free():
    """z -= rate g; x is the mean of all z. The gradients here do not depend on x."""
    z = by_factors(np.ones(STEPS))
    return np.cumsum(z, 0) / np.arange(1, STEPS + 1)[:, None, None]


STEP = np.arange(STEPS)


@pytest.mark.parametrize(
    ("row", "optimizer", "numbers", "expected"),
    [
        ("plain", "sgd", dict(decay=1.5), [*by_momentum(-0.5)]),
        ("plain", "adam", dict(decay=1.5), [*by_adam(-0.5, nesterov=False)]),
        ("Nesterov", "sgd", dict(decay=0.2), [*by_momentum(0.8, nesterov=True)]),
        ("Nesterov", "adam", dict(decay=0.2), [*by_adam(0.8, nesterov=True)]),
        ("linear decay", "sgd", dict(decay=1.0), by_factors(1 - STEP / STEPS)),
        (
            "square-root decay",
            "sgd",
            dict(decay=1.0, rule_number=0.3),
            by_factors((1 + 0.3 * STEP) ** -0.5),
        ),
        (
            "square-root decay",
            "sgd",
            dict(decay=1.0, rule_number=0.0),
            by_factors([1] * STEPS),
        ),
        ("schedule-free", "sgd", dict(decay=0.3), schedule_free()),
    ],
)
def test_a_row_that_is_blind_to_the_delay_is_a_line_of_numpy(
    row, optimizer, numbers, expected
):
    for result, wanted in zip(
        trained(row, optimizer, **numbers), expected, strict=True
    ):
        # Adam's 1 - 0.999^t has three digits fewer in float32 than a step
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=5e-6)


def test_the_point_of_schedule_free_lies_between_the_sequence_and_its_average():
    """A gradient is taken at y = (1 - beta) z + beta x, here with beta = 0.7."""
    rule, decay = NAMED["schedule-free"], 0.3
    numbers = {"learning_rate": jnp.float32(RATE), "decay": jnp.float32(decay)}
    trial = rules.Trial(
        rules.OPTIMIZERS["sgd"], numbers, lambda step: 1.0, 0, 1, STEPS, lambda x: 0.0
    )
    tx = rule.make(trial)
    params, state = ZEROS, tx.init(ZEROS)
    z = by_factors(np.ones(STEPS))
    for t, (gradient, x) in enumerate(
        zip(gradients(STEPS), schedule_free(), strict=True)
    ):
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        expected = decay * z[t] + (1 - decay) * x
        np.testing.assert_allclose(params["w"], expected, rtol=2e-5, atol=1e-6)
