"""Learning rates by stage, against a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from delayjax.delays import Layers

CURVATURE = {"first": 0.5, "layers": np.array([[0.3], [0.6], [0.9]]), "last": 1.0}
START = {"first": 1.0, "layers": np.array([[-1.0], [0.5], [2.0]]), "last": -2.0}
ASKED = {"first": 7, "layers": Layers((5, 3, 1)), "last": 0.5}
NUMBERS = {"first": 7.0, "layers": np.array([[5.0], [3.0], [1.0]]), "last": 0.5}


def trained(tx, updates):
    """The parameters after each update of a quadratic, [T, ...] of each leaf."""

    def step(carry, _):
        params, state = carry
        grads = jax.tree.map(lambda c, x: c * x, curvature, params)
        moves, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, moves)
        return (params, state), params

    curvature, params = jax.tree.map(jnp.float32, (CURVATURE, START))
    return jax.lax.scan(step, (params, tx.init(params)), None, updates)[1]


@pytest.mark.parametrize("size", [1, 4])
def test_a_stage_has_eta_over_tau_to_the_p(size):
    """x <- x - 0.2 / max(1, tau)^p g with p = 1 - min(t/60, 1); 100 updates."""
    rule = pipelines.reschedule_by_delay(ASKED, annealing_steps=60, microbatches=size)
    xs = trained(optax.chain(optax.sgd(0.2), rule), 100)
    for name, x in START.items():
        tau = np.maximum(NUMBERS[name] / size, 1.0)
        for t in range(100):
            p = 1 - min(t / 60, 1)
            x = x - 0.2 / tau**p * CURVATURE[name] * x
            np.testing.assert_allclose(xs[name][t], x, rtol=1e-4, atol=1e-7)


def test_after_the_annealing_updates_are_as_they_were():
    rule = pipelines.reschedule_by_delay(7, annealing_steps=3)
    grad, state = jnp.float32(1.2345), rule.init(jnp.zeros(()))
    seen = []
    for _ in range(5):
        update, state = rule.update(grad, state)
        seen.append(bool(update == grad))
    assert seen == [False, False, False, True, True]


def test_a_delayed_stage_is_stable_at_its_limit_times_tau():
    """Before annealing a rate of tau times the limit is at the edge of stability."""
    tau = 5
    limit = dj.stability.Dynamics(tau).step_limit()
    ends = []
    for rate in (0.97 * limit, 1.03 * limit):
        rule = pipelines.reschedule_by_delay(tau, annealing_steps=1e9)
        tx = dj.delayed(optax.chain(optax.sgd(tau * rate), rule), tau)
        ends.append(abs(float(trained(tx, 1500)["last"][-1])))
    assert ends[0] < abs(START["last"]) < ends[1]
