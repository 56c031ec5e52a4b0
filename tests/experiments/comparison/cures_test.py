"""The lines of docs/howto/slow_momentum.md are the rules that the comparison trains."""

import doctest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.comparison import cures

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "slow_momentum.md"


@pytest.fixture(scope="module")
def lines():
    """What the page's own lines define."""
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
    past = [np.asarray(g["w"], np.float64) for g in gradients(steps)]
    for t, gradient in enumerate(past):
        weights = decay * (1 - decay) ** np.arange(t, -1, -1)
        slow = np.tensordot(weights, np.stack(past[: t + 1]), 1)
        yield (1 - share) * gradient + share * slow


@pytest.mark.parametrize(("decay", "share"), [(0.005, 0.75), (0.1, 0.3), (0.2, 0.0)])
def test_the_slow_momentum_of_the_page_is_the_rule_that_was_compared(
    lines, decay, share
):
    page = lines["slow_momentum"](decay, share)
    rule = cures.quasi_hyperbolic(decay, share)
    states = page.init(ZEROS), rule.init(ZEROS)
    for gradient, expected in zip(
        gradients(12), plain_means(share, decay, 12), strict=True
    ):
        ours, first = page.update(gradient, states[0])
        theirs, second = rule.update(gradient, states[1])
        states = first, second
        for found in (ours, theirs):
            np.testing.assert_allclose(found["w"], expected, atol=1e-6)


@pytest.mark.parametrize("decay", [0.3, 0.024])
def test_the_average_of_the_page_is_the_rule_that_was_compared(lines, decay):
    rule = cures.averaging(optax.sgd(0.1), decay)
    params = average = ZEROS
    state, expected = rule.init(params), 0.0
    for step, gradient in enumerate(gradients(12), 1):
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        average = lines["averaged"](average, params, step, decay)
        weight = max(decay, 1 / step)
        expected = (1 - weight) * expected + weight * np.asarray(params["w"])
        for found in (average, state.average):
            np.testing.assert_allclose(found["w"], expected, atol=1e-6)
