import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax import averaging
from tests.averaging.driving import ETA, SGD, assert_follows, path, train
from tests.exchange.driving import WORKERS, executions, program

MOMENTUM = {1: 0.0, 4: 0.9, 7: 0.0}  # by period


def periodic(period, momentum):
    """The mean of all every `period` steps, and nothing in between."""

    def mix(t, x, v):
        mean = np.tile((x + v).mean(axis=0), (WORKERS, 1))
        return x + v if (t + 1) % period else mean

    return path(mix, momentum=momentum)


@executions
def test_models_are_averaged_at_each_period_s_end(execution):
    txs = {
        str(period): averaging.local_sgd(
            optax.sgd(ETA, momentum=momentum), period=period
        )
        for period, momentum in MOMENTUM.items()
    }
    trained = train(execution, txs)
    for period, momentum in MOMENTUM.items():
        expected = periodic(period, momentum)
        assert_follows(trained[str(period)][0], expected, f"H = {period}")


def test_workers_of_two_axes_average_over_one_or_both():
    def step(x, axis_name):
        tx = averaging.local_sgd(SGD, period=1, axis_name=axis_name)
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
    text = program(averaging.local_sgd(SGD, period=3), params, shared=False).as_text()
    entry = text[text.index("ENTRY") :]
    assert "all-reduce" not in entry  # it is in a branch
    assert "conditional" in entry
    assert text.count(" all-reduce(") == 1
    assert "f32[35]" in text  # all leaves together
