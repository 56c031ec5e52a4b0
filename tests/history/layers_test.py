"""Layers in one leaf are as late as separate leaves would be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.delays import Layers
from tests.support.cases import shortened

DELAYS = (3, 3, 1, 0)
STEPS = 8


def params(axis=0):
    shape = (2, 5)
    blocks = {
        "w": jnp.stack([jnp.full(shape, 1.0 + i) for i in range(4)], axis),
        "b": jnp.stack([jnp.full(5, 0.1 * i) for i in range(4)], axis),
    }
    return {"embed": jnp.ones(3), "blocks": blocks, "head": jnp.ones((2, 2))}


def gradients(like):
    draw = np.random.default_rng(0).normal
    return [
        jax.tree.map(lambda leaf: np.float32(draw(size=leaf.shape)), like)
        for _ in range(STEPS)
    ]


def apart(tree, axis):
    """The layers as separate leaves."""
    blocks = [
        jax.tree.map(lambda leaf, i=i: np.asarray(leaf).take(i, axis), tree["blocks"])
        for i in range(4)
    ]
    return tree | {"blocks": blocks}


def trained(tx, params, gradients, jit=True):
    state = tx.init(params)
    update = jax.jit(tx.update) if jit else tx.update
    for grad in gradients:
        moves, state = update(grad, state, params)
        params = optax.apply_updates(params, moves)
    return params, state


@pytest.mark.parametrize(
    ("warmup", "axis"),
    shortened(
        [
            (warmup, axis)
            for warmup in ("fresh", "skip", "zeros")
            for axis in (0, -1, 1)
        ],
        *(("fresh", 0), ("fresh", -1), ("zeros", 1), ("skip", 0)),
    ),
)
def test_layers_train_as_leaves_of_their_own(axis, warmup):
    whole = params(axis)
    if axis == 1:
        del whole["blocks"]["b"]
        whole["blocks"]["c"] = jnp.ones((3, 4))
    grads = gradients(whole)
    delay = {"embed": 4, "blocks": Layers(DELAYS, axis), "head": 0}
    tx = dj.delayed(optax.adam(0.1), delay, warmup=warmup)
    ended, _ = trained(tx, whole, grads)
    split = dj.delayed(optax.adam(0.1), delay | {"blocks": list(DELAYS)}, warmup=warmup)
    alone, _ = trained(split, apart(whole, axis), [apart(g, axis) for g in grads])
    for got, wanted in zip(
        jax.tree.leaves(apart(ended, axis)), jax.tree.leaves(alone), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_delayed_gradient_is_by_hand_the_one_of_the_layer_s_age():
    whole = params()
    grads = gradients(whole)
    delay = {"embed": 1, "blocks": Layers(DELAYS), "head": 0}
    tx = dj.delayed(optax.identity(), delay)
    state = tx.init(whole)
    for t, grad in enumerate(grads):
        moves, state = tx.update(grad, state)
        for layer, asked in enumerate(DELAYS):
            age = min(asked, t)
            for name in ("w", "b"):
                np.testing.assert_array_equal(
                    moves["blocks"][name][layer], grads[t - age]["blocks"][name][layer]
                )
        taus = [min(asked, t) for asked in DELAYS]
        staleness = dj.staleness(state)
        assert staleness["blocks"]["w"].shape == (4, 1, 1)
        assert staleness["blocks"]["b"].shape == (4, 1)
        assert staleness["blocks"]["w"].ravel().tolist() == taus
        assert (int(staleness["embed"]), int(staleness["head"])) == (min(1, t), 0)


def test_a_law_has_a_factor_for_each_layer():
    whole = params()
    (grad, *_) = gradients(whole)
    law = dj.modulation.inverse
    chain = optax.chain(optax.sgd(1.0), dj.scale_by_staleness(law))
    delay = {"embed": 2, "blocks": Layers(DELAYS), "head": 0}
    late = dj.delayed(chain, delay)
    plain = dj.delayed(optax.sgd(1.0), delay)
    states = late.init(whole), plain.init(whole)
    for _ in range(STEPS):
        moves, first = late.update(grad, states[0], whole)
        full, second = plain.update(grad, states[1], whole)
        states = first, second
    for layer, tau in enumerate(DELAYS):
        np.testing.assert_allclose(
            moves["blocks"]["w"][layer], full["blocks"]["w"][layer] / max(1, tau)
        )
    np.testing.assert_allclose(moves["embed"], full["embed"] / 2)


def test_a_run_of_layers_keeps_as_many_gradients_as_it_needs():
    state = dj.delayed(optax.sgd(1.0), Layers(DELAYS)).init({"w": jnp.zeros((4, 6))})
    slots = jax.tree.leaves(state.gradients.slots)
    assert sorted(slot.shape for slot in slots) == [(2, 1, 6), (4, 2, 6)]


def test_parameters_are_kept_with_the_gradients_of_their_layer():
    seen = []

    def update(updates, state, params, *, staleness, stale_params):
        seen.append(stale_params)
        return updates, state

    watcher = optax.GradientTransformationExtraArgs(lambda p: (), update)
    tx = dj.delayed(watcher, {"w": Layers((2, 0))}, keep_params=True)
    state = tx.init({"w": jnp.zeros((2, 1))})
    for t in range(5):
        now = {"w": jnp.full((2, 1), float(t))}
        _, state = tx.update(now, state, now)
        assert seen[-1]["w"].ravel().tolist() == [max(t - 2, 0), t]


def test_ages_add_where_all_gradients_come_with_one():
    tx = dj.delayed(optax.identity(), {"w": Layers((1, 0))})
    state = tx.init({"w": jnp.zeros((2, 3))})
    for t in range(3):
        _, state = tx.update({"w": jnp.ones((2, 3))}, state, staleness=5)
        assert dj.staleness(state)["w"].ravel().tolist() == [min(t, 1) + 5, 5]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Layers(()), r"`delays` must hold a delay for each layer, got none\."),
        (lambda: Layers((1, -1)), r"`delays` must be at least 0, got -1\."),
        (
            lambda: dj.delayed(optax.sgd(1.0), Layers((1, 0)), max_delay=2),
            "`max_delay` must be left out with `Layers`, got 2",
        ),
        (
            lambda: dj.delayed(optax.sgd(1.0), {"w": Layers((1, 0, 0))}).init(
                {"w": jnp.zeros((2, 3))}
            ),
            r"3 delays along axis 0, but a leaf has shape \[2, 3\] at \['w'\]",
        ),
        (
            lambda: dj.delayed(optax.sgd(1.0), Layers((1,), axis=1)).init(jnp.zeros(1)),
            r"1 delays along axis 1, but a leaf has shape \[1\] at the root",
        ),
        (
            lambda: dj.delayed(optax.sgd(1.0), {"v": Layers((1, 0))}).init(
                {"w": jnp.zeros((2, 3))}
            ),
            "`delay` must be one value or a prefix",
        ),
    ],
)
def test_bad_layers_are_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_a_float_delay_of_a_layer_is_refused():
    with pytest.raises(TypeError, match="`delays` must be a static integer"):
        Layers((1.5, 0))


def test_a_rule_of_one_number_refuses_layers():
    tx = dj.delayed(dj.drop_stale(optax.sgd(1.0), 2), {"w": Layers((1, 0))})
    grad = {"w": jnp.ones((2, 3))}
    with pytest.raises(TypeError, match="`drop_stale` needs one `staleness`"):
        tx.update(grad, tx.init(grad), grad)


def test_a_tree_of_staleness_is_refused():
    tx = dj.delayed(optax.sgd(1.0), {"w": Layers((1, 0))})
    grad = {"w": jnp.ones((2, 3))}
    with pytest.raises(
        ValueError, match=r"`staleness` must be one number .*, got \{'w': 1\}"
    ):
        tx.update(grad, tx.init(grad), grad, staleness={"w": 1})
