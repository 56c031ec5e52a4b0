"""The networks, as flax.linen modules without mutable state.

Networks with a `dtype` compute in it; parameters, the sums of normalizations and
logits are float32.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class MLP(nn.Module):
    """`depth` hidden layers of `width` ReLU units."""

    width: int
    depth: int
    classes: int

    @nn.compact
    def __call__(self, x):
        """float32 [batch, ...] -> logits [batch, classes]."""
        x = x.reshape(x.shape[0], -1)
        for _ in range(self.depth):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(self.classes)(x)


class ShiftedConv(nn.Module):
    """A 3 x 3 convolution as nine shifts and one product.

    A grid maps the network over hundreds of kernels. A convolution would become a
    grouped convolution, which XLA runs slowly on a CPU.
    """

    channels: int

    @nn.compact
    def __call__(self, x):
        """float32 [batch, height, width, any] -> [batch, height, width, channels]."""
        height, width = x.shape[1:3]
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifts = [
            x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)
        ]
        return nn.Dense(self.channels)(jnp.concatenate(shifts, axis=-1))


class CNN(nn.Module):
    """Two convolutions (`width`, then 2 `width` channels), each halving the image."""

    width: int
    classes: int

    @nn.compact
    def __call__(self, x):
        """float32 [batch, height, width, any], both even -> logits [batch, classes]."""
        for channels in (self.width, 2 * self.width):
            x = nn.relu(ShiftedConv(channels)(x))
            # the mean of 2 x 2 pixels: a pooling window would be slow when mapped
            batch, height, width, _ = x.shape
            x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside the identity (He et al., fig. 2)."""

    channels: int
    stride: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        """`dtype` [batch, height, width, any] -> [batch, ..., channels]."""
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = functools.partial(nn.GroupNorm, num_groups=8, dtype=self.dtype)
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.channels, (3, 3), strides)(x)))
        y = norm()(conv(self.channels, (3, 3))(y))
        # option A: subsample, and zeros for the new channels; no parameters
        x = x[:, :: self.stride, :: self.stride]
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, self.channels - x.shape[-1])))
        return nn.relu(x + y)


class ResNet20(nn.Module):
    """The 20-layer residual network for small images, with GroupNorm.

    Three blocks each of 16, 32 and 64 channels. GroupNorm replaces BatchNorm, whose
    running averages are a state that no gradient updates.

    References:
        He, Zhang, Ren and Sun, Deep residual learning for image recognition, 2015,
        arXiv:1512.03385, section 4.2.
        Wu and He, Group normalization, 2018, arXiv:1803.08494.
    """

    classes: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images):
        """uint8 [batch, height, width, any] -> logits [batch, classes]."""
        x = _from_pixels(images, self.dtype)
        x = nn.Conv(16, (3, 3), use_bias=False, dtype=self.dtype)(x)
        x = nn.relu(nn.GroupNorm(num_groups=8, dtype=self.dtype)(x))
        for channels in (16, 32, 64):
            for block in range(3):
                stride = 2 if block == 0 and channels > 16 else 1
                x = ResidualBlock(channels, stride, self.dtype)(x)
        return nn.Dense(self.classes)(x.astype(jnp.float32).mean((1, 2)))


class BottleneckBlock(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut (He et al., fig. 5).

    The 3 x 3 convolution has the stride. The last scale starts at zero, so that a block
    is its shortcut at first (Goyal et al., section 5.1).
    """

    channels: int
    stride: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        """`dtype` [batch, height, width, any] -> [batch, ..., 4 channels]."""
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = functools.partial(nn.GroupNorm, num_groups=32, dtype=self.dtype)
        strides, widened = (self.stride, self.stride), 4 * self.channels
        y = nn.relu(norm()(conv(self.channels, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.channels, (3, 3), strides)(y)))
        y = norm(scale_init=nn.initializers.zeros)(conv(widened, (1, 1))(y))
        if x.shape != y.shape:  # option B: a projection where the shape changes
            x = norm()(conv(widened, (1, 1), strides)(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """The 50-layer residual network for photographs, with GroupNorm.

    3, 4, 6 and 3 blocks of 64, 128, 256 and 512 channels; blocks exchange four times as
    many channels. GroupNorm of 32 groups replaces BatchNorm, as in `ResNet20`.

    References:
        He, Zhang, Ren and Sun, Deep residual learning for image recognition, 2015,
        arXiv:1512.03385, table 1.
        Wu and He, Group normalization, 2018, arXiv:1803.08494.
        Goyal et al., Accurate, large minibatch SGD, 2017, arXiv:1706.02677.
    """

    classes: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images):
        """uint8 [batch, height, width, any] -> logits [batch, classes]."""
        x = _from_pixels(images, self.dtype)
        x = nn.Conv(64, (7, 7), (2, 2), use_bias=False, dtype=self.dtype)(x)
        x = nn.relu(nn.GroupNorm(num_groups=32, dtype=self.dtype)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for block in range(blocks):
                stride = 2 if block == 0 and channels > 64 else 1
                x = BottleneckBlock(channels, stride, self.dtype)(x)
        return nn.Dense(self.classes)(x.astype(jnp.float32).mean((1, 2)))


class TransformerBlock(nn.Module):
    """Pre-norm causal attention and a GELU layer of four times the width.

    Every weight is a matrix, so that optimizers for matrices (Muon) reach all of them.
    """

    heads: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        """`dtype` [batch, length, width] -> `dtype` [batch, length, width]."""
        batch, length, width = x.shape
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype)
        y = norm()(x)
        q, k, v = (
            dense(width, name=name)(y).reshape(
                batch, length, self.heads, width // self.heads
            )
            for name in ("query", "key", "value")
        )
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += dense(width, name="out")(y.reshape(x.shape))
        y = dense(4 * width)(norm()(x))
        return x + dense(width)(nn.gelu(y))


class Transformer(nn.Module):
    """A decoder: learned positions, `depth` blocks, tied embeddings, no dropout."""

    vocab: int
    context: int
    width: int
    depth: int
    heads: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens):
        """int32 [batch, length <= context] -> logits [batch, length, vocab]."""
        embed = nn.Embed(self.vocab, self.width, dtype=self.dtype)
        places = nn.Embed(self.context, self.width, dtype=self.dtype)
        x = embed(tokens) + places(jnp.arange(tokens.shape[1]))[None]
        for _ in range(self.depth):
            x = TransformerBlock(self.heads, self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)
        return logits(x, embed.embedding)


def logits(x, matrix):
    """[batch, length, width] and [vocab, width] -> float32 [batch, length, vocab]."""
    matrix = matrix.astype(x.dtype)
    return jnp.dot(x, matrix.T, preferred_element_type=jnp.float32)


def _from_pixels(images, dtype):
    """uint8 0 .. 255 as -1 .. 1."""
    return (images.astype(jnp.float32) / 127.5 - 1.0).astype(dtype)
