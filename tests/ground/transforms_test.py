import re

import jax.numpy as jnp
import optax
import pytest

from delayjax._src.ground import transforms


def test_multi_steps_is_a_transformation():
    """The mean of two gradients, one step of SGD behind every second one."""
    multi = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=2)
    tx = transforms.as_transformation("inner", multi)
    state = tx.init(jnp.zeros(()))
    updates = []
    for grad in (1.0, 3.0, 5.0, 7.0):
        update, state = tx.update(jnp.asarray(grad), state, staleness=0)
        updates.append(float(update))
    assert updates == [0.0, -2.0, 0.0, -6.0]


def test_any_pair_is_a_transformation_that_ignores_extra_arguments():
    tx = transforms.as_transformation("inner", optax.sgd(1.0))
    assert tx.update(jnp.ones(()), tx.init(jnp.ones(())), staleness=3)[0] == -1.0


@pytest.mark.parametrize("bad", [0.1, None, optax.sgd])
def test_what_is_no_transformation_is_named(bad):
    match = rf"`inner` must be an Optax transformation, got {re.escape(repr(bad))}"
    with pytest.raises(TypeError, match=match):
        transforms.as_transformation("inner", bad)
