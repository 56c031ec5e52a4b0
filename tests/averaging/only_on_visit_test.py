import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax import averaging
from tests.exchange.driving import WORKERS, drive, executions

STEPS = 30
VISITS = np.random.default_rng(1).random((STEPS, WORKERS))
VISITS[VISITS < 0.4] = np.inf
GRADS = np.random.default_rng(3).normal(size=(STEPS, WORKERS, 3)).astype(np.float32)


@executions
def test_a_worker_s_optimizer_sees_the_gradients_of_its_own_visits_alone(execution):
    inner = optax.adam(optax.linear_schedule(0.1, 0.0, 20))
    tx = averaging.only_on_visit(inner, averaging.first_come(VISITS))
    split, updates = drive(execution, tx, GRADS, jnp.ones(3), shared=False)
    seen = split.state[1]
    assert seen.step == STEPS
    for p in range(WORKERS):
        state, expected = inner.init(jnp.ones(3)), np.zeros((STEPS, 3))
        for t in np.flatnonzero(np.isfinite(VISITS[:, p])):
            expected[t], state = inner.update(GRADS[t, p], state, jnp.ones(3))
        own = jax.tree.map(lambda leaf, p=p: leaf[p], seen.inner_state)
        for ours, theirs in zip(
            jax.tree.leaves((updates[:, p], own)),
            jax.tree.leaves((expected, state)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
