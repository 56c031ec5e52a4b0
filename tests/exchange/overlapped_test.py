"""The mean of the step before; on CPUs its memory stays in use beside the gradient."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.exchange.driving import MIXED, drive, executions, lowered, program

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


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (None, TypeError, r"`weight\(staleness\)` must be a real number, got None"),
        ("2", TypeError, r"`weight\(staleness\)` must be a real number, got '2'"),
        (1j, TypeError, r"`weight\(staleness\)` must be a real number, got complex"),
        (jnp.ones(3), ValueError, r"`weight\(staleness\)` must be a scalar, got shape"),
    ],
    ids=str,
)
@pytest.mark.parametrize("exchange", [dj.exchange.mean, dj.exchange.overlapped_mean])
def test_a_weight_that_is_no_real_number_is_refused(exchange, answer, error, match):
    tx = exchange(optax.sgd(0.1), weight=lambda tau: answer)
    with pytest.raises(error, match=match):
        jax.vmap(lambda g: tx.update(g, tx.init(g)), axis_name="workers")(jnp.ones(2))


def test_an_optimizer_that_searches_along_the_gradient_is_refused():
    """It would compare a gradient of the step before with the loss of this one."""
    with pytest.raises(ValueError, match=r"`inner` must not hold optax's.*search"):
        tx = dj.exchange.overlapped_mean(optax.scale_by_backtracking_linesearch(5))
        tx.init(jnp.ones(3))


@MIXED
@executions
def test_the_outbox_keeps_the_parameters_dtype(execution, dtype, grad_dtype):
    """And `inner` is fed what it would be without the exchange."""
    params, told = {"w": jnp.zeros(3, dtype)}, []
    keep = optax.stateless(lambda g, p: (told.append(g), optax.tree.cast_like(g, p))[1])
    grads = {"w": jnp.ones((4, 4, 3), grad_dtype)}
    tx = dj.exchange.overlapped_mean(optax.chain(keep, optax.sgd(0.5)))
    split, _ = drive(execution, tx, grads, params)
    assert split.state[1].outbox["w"].dtype == dtype
    assert {g["w"].dtype for g in told} == {jnp.dtype(grad_dtype)}
    assert jnp.all(split.state[0]["w"] == -1.5)


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
