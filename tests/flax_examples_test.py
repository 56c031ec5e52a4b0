"""Flax's own examples, small: one line is changed, the one that names the optimizer."""

import functools
import inspect
import json
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state
from sklearn import datasets

import delayjax as dj

pytestmark = pytest.mark.runs

STEPS, BATCH, DEPTH = 6, 32, 64


class Lm(nnx.Module):
    """As in Flax's LM1B example: a causal block over characters, with dropout."""

    def __init__(self, rngs, width=16, length=12):
        self.embed = nnx.Embed(128, width, rngs=rngs)
        self.position = nnx.Param(jnp.zeros((length, width)))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.heads = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.position[...][None]
        heads = self.heads(self.norm(x)).reshape(*tokens.shape, 3, 2, -1)
        query, key, value = jnp.moveaxis(heads, 2, 0)
        seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(seen.reshape(x.shape))
        return self.embed.attend(x + self.down(nnx.relu(self.up(x))))


class LinenCnn(linen.Module):
    """As in Flax's MNIST example: convolution, batch norm, dropout, dense layers."""

    @linen.compact
    def __call__(self, x, train=True):
        x = linen.Dropout(0.1, deterministic=not train)(
            linen.Conv(8, (3, 3), use_bias=False)(x)
        )
        x = linen.relu(linen.BatchNorm(use_running_average=not train)(x))
        x = linen.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = linen.relu(linen.Dense(32)(x.reshape(len(x), -1)))
        return linen.Dense(10)(x)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def nnx_loss(model, inputs, labels):
    return cross_entropy(model(inputs), labels)


def nnx_step(model, optimizer, inputs, labels):
    loss, grads = nnx.value_and_grad(nnx_loss)(model, inputs, labels)
    optimizer.update(model, grads)
    return loss


class TrainState(train_state.TrainState):
    batch_stats: Any
    key: jax.Array


def linen_gradients(state, inputs, labels):
    def loss(params):
        logits, updated = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            inputs,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(state.key, state.step)},
        )
        return cross_entropy(logits, labels), updated["batch_stats"]

    return jax.value_and_grad(loss, has_aux=True)(state.params)


def linen_step(state, inputs, labels):
    (loss, batch_stats), grads = linen_gradients(state, inputs, labels)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), loss


@functools.cache
def digits():
    images, labels = datasets.load_digits(return_X_y=True)
    images = images[: STEPS * BATCH].reshape(STEPS, BATCH, 8, 8, 1) / 16
    labels = labels[: STEPS * BATCH].reshape(STEPS, BATCH)
    return list(zip(jnp.asarray(images, jnp.float32), jnp.asarray(labels), strict=True))


@functools.cache
def text():
    """Characters of a module's source, and those that follow them."""
    characters = jnp.asarray([ord(c) % 128 for c in inspect.getsource(json.decoder)])
    rows = characters[: STEPS * BATCH * 13].reshape(STEPS, BATCH, 13)
    return [(row[:, :-1], row[:, 1:]) for row in rows]


class Run(NamedTuple):
    lowered: str  # the step as it is handed to XLA
    program: Any  # the step compiled
    losses: list[jax.Array]
    params: Any  # after the last step


def key(seed):
    return jax.random.key(seed, impl="unsafe_rbg")  # compiled in half the time


def nnx_run(tx, **donated):
    model = Lm(nnx.Rngs(key(0)))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    lowered = nnx.jit(nnx_step, **donated).lower(model, optimizer, *text()[0])
    step = lowered.compile()
    losses = [step(model, optimizer, *batch) for batch in text()]
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return Run(lowered.as_text(), step, losses, params)


def nnx_by_hand(inner, delay):
    model = Lm(nnx.Rngs(key(0)))
    optimizer = nnx.Optimizer(model, inner, wrt=nnx.Param)
    gradients = nnx.jit(nnx.value_and_grad(nnx_loss))
    update = nnx.jit(lambda optimizer, model, grads: optimizer.update(model, grads))
    losses, late = [], []
    for step, batch in enumerate(text()):
        loss, grads = gradients(model, *batch)
        losses.append(loss)
        late.append(grads)
        update(optimizer, model, late[max(step - delay, 0)])
    return losses, nnx.to_pure_dict(nnx.state(model, nnx.Param))


def linen_state(tx):
    model, keys = LinenCnn(), {"params": key(0), "dropout": key(1)}
    variables = jax.jit(model.init)(keys, digits()[0][0])
    return TrainState.create(apply_fn=model.apply, tx=tx, key=key(2), **variables)


def linen_run(tx, **donated):
    state, losses = linen_state(tx), []
    lowered = jax.jit(linen_step, **donated).lower(state, *digits()[0])
    step = lowered.compile()
    for batch in digits():
        state, loss = step(state, *batch)
        losses.append(loss)
    return Run(lowered.as_text(), step, losses, state.params)


def linen_by_hand(inner, delay):
    state, gradients = linen_state(inner), jax.jit(linen_gradients)
    losses, late = [], []
    for step, batch in enumerate(digits()):
        (loss, batch_stats), grads = gradients(state, *batch)
        losses.append(loss)
        late.append(grads)
        state = state.apply_gradients(
            grads=late[max(step - delay, 0)], batch_stats=batch_stats
        )
    return losses, state.params


# name: (the run of a transformation, the loop by hand, what a user donates)
EXAMPLES = {
    "nnx": (nnx_run, nnx_by_hand, {"donate_argnames": ("model", "optimizer")}),
    "linen": (linen_run, linen_by_hand, {"donate_argnames": "state"}),
}
examples = pytest.mark.parametrize("name", EXAMPLES)


@functools.cache
def original(name):
    run, _, _ = EXAMPLES[name]
    return run(optax.adamw(5e-3))


@functools.cache
def late(name):
    """Two steps late, with a history that is much larger than all else, and donated."""
    run, _, donated = EXAMPLES[name]
    return run(dj.delayed(optax.adamw(5e-3), 2, max_delay=DEPTH), **donated)


@examples
def test_a_delay_of_zero_is_the_original_bit_for_bit(name):
    run, _, _ = EXAMPLES[name]
    got = run(dj.delayed(optax.adamw(5e-3), 0))
    assert "barrier" not in got.lowered  # one alone may change the last bit of Adam
    for ours, theirs in zip(got[2:], original(name)[2:], strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@examples
def test_a_delay_of_two_is_a_loop_that_keeps_two_gradients(name):
    _, by_hand, _ = EXAMPLES[name]
    expected = by_hand(optax.adamw(5e-3), 2)
    for ours, theirs in zip(late(name)[2:], expected, strict=True):
        # compiled in one piece and in two: the rounding of a gradient near zero counts,
        # for Adam divides it by its own size
        chex.assert_trees_all_close(ours, theirs, rtol=1e-5, atol=1e-5)


def nbytes(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@examples
def test_a_donated_history_is_in_place(name):
    ring = (DEPTH + 1) * nbytes(original(name).params)
    memory = late(name).program.memory_analysis()
    plain = original(name).program.memory_analysis()
    assert memory.alias_size_in_bytes >= ring
    assert memory.temp_size_in_bytes <= plain.temp_size_in_bytes + ring / 4


def test_a_history_that_is_not_donated_is_copied_at_each_step():
    run, _, _ = EXAMPLES["nnx"]
    kept = run(dj.delayed(optax.adamw(5e-3), 2, max_delay=DEPTH)).program
    donated = late("nnx").program
    ring = (DEPTH + 1) * nbytes(original("nnx").params)
    assert kept.memory_analysis().alias_size_in_bytes == 0
    read_and_written = [p.cost_analysis()["bytes accessed"] for p in (kept, donated)]
    assert read_and_written[0] >= read_and_written[1] + 1.9 * ring
