import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import delayjax as dj
from tests.history.driving import SGD

NAMES = ("data", "more")
# with the axes of the workers; a loop in `shard_map` fails if the type of its carry
# changes
OVER_NAMES = {
    "delayed": dj.delayed(SGD, 2, keep_params=True, axis_name=NAMES),
    "delayed, identity": optax.chain(
        dj.delayed(optax.identity(), 2, axis_name=NAMES), SGD
    ),
    "drop_stale": dj.delayed(
        dj.drop_stale(SGD, 1, axis_name=NAMES), 2, axis_name=NAMES
    ),
    "inject_staleness": dj.inject_staleness(dj.delayed(SGD, 2, axis_name=NAMES)),
}


def test_the_workers_axes_may_have_any_names():
    def worker(grads):
        def step(states, grad):
            model, result, after = dj.workers.vary(params, axis_name=NAMES), {}, {}
            for name, tx in OVER_NAMES.items():
                result[name], after[name] = tx.update(grad, states[name], model)
            return after, result

        params = jnp.zeros(3)
        states = {name: tx.init(params) for name, tx in OVER_NAMES.items()}
        return jax.lax.scan(step, states, grads)[1]

    mesh = jax.make_mesh((2, 2), NAMES, axis_types=(AxisType.Auto,) * 2)
    grads, spec = jnp.arange(4.0 * 12).reshape(4, 12), P(None, NAMES)
    result = jax.jit(jax.shard_map(worker, mesh=mesh, in_specs=spec, out_specs=spec))
    for updates in result(grads).values():
        np.testing.assert_allclose(updates[0], -0.1 * grads[0], rtol=1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Callable:
    """A model as in Equinox: parameters that can be called."""

    w: jax.Array
    b: jax.Array

    def __call__(self, x):
        return x @ self.w + self.b


@pytest.mark.parametrize("delay", [1, Callable(lambda step: 1, 0)])
def test_a_model_that_can_be_called_is_a_tree(delay):
    model = Callable(jnp.ones((2, 2)), jnp.ones(2))
    bounds = Callable(1, 0) if isinstance(delay, Callable) else 1
    tx = dj.delayed(SGD, delay, max_delay=bounds, keep_params=True)
    state = tx.init(model)
    for t in range(3):
        grads = jax.tree.map(lambda x, t=t: (t + 1) * x, model)
        updates, state = tx.update(grads, state, model)
    np.testing.assert_allclose(updates.w, -0.1 * 2 * model.w, rtol=1e-6)
    late = 3 if isinstance(delay, Callable) else 2
    np.testing.assert_allclose(updates.b, -0.1 * late * model.b, rtol=1e-6)
