"""With `jax_enable_x64`, rules compute in float64 for float64 parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines, step_sizes
from tests import public_calls

# it compares scores, which are sums of losses, and does not change gradients
EXCEPT = {"guided"}
RULES = [
    row
    for row in public_calls.ROWS
    if row.use in {public_calls.pair, public_calls.of_law, public_calls.asked}
    and (row.use is not public_calls.asked or row.label.startswith("step_sizes."))
    and row.label not in EXCEPT
]


def float32_in(program):
    """The float32 values that a program, or one in it, takes, computes or returns."""
    narrow = [
        equation
        for equation in program.eqns
        for value in (*equation.invars, *equation.outvars)
        if getattr(value.aval, "dtype", None) == jnp.float32
    ]
    inner = jax.tree.leaves([list(each.params.values()) for each in program.eqns])
    inner = [getattr(each, "jaxpr", each) for each in inner]
    return narrow + [
        x for each in inner if hasattr(each, "eqns") for x in float32_in(each)
    ]


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.label)
def test_no_number_of_a_rule_is_in_float32(row, monkeypatch):
    def float32(function, *args):
        return float32_in(jax.make_jaxpr(function)(*args).jaxpr)

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), public_calls.PARAMS)
        monkeypatch.setattr(public_calls, "PARAMS", wide)
        monkeypatch.setattr(public_calls, "evaluated", float32)
        good = {name: value for name, (value, _) in row.arguments.items()}
        made = row.function(**good)
        if row.use is public_calls.of_law or row.use is public_calls.asked:
            assert float32(made, jnp.int32(3)) == []
        else:
            assert row.use(made) == []


def test_three_rules_are_their_equations_to_fifteen_digits():
    g, x, stale, tau = 0.3, 0.7, 0.1, 5
    with jax.enable_x64(True):
        gradient, params = jnp.asarray(g), jnp.asarray(x)
        extra_args = {"staleness": tau, "stale_params": jnp.asarray(stale)}

        def moved(tx, steps=1):
            state, total = tx.init(params), 0.0
            for _ in range(steps):
                update, state = tx.update(gradient, state, params, **extra_args)
                total += float(update)
            return total, state

        gap, _ = moved(dj.gap_aware(0.1, decay=0.9, eps=1e-8))
        decayed, _ = moved(step_sizes.adadelay(1.3, 0.7, per_coordinate=True))
        correct = pipelines.discrepancy_correction(optax.sgd(1.0), 3, decay=0.2)
        _, state = moved(correct)
        back = pipelines.backward_params(state, params)
        annealed, _ = moved(pipelines.reschedule_by_delay(3, annealing_steps=7), 2)
    exact = {"rtol": 4 * np.finfo(float).eps}
    np.testing.assert_allclose(gap, g / (1 + (x - stale) / (0.1 * g + 1e-8)), **exact)
    rate = 1 / (1.3 + 0.7 * g * np.sqrt(1 + tau))
    np.testing.assert_allclose(decayed, -rate * g, **exact)
    gamma = 0.2 ** (1 / 3)
    np.testing.assert_allclose(back, x + 3 * (1 - gamma) * g, **exact)
    np.testing.assert_allclose(annealed, g * (3.0**-1 + 3 ** -(6 / 7)), **exact)
