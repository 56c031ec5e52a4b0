import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj


def workers_mesh(axis_type=AxisType.Auto):
    return jax.make_mesh((4,), ("workers",), axis_types=(axis_type,))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_vary_marks_leaves_as_varying_once_and_keeps_values(axis_type):
    mesh = workers_mesh(axis_type)
    params = jax.device_put({"w": jnp.ones(3)}, NamedSharding(mesh, P()))

    def step(params):
        varied = dj.workers.vary(params)
        marked = jax.lax.pcast(params["w"], "workers", to="varying")
        assert jax.typeof(params["w"]) != jax.typeof(marked)
        assert jax.typeof(varied["w"]) == jax.typeof(marked)
        assert jax.typeof(dj.workers.vary(varied)["w"]) == jax.typeof(marked)
        return jax.lax.pmean(varied, "workers")

    mean = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P())(params)
    np.testing.assert_array_equal(mean["w"], params["w"])


def test_gradients_at_varied_parameters_are_each_workers_own():
    """At replicated parameters the gradient is summed already: a mean does nothing."""
    data = jnp.arange(4.0)

    def gradient(place):
        def step(x, d):
            grad = jax.grad(lambda x: jnp.sum(x * d))(place(x))
            return jax.lax.pmean(grad, "workers")

        specs = {"in_specs": (P(), P("workers")), "out_specs": P()}
        return jax.shard_map(step, mesh=workers_mesh(), **specs)(jnp.ones(()), data)

    assert gradient(dj.workers.vary) == jnp.mean(data)
    assert gradient(lambda x: x) == jnp.sum(data)


def test_vary_leaves_other_axes_alone():
    mesh = jax.make_mesh((4,), ("devices",), axis_types=(AxisType.Auto,))

    def step(x):
        assert dj.workers.vary(x) is x
        return dj.workers.vary(x, axis_name="devices")

    ones = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P("devices"))
    np.testing.assert_array_equal(ones(jnp.ones(1)), jnp.ones(4))
