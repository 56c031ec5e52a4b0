"""A number that changes when a run continues is used from there on, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from delayjax._src.testing import comparing
from tests import public_calls

TRANSFORMED = {public_calls.steps, public_calls.pair, public_calls.over_workers}
TRANSFORMED |= {public_calls.in_a_group}
STARTS = {("averaging.adaptive_period", "period")}  # it changes during training


def others(value):
    """Two other values of the argument."""
    return [value + 1, value - 1] if type(value) is int else [value / 2, value + 0.25]


CHANGES = [
    pytest.param(row, name, id=f"{row.label}, {name}")
    for row in public_calls.ROWS
    for name, (value, _) in row.arguments.items()
    if row.use in TRANSFORMED and type(value) in (int, float)
    if (row.label, name) not in STARTS
]


def as_program(function, *args):
    """The operations and constants of a function, and its result by `jit`."""
    traced = jax.make_jaxpr(function)(*args)
    constants = [comparing.numbers(constant).tobytes() for constant in traced.consts]
    return (str(traced), constants), lambda: jax.jit(function)(*args)


def made(row, **changed):
    good = {name: value for name, (value, _) in row.arguments.items()}
    return row.function(**(good | changed))


@pytest.mark.parametrize(("row", "name"), CHANGES)
def test_a_state_of_another_number_is_as_one_of_the_new_number(row, name, monkeypatch):
    """It updates like a state that `init` makes with the new number, or is refused.

    If the operations are equal, so are the updates: only different ones are compiled.
    """
    monkeypatch.setattr(public_calls, "evaluated", as_program)
    old = made(row)
    for value in others(row.arguments[name][0]):
        try:
            new = made(row, **{name: value})
            operations, wanted = row.use(new)
        except ValueError:  # an invalid value of this argument
            continue
        mixed = optax.GradientTransformationExtraArgs(old.init, new.update)
        try:
            mixed_operations, updated = row.use(mixed)
        except ValueError as error:
            assert f"`{name}`" in str(error)
            assert "state" in str(error)
        else:
            if mixed_operations != operations:
                jax.tree.map(np.testing.assert_array_equal, updated(), wanted())


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("kardam", {"workers": 8, "window": 13}, {"workers": 4, "window": 26}),
        ("kardam", {"frequency": False}, {}),
        ("kardam", {}, {"frequency": False}),
        ("kardam", {"lipschitz": False}, {}),
        ("yellowfin", {"closed_loop": True}, {}),
        ("yellowfin", {}, {"closed_loop": True}),
        ("closed_loop_momentum", {"coordinates": 1}, {"coordinates": 2}),
    ],
)
def test_a_state_of_other_options_is_refused(rule, old, new):
    row = public_calls.CALLS[rule]
    mixed = optax.GradientTransformationExtraArgs(
        made(row, **old).init, made(row, **new).update
    )
    with pytest.raises(ValueError, match="make the state with `init` of this"):
        row.use(mixed)


def test_a_new_horizon_is_in_force_after_one_update():
    params = jnp.ones(())

    def ahead(first, second):
        state = dj.predict_weights(optax.sgd(1.0), first).init(params)
        tx = dj.predict_weights(optax.sgd(1.0), second)
        _, state = tx.update(jnp.ones(()), state, params)
        return dj.gradient_params(state, params)

    assert ahead(2, 5) == ahead(5, 5) == 1.0 - 5.0


def test_a_new_delay_of_the_correction_is_in_force_after_one_update():
    params = jnp.ones(())

    def back(first, second):
        old, new = (
            pipelines.discrepancy_correction(optax.sgd(1.0), delay, decay=0.0)
            for delay in (first, second)
        )
        _, state = new.update(jnp.ones(()), old.init(params), params)
        return pipelines.backward_params(state, params)

    assert back(2, 5) == back(5, 5) == 1.0 + 5.0
