"""A chain of linear layers, as parts of a pipeline; and its gradients in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj

WIDTH = 3


def parts(**options):
    """x_0 = batch E; x_{l+1} = x_l W_l; loss = mean of (x_L h - 1)^2 / 2."""
    return dj.pipelines.Parts(
        embed=lambda p, batch, key: batch @ p,
        block=lambda p, x, key: x @ p["w"],
        head=lambda p, x, batch: jnp.mean((x @ p - 1.0) ** 2) / 2,
        **options,
    )


def params(layers, seed=0):
    rng = np.random.default_rng(seed)

    def matrix(*shape):
        return np.eye(WIDTH) + 0.3 * rng.normal(size=(*shape, WIDTH, WIDTH))

    return {
        "embed": matrix(),
        "blocks": {"w": matrix(layers)},
        "head": rng.normal(size=WIDTH) / 2,
    }


def batches(count, examples=4, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, examples, WIDTH))


BY_LEAF = {  # rules that depend on the rank or on the norm of each leaf
    "muon": optax.contrib.muon(0.02),
    "lamb": optax.lamb(0.02, weight_decay=0.1),
    "adafactor": optax.adafactor(0.02, min_dim_size_to_factor=2),
    "agc": optax.chain(optax.adaptive_grad_clip(0.02), optax.sgd(0.05)),
    "adamw": optax.adamw(
        0.02, weight_decay=0.5, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
    ),
}


def biased():
    """x_{l+1} = x_l + tanh(x_l W_l + b_l): each layer has leaves of both ranks."""
    return dj.pipelines.Parts(
        embed=parts().embed, block=biased_layer, head=parts().head
    )


def biased_layer(p, x, key):
    return x + jnp.tanh(x @ p["w"] + p["b"][None])


def with_biases(layers):
    biases = np.linspace(-1.0, 1.0, layers * WIDTH).reshape(layers, WIDTH)
    tree = params(layers)
    return tree | {"blocks": tree["blocks"] | {"b": biases}}


def layers_apart(params):
    """The blocks as a list of trees."""
    blocks = params["blocks"]
    layers = range(len(blocks["b"]))
    return params | {"blocks": [{k: blocks[k][i] for k in blocks} for i in layers]}


@functools.cache
def loop_of_layers(name, layers=8, updates=5):
    """[(loss, parameters)] of a loop with Optax; the layers of the model are a list."""
    tx, now = BY_LEAF[name], layers_apart(single(with_biases(layers)))

    def loss(p, batch):
        x = batch @ p["embed"]
        for layer in p["blocks"]:
            x = biased_layer(layer, x, None)
        return parts().head(p["head"], x, batch)

    @jax.jit
    def step(now, state, batch):
        value, grads = jax.value_and_grad(loss)(now, batch)
        moves, state = tx.update(grads, state, now)
        return value, optax.apply_updates(now, moves), state

    state, ends = tx.init(now), []
    for batch in single(batches(updates)):
        value, now, state = step(now, state, batch)
        ends.append((value, now))
    return ends


def chained(params):
    """The matrices E, W_0, ..., W_{L-1}, in this order, and h as a column."""
    return [params["embed"], *params["blocks"]["w"], params["head"][:, None]]


def stages_of(layers, stages):
    """The stage of each matrix of the chain: layer l is in floor(l S / L)."""
    inner = [layer * stages // layers for layer in range(layers)]
    return [0, *inner, stages - 1]


def gradients(forward, backward, stage, batch):
    """(loss, gradient of each matrix), by hand.

    A stage's input comes from the forward weights. Its inner activations and its
    transposes come from the backward weights.
    """
    inputs, x, z = [], batch, batch  # z: inside of a stage, with backward weights
    for k, (a, b) in enumerate(zip(forward, backward, strict=True)):
        if k and stage[k] != stage[k - 1]:
            z = x
        inputs.append(z)
        x, z = x @ a, z @ b
    loss = np.mean((x - 1.0) ** 2) / 2
    # the head is in the last stage, which computes its output again
    delta = (z - 1.0) / len(batch)
    result = []
    for value, b in zip(reversed(inputs), reversed(backward), strict=True):
        result.append(value.T @ delta)
        delta = delta @ b.T
    return loss, result[::-1]


def seen(pipe, state):
    return chained(jax.tree.map(np.asarray, pipe.params(state)))


def single(tree):
    """The tree in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)


def assert_close(tree, expected, times=1):
    """Equal up to a few roundings of float32, or `times` as many."""
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
            x, y, rtol=1e-5 * times, atol=2e-6 * times
        ),
        *(tree, expected),
    )
