"""Networks have the papers' parameters, and compute in the type that was asked for."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tasks import models
from tests.support.cases import shortened


def test_a_shifted_convolution_is_a_convolution():
    x = jax.random.normal(jax.random.key(0), (2, 6, 4, 3))
    layer = models.ShiftedConv(5)
    params = layer.init(jax.random.key(1), x)
    kernel = params["params"]["Dense_0"]["kernel"].reshape(3, 3, 3, 5)
    expected = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(layer.apply(params, x), expected, atol=1e-5)


def test_the_transformer_never_looks_ahead_and_rounds_in_bfloat16():
    sizes = dict(vocab=7, context=10, width=32, depth=1, heads=2)
    plain = models.Transformer(**sizes)
    half = models.Transformer(**sizes, dtype=jnp.bfloat16)
    tokens = jnp.arange(10)[None] % 7
    both = jnp.concatenate([tokens, tokens.at[0, 6].set(0)])
    params = jax.jit(plain.init)(jax.random.key(0), tokens)
    theirs, ours = jax.jit(lambda: [m.apply(params, both) for m in (plain, half)])()
    one, changed = theirs
    np.testing.assert_allclose(one[:6], changed[:6], atol=1e-6)
    assert (jnp.abs(one - changed)[6:].max(-1) > 1e-4).all()
    assert ours.dtype == jnp.float32
    error = jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs)
    # bfloat16 has 8 bits: it rounds by 2^-9, and some ten roundings follow each other
    assert 1e-4 < error < 0.05


RESNET20 = 9 * 3 * 16 + 9 * (6 * 16 * 16 + 16 * 32 + 5 * 32 * 32)  # kernels
RESNET20 += 9 * (32 * 64 + 5 * 64 * 64)
RESNET20 += 2 * (7 * 16 + 6 * 32 + 6 * 64)  # scales and shifts
RESNET20 += 64 * 10 + 10


@pytest.mark.parametrize(
    ("model", "side", "expected"),
    [
        (models.ResNet20(classes=10), 32, RESNET20),
        (models.ResNet50(classes=1000), 224, 25_557_032),  # as many as with BatchNorm
    ],
)
def test_residual_networks_have_the_parameters_of_the_paper(model, side, expected):
    images = jax.ShapeDtypeStruct((2, side, side, 3), jnp.uint8)
    params = jax.eval_shape(model.init, jax.random.key(0), images)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
    assert jax.eval_shape(model.apply, params, images).shape == (2, model.classes)


def test_a_bottleneck_begins_as_its_shortcut():
    x = jax.random.normal(jax.random.key(0), (1, 4, 4, 128))
    block = models.BottleneckBlock(channels=32, stride=1)
    out, _ = jax.jit(block.init_with_output)(jax.random.key(1), x)
    np.testing.assert_array_equal(out, nn.relu(x))


NETWORKS = [
    (functools.partial(models.Transformer, 7, 10, 32, 2, 2), jnp.zeros((2, 10), int)),
    (functools.partial(models.ResNet20, 5), jnp.zeros((2, 32, 32, 3), jnp.uint8)),
    (functools.partial(models.ResNet50, 5), jnp.zeros((2, 64, 64, 3), jnp.uint8)),
]


@pytest.mark.parametrize(("network", "x"), shortened(NETWORKS, *NETWORKS[:2]))
def test_in_bfloat16_products_are_and_parameters_and_logits_are_not(network, x):
    half, key = network(dtype=jnp.bfloat16), jax.random.key(0)
    params = jax.eval_shape(half.init, key, x)
    plain = jax.eval_shape(network(dtype=jnp.float32).init, key, x)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, plain)
    assert jax.eval_shape(half.apply, params, x).dtype == jnp.float32
    products = [
        equation
        for equation in jax.make_jaxpr(half.apply)(params, x).jaxpr.eqns
        if equation.primitive.name in ("dot_general", "conv_general_dilated")
    ]
    inputs = [equation.invars[1].aval.dtype for equation in products]
    kernels = len([leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1])
    assert inputs.count(jnp.bfloat16) >= kernels - 2  # not the last of a ResNet
