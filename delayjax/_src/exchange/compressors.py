"""Compressors: a message has each entry, rounded to a level, or some of the entries."""

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, kinds
from delayjax._src.ground.compression import Compressor


def quantized(bits: int) -> Compressor:
    """The compressor that rounds entries to integers of b bits, times a leaf's scale.

        s    = max_i |x_i| / L,    L = 2^(b - 1) - 1
        Q(x) = s round(x / s)

    for each leaf and each worker. Up to rounding no entry moves by more than s / 2, the
    largest entry does not move, and an entry of 0 stays 0. So |x - Q(x)| < |x| unless x
    is 0, and error feedback loses nothing. Give it to `error_feedback`, or to
    `averaging.outer` as `compress`.

    The mean is the same as if each worker sent its integers, and one scale for each
    leaf, to all others, and these added up Q(x) in the dtype of the leaf: between two
    workers, b / 32 of the bytes of float32. An all-reduce of XLA has no such form: in
    `workers.run` the message is Q(x), in the dtype of the leaf.

    Args:
        bits: b, 2 to 16: 8 has 127 levels on each side of 0, 4 has 7. Static.

    Example:
        >>> message, restore = quantized(4)(jnp.asarray([7.0, -3.4, 0.2]), jnp.int32(0))
        >>> restore(message)
        Array([ 7., -3.,  0.], dtype=float32)

    References:
        Streaming DiLoCo, Douillard et al., 2025, arXiv:2501.18512, sends 4 bits with an
        exponent, and adds up in float32. Levels of equal distance are ours.
    """
    levels = 2 ** (checks.check_bound("bits", bits, at_least=2, at_most=16) - 1) - 1

    def rounded(leaf):
        whole = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        scale = jnp.abs(whole).max(initial=0.0) / levels
        # a leaf of zeros has no scale
        codes = jnp.round(whole / jnp.where(scale > 0, scale, 1.0))
        return (codes * scale).astype(leaf.dtype)

    def compress(tree, step):
        return jax.tree.map(rounded, tree), lambda message: message

    return compress


@kinds.checked
def random_blocks(key: kinds.Key, fraction: kinds.PositiveProbability) -> Compressor:
    """The compressor that keeps one block of each leaf's entries.

        size  = max(1, floor(fraction n)) for a leaf with n entries
        start uniform on 0, ..., n - 1; after the end the block goes on at the front

    The block is the same on all workers. A leaf that is sharded over further axes is
    gathered.

    Args:
        key: a PRNG key; the draw at step t uses `fold_in(key, t)`.
        fraction: the fraction of the entries that is kept, in (0, 1]. Static.

    Example:
        >>> compress = random_blocks(jax.random.key(7), 0.5)
        >>> message, restore = compress(jnp.arange(6.0), jnp.int32(0))
        >>> message
        Array([5., 0., 1.], dtype=float32)
        >>> restore(10 + message)
        Array([10., 11.,  0.,  0.,  0., 15.], dtype=float32)

    References:
        Xu and Huang (DEF), ICML 2022, arXiv:2004.05298; `URSB` of its code anxuthu/DEF.
    """

    def cut(leaf, start):
        size = min(leaf.size, max(1, int(fraction * leaf.size)))
        return jnp.roll(leaf.ravel(), -start)[:size]

    def place(block, leaf, start):
        zeros_behind = jnp.pad(block, (0, leaf.size - block.size))
        return jnp.roll(zeros_behind, start).reshape(leaf.shape)

    def compress(tree, step):
        leaves, structure = jax.tree.flatten(tree)
        entries = np.asarray([max(leaf.size, 1) for leaf in leaves], np.int32)
        drawn = jax.random.fold_in(key, step)
        starts = jax.random.randint(drawn, entries.shape, 0, entries)

        def restore(message):
            blocks = jax.tree.leaves(message)
            return jax.tree.unflatten(structure, map(place, blocks, leaves, starts))

        return jax.tree.unflatten(structure, map(cut, leaves, starts)), restore

    return compress
