"""The networks, as flax.linen modules without mutable state."""

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

    A grid maps it over hundreds of kernels, and XLA runs the grouped convolution that
    this would otherwise become slowly on a CPU.
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

    @nn.compact
    def __call__(self, x):
        """float32 [batch, height, width, any] -> [batch, ..., channels]."""
        strides = (self.stride, self.stride)
        y = nn.Conv(self.channels, (3, 3), strides, use_bias=False)(x)
        y = nn.relu(nn.GroupNorm(num_groups=8)(y))
        y = nn.Conv(self.channels, (3, 3), use_bias=False)(y)
        y = nn.GroupNorm(num_groups=8)(y)
        # option A: subsample, and zeros for the new channels; no parameters
        x = x[:, :: self.stride, :: self.stride]
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, self.channels - x.shape[-1])))
        return nn.relu(x + y)


class ResNet20(nn.Module):
    """The 20-layer residual network for small images, with GroupNorm.

    3 x 3 blocks of 16, 32 and 64 channels. GroupNorm takes the place of BatchNorm,
    whose running averages would be state that no update owns.

    References:
        He, Zhang, Ren and Sun, Deep residual learning for image recognition, 2015,
        arXiv:1512.03385, section 4.2.
        Wu and He, Group normalization, 2018, arXiv:1803.08494.
    """

    classes: int

    @nn.compact
    def __call__(self, images):
        """uint8 [batch, height, width, any] -> logits [batch, classes]."""
        x = images.astype(jnp.float32) / 127.5 - 1.0
        x = nn.Conv(16, (3, 3), use_bias=False)(x)
        x = nn.relu(nn.GroupNorm(num_groups=8)(x))
        for channels in (16, 32, 64):
            for block in range(3):
                stride = 2 if block == 0 and channels > 16 else 1
                x = ResidualBlock(channels, stride)(x)
        return nn.Dense(self.classes)(x.mean((1, 2)))


class TransformerBlock(nn.Module):
    """Pre-norm causal attention and a four times wider GELU layer.

    Every weight is a matrix, so that optimizers for matrices (Muon) reach all of them.
    """

    heads: int

    @nn.compact
    def __call__(self, x):
        """float32 [batch, length, width] -> the same."""
        batch, length, width = x.shape
        y = nn.LayerNorm()(x)
        q, k, v = (
            nn.Dense(width, use_bias=False, name=name)(y).reshape(
                batch, length, self.heads, width // self.heads
            )
            for name in ("query", "key", "value")
        )
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += nn.Dense(width, use_bias=False, name="out")(y.reshape(x.shape))
        y = nn.Dense(4 * width, use_bias=False)(nn.LayerNorm()(x))
        return x + nn.Dense(width, use_bias=False)(nn.gelu(y))


class Transformer(nn.Module):
    """A decoder: learned positions, `depth` blocks, tied embeddings, no dropout."""

    vocab: int
    context: int
    width: int
    depth: int
    heads: int

    @nn.compact
    def __call__(self, tokens):
        """int32 [batch, length <= context] -> logits [batch, length, vocab]."""
        embed = nn.Embed(self.vocab, self.width)
        positions = nn.Embed(self.context, self.width)(jnp.arange(tokens.shape[1]))
        x = embed(tokens) + positions[None]
        for _ in range(self.depth):
            x = TransformerBlock(self.heads)(x)
        return embed.attend(nn.LayerNorm()(x))
