import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    STEPS,
    assert_follows,
    gradient,
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions, program


def sgd():
    return optax.sgd(ETA)


def periodic(period, *, momentum=0.0):
    """W is the mean of all every `period` steps, and nothing in between."""
    x, v, xs = replicas(), np.zeros((WORKERS, 5)), []
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        due = (t + 1) % period == 0
        matrix = np.full((4, 4), 0.25) if due else np.eye(4)
        x = matrix @ (x + v)
        xs.append(x)
    return np.stack(xs)


MOMENTUM = {1: 0.0, 4: 0.9, 7: 0.0}  # by period


def local_sgd(period):
    inner = optax.sgd(ETA, momentum=MOMENTUM[period] or None)
    return averaging.local_sgd(inner, period=period)


@functools.cache
def trained(execution):
    makes = {f"H = {h}": functools.partial(local_sgd, h) for h in MOMENTUM}
    return train(execution, makes)


@executions
@pytest.mark.parametrize("period", MOMENTUM)
def test_models_follow_the_mixing_matrices(execution, period):
    xs, _ = trained(execution)[f"H = {period}"]
    assert_follows(xs, periodic(period, momentum=MOMENTUM[period]))


def test_workers_of_two_axes_average_over_one_or_both():
    def step(x, axis_name):
        tx = averaging.local_sgd(sgd(), period=1, axis_name=axis_name)
        return x + tx.update(jnp.zeros(()), tx.init(x), x)[0]

    x = jnp.arange(4.0).reshape(2, 2)
    for names, expected in (
        ("members", [[0.5, 0.5], [2.5, 2.5]]),
        ("groups", [[1.0, 2.0], [1.0, 2.0]]),
        (("groups", "members"), [[1.5, 1.5], [1.5, 1.5]]),
    ):
        inner = jax.vmap(lambda x, n=names: step(x, n), axis_name="members")
        seen = jax.vmap(inner, axis_name="groups")(x)
        np.testing.assert_array_equal(seen, expected)


def test_a_step_on_devices_sends_one_model_at_the_period_s_end_alone():
    params = {"w": jnp.zeros((8, 4), jnp.float32), "b": jnp.zeros(3, jnp.float32)}
    text = program(averaging.local_sgd(sgd(), period=3), params, shared=False).as_text()
    entry = text[text.index("ENTRY") :]
    assert "all-reduce" not in entry  # it is in a branch
    assert "conditional" in entry
    assert text.count(" all-reduce(") == 1
    assert "f32[35]" in text  # all leaves together


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.local_sgd(sgd(), period=0),
            ValueError,
            "`period` must be at least 1, got 0",
        ),
        (
            lambda: averaging.local_sgd(sgd(), period=1.5),
            TypeError,
            "`period` must be a static integer, got 1.5",
        ),
        (
            lambda: averaging.local_sgd(sgd(), period=jnp.ones(2, int)),
            TypeError,
            "`period` must be a static integer",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
