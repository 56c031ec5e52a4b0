import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import delayjax as dj
from tests.history.driving import PARAMS, SGD, assert_close, gradient, updates_of


def losses(t):
    return 1.0 + 0.25 * t


@pytest.mark.parametrize("delay", [0, 3, {"w": 3, "b": 1}])
def test_a_loss_stays_with_its_gradient(delay):
    """Polyak's step divides the loss by the gradient's square: both are of one step."""
    inner = optax.polyak_sgd(max_learning_rate=10.0)
    found, _ = updates_of(dj.delayed(inner, delay), value=losses)
    late = 3 if isinstance(delay, dict) else delay
    state = inner.init(PARAMS)
    for t, updates in enumerate(found):
        taken = max(t - late, 0)
        parts = {
            name: gradient(max(t - d, 0))[name]
            for name, d in (
                delay if isinstance(delay, dict) else {"w": late, "b": late}
            ).items()
        }
        expected, _ = inner.update(parts, state, PARAMS, value=losses(taken))
        assert_close(updates, expected)


def test_a_loss_that_is_no_scalar_is_refused():
    tx = dj.delayed(optax.polyak_sgd(), 1)
    with pytest.raises(ValueError, match=r"`value` handed to .* got shape \(3,\)"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=jnp.ones(3))


@pytest.mark.parametrize("asked", [jnp.nan, jnp.float32(jnp.nan), np.float32(np.nan)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_delay_that_is_no_number_gives_no_number(asked, compiled):
    tx = dj.delayed(SGD, lambda step: jnp.where(step == 2, asked, 1.0), max_delay=4)
    update = jax.jit(tx.update) if compiled else tx.update
    state = tx.init(PARAMS)
    for t in range(4):
        updates, state = update(gradient(t), state, PARAMS)
        for leaf in jax.tree.leaves(updates):
            assert np.isnan(leaf).all() == (t == 2)


def test_one_delay_of_a_tree_that_is_no_number_spoils_its_part_alone():
    tx = dj.delayed(SGD, {"w": lambda step: jnp.nan * step, "b": 1}, max_delay=2)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert np.isnan(updates["w"]).all()
    assert np.isfinite(updates["b"]).all()


@pytest.mark.parametrize("asked", [3.0, 3.9, 1e12, np.inf])
def test_a_delay_beyond_all_integers_is_the_largest_one(asked):
    tx = dj.delayed(SGD, lambda step: jnp.float32(asked), max_delay=3)
    found, state = updates_of(tx)
    assert dj.staleness(state) == 3
    assert_close(found[-1], optax.tree.scale(-0.1, gradient(7 - 3)))


def told(depth, **options):
    delay = min(1, *jax.tree.leaves(depth), 1)
    return dj.delayed(SGD, delay, max_delay=depth, **options)


@pytest.mark.parametrize(
    ("was", "now"),
    [(4, 8), (8, 4), (0, 3), (3, 0), ({"w": 2, "b": 1}, {"w": 1, "b": 2})],
)
@pytest.mark.parametrize("history", [None, dj.ring.cast(jnp.bfloat16)])
def test_a_state_of_another_depth_is_refused(was, now, history):
    state = told(was, history=history).init(PARAMS)
    with pytest.raises(ValueError, match=r"`max_delay` is .*resize_history\(state"):
        told(now, history=history).update(PARAMS, state, PARAMS)


def test_both_depths_are_named():
    state = told(4).init(PARAMS)
    with pytest.raises(ValueError, match=r"is 8, but .* has depth 4:"):
        told(8).update(PARAMS, state, PARAMS)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    cut = dj.ring.sharded("data", mesh=mesh)
    with pytest.raises(ValueError, match=r"is 8, but .* has depth 4:"):
        told(8, history=cut).update(PARAMS, told(4, history=cut).init(PARAMS), PARAMS)


def test_a_stripped_state_is_refused_until_it_is_filled():
    state = dj.strip_history(told(4).init(PARAMS))
    with pytest.raises(ValueError, match=r"is 4, but .* has no slots:"):
        told(4).update(PARAMS, state, PARAMS)


def test_gradients_of_another_shape_are_refused():
    tx = dj.delayed(SGD, 0, max_delay=2)
    grads = PARAMS | {"w": jnp.ones((1, 3))}
    with pytest.raises(ValueError, match=r"\['w'\] is .*\[1, 3\], .* hold .*\[3\]"):
        tx.update(grads, tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize(
    "make",
    [
        lambda axis: dj.delayed(SGD, 2, keep_params=True, axis_name=axis),
        lambda axis: optax.chain(dj.delayed(optax.identity(), 2, axis_name=axis), SGD),
        lambda axis: dj.delayed(
            dj.drop_stale(SGD, 1, axis_name=axis), 2, axis_name=axis
        ),
        lambda axis: dj.inject_staleness(dj.delayed(SGD, 2, axis_name=axis)),
    ],
    ids=["delayed", "delayed, identity", "drop_stale", "inject_staleness"],
)
@pytest.mark.parametrize("axis", ["data", ("data", "more")])
def test_the_workers_axis_may_have_any_name(make, axis):
    """A scan inside `shard_map` refuses a carry that begins as of another type."""
    names = (axis,) if isinstance(axis, str) else axis
    mesh = jax.make_mesh(
        (2,) * len(names), names, axis_types=(AxisType.Auto,) * len(names)
    )
    tx = make(axis)

    def worker(grads):
        params = jnp.zeros(3)

        def step(carry, grad):
            params, state = carry
            own = dj.workers.vary(params, axis_name=names)
            updates, state = tx.update(grad, state, own)
            return (params, state), updates

        return jax.lax.scan(step, (params, tx.init(params)), grads)[1]

    grads = jnp.arange(4.0 * 12).reshape(4, 12)
    spec = P(None, names)
    found = jax.jit(jax.shard_map(worker, mesh=mesh, in_specs=spec, out_specs=spec))(
        grads[:, : 3 * 2 ** len(names)]
    )
    assert found.shape == (4, 3 * 2 ** len(names))
    np.testing.assert_allclose(found[0], -0.1 * grads[0, : found.shape[1]], rtol=1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Callable:
    """A model in the manner of Equinox: parameters that can be called."""

    w: jax.Array
    b: jax.Array

    def __call__(self, x):
        return x @ self.w + self.b


@pytest.mark.parametrize("delay", [1, Callable(1, 0), Callable(lambda step: 1, 0)])
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
