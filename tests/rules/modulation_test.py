"""Laws against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj

TAUS = range(51)


# law, the same as a formula of papers' section C.2
LAWS = {
    "inverse": (dj.modulation.inverse, lambda tau: 1 / max(1, tau)),
    "polynomial(0.5)": (dj.modulation.polynomial(0.5), lambda tau: (1 + tau) ** -0.5),
    "polynomial(1)": (dj.modulation.polynomial(1.0), lambda tau: 1 / (1 + tau)),
    "polynomial(0)": (dj.modulation.polynomial(0.0), lambda tau: 1.0),
    "hinge(10, 4)": (
        dj.modulation.hinge(10.0, 4),
        lambda tau: 1 if tau <= 4 else 1 / (10 * (tau - 4) + 1),
    ),
    "hinge(0.5, 0)": (
        dj.modulation.hinge(0.5, 0),
        lambda tau: 1 / (0.5 * tau + 1),
    ),
    "exponential(0.2)": (
        dj.modulation.exponential(0.2),
        lambda tau: np.exp(-0.2 * tau),
    ),
    "capped(4)": (dj.modulation.capped(4), lambda tau: min(1, 4 / max(1, tau))),
    "capped(1)": (dj.modulation.capped(1), lambda tau: min(1, 1 / max(1, tau))),
    # Koloskova et al. at L = 2, eta = 1/16; FADAS at eta = 1/16: 1 up to 16 anyway
    "delay_adaptive, Koloskova": (
        dj.modulation.delay_adaptive(1 / 16, 4, bound=1 / (4 * 2.0)),
        lambda tau: 1 if tau <= 4 else min(1, 1 / (4 * 2.0 * tau * (1 / 16))),
    ),
    "delay_adaptive, FADAS": (
        dj.modulation.delay_adaptive(1 / 16, 4),
        lambda tau: (1 / 16 if tau <= 4 else min(1 / 16, 1 / tau)) / (1 / 16),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_law_is_its_formula(name):
    law, formula = LAWS[name]
    factors = jax.vmap(law)(jnp.arange(len(TAUS)))
    # a few roundings of float32
    np.testing.assert_allclose(factors, [formula(tau) for tau in TAUS], rtol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_takes_the_mean_staleness_of_several_gradients(name):
    law, formula = LAWS[name]
    means = np.arange(40, dtype=np.float32) / 4 + 0.25
    tx = dj.scale_by_staleness(law)

    def scale(mean):
        return tx.update(jnp.ones(()), tx.init(None), staleness=mean)[0]

    factors = jax.vmap(scale)(means)
    np.testing.assert_allclose(factors, [formula(mean) for mean in means], rtol=1e-6)


@pytest.mark.parametrize("concurrency", [0, 3, 40])
def test_delay_adaptive_without_a_full_part_is_capped(concurrency):
    """bound / eta = P: it is `capped(P)`, but for the full steps up to tau_C."""
    adaptive = dj.modulation.delay_adaptive(0.5, concurrency, bound=4 * 0.5)
    capped = dj.modulation.capped(4)
    for tau in TAUS:
        assert adaptive(tau) == (1 if tau <= concurrency else capped(tau))


@pytest.mark.parametrize("name", LAWS)
def test_a_fresh_gradient_is_left_alone_bitwise(name):
    law, _ = LAWS[name]
    updates = jnp.array([0.3, -1.7, 1e-20])
    tx = dj.scale_by_staleness(law)
    scaled, _ = tx.update(updates, tx.init(updates), staleness=0)
    np.testing.assert_array_equal(scaled, updates)
