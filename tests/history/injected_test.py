import jax.numpy as jnp
import optax

import delayjax as dj
from tests.history.driving import MODULATED, PARAMS, assert_close, gradient


def test_staleness_in_the_state_and_in_the_call_reach_what_reads_it_and_add():
    tx = dj.inject_staleness(dj.delayed(MODULATED, 2))
    state = tx.init(PARAMS)
    held, given = [0, 5, 1, 7, 3], [0, 0, 2, 0, 4]
    for t in range(5):
        state = state._replace(staleness=jnp.int32(held[t]))
        updates, state = tx.update(gradient(t), state, PARAMS, staleness=given[t])
        first = max(t - 2, 0)
        tau = min(t, 2) + held[first] + given[first]
        assert dj.staleness(state) == tau
        expected = optax.tree.scale(-0.1 / max(1, tau), gradient(first))
        assert_close(updates, expected)
