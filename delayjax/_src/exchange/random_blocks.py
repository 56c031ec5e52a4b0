"""Keeps one block of each leaf, which is drawn at each step."""

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import kinds
from delayjax._src.ground.compression import Compressor


@kinds.checked
def random_blocks(key: kinds.Key, fraction: kinds.PositiveProbability) -> Compressor:
    """The `compress` of `error_feedback` that keeps one block of each leaf's entries.

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
