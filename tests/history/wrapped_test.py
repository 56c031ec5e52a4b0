"""What may stand behind a stale gradient, and what is told to it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import delayjax as dj

PARAMS = {"w": jnp.arange(3.0), "b": jnp.ones(2)}
SGD = optax.sgd(0.1)


def gradient(step):
    return jax.tree.map(lambda p: jnp.cos(p + step), PARAMS)


def updates_of(tx, steps=8, **extra_args):
    """All updates, at parameters that stay; extra arguments are functions of t."""
    state, found = tx.init(PARAMS), []
    update = jax.jit(tx.update)
    for t in range(steps):
        given = {name: value(t) for name, value in extra_args.items()}
        updates, state = update(gradient(t), state, PARAMS, **given)
        found.append(updates)
    return found, state


def assert_close(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        *(ours, theirs),
    )


REFUSED = {
    "SAM": (optax.contrib.sam(SGD, SGD), r"optax.contrib.sam\(delayed\("),
    "L-BFGS": (optax.lbfgs(), "today's"),
    "L-BFGS without a search": (optax.scale_by_lbfgs(), "reads the gradient alone"),
    "backtracking": (
        optax.chain(SGD, optax.scale_by_backtracking_linesearch(5)),
        "a learning rate that is fixed",
    ),
    "private": (
        optax.contrib.differentially_private_aggregate(1.0, 1.0, jax.random.key(0)),
        r"optax.chain\(differentially_private_aggregate\(...\), delayed\(",
    ),
}


def deep_in(tx):
    """Parts are found however deep they are."""
    whole = optax.masked(optax.chain(optax.clip(1.0), tx), {"w": True, "b": False})
    return optax.MultiSteps(optax.apply_if_finite(whole, 3), 2)


class OfAUser:
    """A transformation of a class of one's own, with a state of one's own."""

    def __init__(self, tx):
        self.tx = tx

    def init(self, params):
        return {"mine": [self.tx.init(params)]}

    def update(self, updates, state, params=None, **extra_args):
        raise NotImplementedError


NESTS = {"alone": lambda tx: tx, "nested": deep_in, "a user's": OfAUser}


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_fresh_gradient_is_refused(name, nest):
    inner, remedy = REFUSED[name]
    with pytest.raises(ValueError, match=rf"`inner` must not hold optax's .*{remedy}"):
        dj.delayed(NESTS[nest](inner), 2).init(PARAMS)


@pytest.mark.parametrize("nest", ["alone", "a user's"])
def test_lookahead_is_refused(nest):
    tx = dj.delayed(NESTS[nest](optax.lookahead(SGD, 5, 0.5)), 2)
    pairs = optax.LookaheadParams.init_synced(PARAMS)
    with pytest.raises(ValueError, match=r"lookahead: .* optax.lookahead\(delayed\("):
        tx.init(pairs)


def test_the_remedies_run():
    grads = jnp.cos(jnp.arange(3.0))
    pairs = optax.LookaheadParams.init_synced(jnp.arange(3.0))
    ahead = optax.lookahead(dj.delayed(SGD, 1), 5, 0.5)
    updates, _ = ahead.update(grads, ahead.init(pairs), pairs)
    assert_close(updates.fast, -0.1 * grads)
    sharp = optax.contrib.sam(dj.delayed(SGD, 1), SGD, opaque_mode=True)
    state = sharp.init(jnp.arange(3.0))
    for t in range(3):
        told = {"grad_fn": lambda params, i, t=t: grads * t}
        updates, state = sharp.update(grads, state, jnp.arange(3.0), **told)
        assert_close(updates, -0.1 * grads * max(t - 1, 0))


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


MODULATED = optax.chain(SGD, dj.scale_by_staleness(dj.modulation.inverse))


@pytest.mark.parametrize(
    "steps",
    [
        optax.MultiSteps(MODULATED, 2),
        optax.MultiSteps(MODULATED, 2).gradient_transformation(),
    ],
    ids=["MultiSteps", "its transformation"],
)
def test_multi_steps_inside_hands_staleness_on(steps):
    found, _ = updates_of(dj.delayed(steps, 3), steps=6)
    for t, updates in enumerate(found):
        if t % 2 == 0:
            assert_close(updates, optax.tree.zeros_like(PARAMS))
            continue
        parts = [gradient(max(step - 3, 0)) for step in (t - 1, t)]
        mean = jax.tree.map(lambda a, b: (a + b) / 2, *parts)
        factor = 1 / max(1, min(t, 3))  # of the gradient that completes the mean
        assert_close(updates, optax.tree.scale(-0.1 * factor, mean))


def test_an_inner_that_takes_no_staleness_need_not_be_told():
    def strict(updates, state, params=None):
        return optax.tree.scale(-1.0, updates), state

    inner = optax.GradientTransformationExtraArgs(optax.identity().init, strict)
    with pytest.raises(TypeError, match="staleness"):
        updates_of(dj.delayed(inner, 1))
    found, _ = updates_of(dj.delayed(inner, 1, hand_staleness=False))
    assert_close(found[5], optax.tree.scale(-1.0, gradient(4)))


def test_staleness_in_the_state_reaches_what_reads_it_and_ages_add():
    tx = dj.inject_staleness(dj.delayed(MODULATED, 2))
    state = tx.init(PARAMS)
    ages = [0, 5, 1, 7, 3]
    for t, age in enumerate(ages):
        state = state._replace(staleness=jnp.int32(age))
        updates, state = tx.update(gradient(t), state, PARAMS)
        taken = max(t - 2, 0)
        tau = min(t, 2) + ages[taken]
        assert dj.staleness(state) == tau
        expected = optax.tree.scale(-0.1 / max(1, tau), gradient(taken))
        assert_close(updates, expected)


def test_staleness_in_the_state_and_in_the_call_add():
    tx = dj.inject_staleness(MODULATED)
    state = tx.init(PARAMS)._replace(staleness=jnp.int32(2))
    updates, _ = tx.update(gradient(0), state, PARAMS, staleness=3)
    assert_close(updates, optax.tree.scale(-0.1 / 5, gradient(0)))


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
    with pytest.raises(ValueError, match="is 4, but .* has no slots:"):
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
