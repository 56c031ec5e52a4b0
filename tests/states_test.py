"""Every public transformation refuses the state of another one, and names it."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from tests import contract_test
from tests.support.promises import all_hold

PARAMS = {"layer": jnp.full((2, 3), 0.5), "head": jnp.ones(3)}


def is_state(node):
    return isinstance(node, tuple) and hasattr(node, "_fields")


def as_dictionaries(state):
    """A state as it is restored from a checkpoint of dictionaries."""
    if is_state(state):
        return {name: as_dictionaries(part) for name, part in state._asdict().items()}
    return [*map(as_dictionaries, state)] if isinstance(state, tuple) else state


def is_ours(state):
    """Whether the outermost transformation is one of the library."""
    return is_state(state) and type(state).__module__.startswith("delayjax")


def test_a_state_of_another_kind_is_named_with_the_remedy():
    table = {name: make(1) for name, (make, _) in contract_test.TABLE.items()}
    states = {name: jax.eval_shape(tx.init, PARAMS) for name, tx in table.items()}
    ours = {name: state for name, state in states.items() if is_ours(state)}
    assert len(ours) > len(table) / 3
    all_hold({n: functools.partial(check_named, table[n], ours[n]) for n in ours})


def check_named(tx, state):
    kind = type(state).__name__
    for other in (as_dictionaries(state), [*state], optax.EmptyState(), None):
        got = type(other).__name__
        message = rf"`state` must be a {kind}, got a {got}: .*from_state_dict\(tx"
        with pytest.raises(TypeError, match=message):
            tx.update(PARAMS, other, PARAMS)


PRODUCERS = {
    "delivered": dj.delivered(optax.sgd(0.1), 2),
    "inject_staleness": dj.inject_staleness(optax.sgd(0.1)),
    "mean": dj.exchange.mean(optax.sgd(0.1)),
    "overlapped_mean": dj.exchange.overlapped_mean(optax.sgd(0.1)),
    "partial_mean": dj.exchange.partial_mean(optax.sgd(0.1), lambda step: step > 0),
    "predict_weights": dj.predict_weights(optax.sgd(0.1), 2),
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_key_among_the_parameters_is_named(name):
    """JAX would say: Cannot interpret 'key<fry>' as a data type."""
    params = PARAMS | {"seed": jax.random.key(0)}
    with pytest.raises(TypeError, match=r"`params` .* a PRNG key at \['seed'\]"):
        PRODUCERS[name].init(params)
    with pytest.raises(TypeError, match=r"`tree` .* a PRNG key at \['seed'\]"):
        dj.ring.init(params, 2)


def test_two_parts_have_a_staleness_each():
    parts = {"a": dj.delayed(optax.sgd(0.1), 1), "b": dj.delayed(optax.sgd(0.1), 2)}
    tx = optax.partition(parts, {"layer": "a", "head": "b"})
    state = tx.init(PARAMS)
    for _ in range(4):
        _, state = tx.update(PARAMS, state, PARAMS)
    assert dj.staleness(state) == {"a": 1, "b": 2}
    ages = {name: dj.staleness(state.inner_states[name]) for name in parts}
    assert ages == {"a": 1, "b": 2}


def test_a_compensation_behind_a_mean_says_where_it_must_be():
    """The mean of all workers was not taken at one point."""

    def step(chain):
        tx = dj.delayed(chain, 2, keep_params=True)
        return jax.vmap(
            lambda params: tx.update(params, tx.init(params), params)[0],
            axis_name="workers",
        )(jnp.ones((2, 3)))

    rule, sgd = dj.compensate_delay(0.1), optax.sgd(0.1)
    with pytest.raises(TypeError, match="hands on no old parameters: compensate"):
        step(dj.exchange.mean(optax.chain(rule, sgd)))
    step(optax.chain(rule, dj.exchange.mean(sgd)))  # as the error message says
