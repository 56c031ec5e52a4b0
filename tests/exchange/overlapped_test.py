"""The mean of the step before; on CPUs its memory stays in use beside the gradient."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.exchange.driving import drive, executions, lowered, program

PARAMS = {"w": jnp.zeros((50, 40), jnp.float32), "b": jnp.zeros(40, jnp.float32)}
LATE = dj.exchange.overlapped_mean(optax.sgd(0.1))
FRESH = dj.exchange.mean(optax.sgd(0.1))


def loops(tx):
    """The arguments of each loop of the compiled step."""
    return re.findall(r" while\((.*?)\)", program(tx, PARAMS).as_text())


def test_a_loop_that_is_never_entered_holds_what_is_sent_and_what_came():
    assert loops(FRESH) == []
    assert len(loops(LATE)) == 1


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_no_other_platform_has_it(platform):
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))

    def worker(_):
        state = LATE.init(PARAMS)
        return LATE.update(dj.workers.vary(PARAMS), state)[0]

    step = jax.jit(
        jax.shard_map(
            worker,
            mesh=mesh,
            in_specs=jax.sharding.PartitionSpec(),
            out_specs=jax.sharding.PartitionSpec(),
        )
    )
    text = step.trace(0).lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.all_reduce" in text
    assert "stablehlo.while" not in text


def test_the_loop_is_in_what_is_lowered_for_cpus():
    assert "stablehlo.while" in lowered(LATE, PARAMS).as_text()


@executions
def test_a_loss_stays_with_its_gradient(execution):
    """Polyak's step divides the loss by the gradient's square: both are of one step."""
    polyak = optax.polyak_sgd(max_learning_rate=10.0)
    tx = dj.exchange.overlapped_mean(polyak)
    params = {"w": jnp.zeros(3)}
    grads = {"w": 1.0 + jnp.arange(36.0).reshape(3, 4, 3)}  # [T, P, 3]
    losses = 1.0 + jnp.arange(12.0).reshape(3, 4) ** 2  # [T, P]
    batches = grads, {"value": losses}
    _, moves = drive(execution, tx, batches, params, extras=True)
    np.testing.assert_array_equal(moves["w"][0], 0.0)
    for before in range(2):
        mean = {"w": grads["w"][before].mean(axis=0)}
        expected, _ = polyak.update(
            mean, polyak.init(params), params, value=losses[before].mean()
        )
        np.testing.assert_allclose(moves["w"][before + 1], expected["w"], rtol=1e-6)
