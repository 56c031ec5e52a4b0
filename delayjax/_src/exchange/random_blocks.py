"""One block of each leaf, drawn anew at each step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src import base
from delayjax._src.exchange.error_feedback import Compressor


def random_blocks(key: jax.Array, fraction: float) -> Compressor:
    """Keeps one block of consecutive entries of each leaf, the same on all workers.

        size  = max(1, floor(fraction n)) of a leaf's n entries
        start uniform on 0, ..., n - 1; the block goes on at the front from the end

    All workers send the same entries, so a sum of the blocks alone is enough, and each
    entry is kept with probability size / n, again at each step.

    Args:
        key: a PRNG key; the draw of step t uses `fold_in(key, t)`.
        fraction: of the entries that is kept, in (0, 1]. Static.

    Returns:
        The `compress` of `error_feedback`; its message has one array [size] a leaf. A
        leaf that is sharded over further axes of a mesh is put together for it.

    Raises:
        ValueError: if it is not in (0, 1].

    Example:
        >>> compress = random_blocks(jax.random.key(7), 0.5)
        >>> message, restore = compress(jnp.arange(6.0), jnp.int32(0))
        >>> message
        Array([5., 0., 1.], dtype=float32)
        >>> restore(10 + message)
        Array([10., 11.,  0.,  0.,  0., 15.], dtype=float32)

    References:
        Xu and Huang (DEF), ICML 2022, arXiv:2004.05298; the block as in its code
        anxuthu/DEF (`URSB`, a uniform random sparse block).
    """
    base.check_key("key", key)
    if not base.is_concrete(fraction):
        raise TypeError("`fraction` must be static, got a traced value.")
    base.check_number("fraction", fraction, positive=True)
    if fraction > 1:
        raise ValueError(f"`fraction` must be in (0, 1], got {fraction}.")

    def compress(tree, step):
        leaves, structure = jax.tree.flatten(tree)
        entries = np.asarray([max(leaf.size, 1) for leaf in leaves], np.int32)
        starts = jax.random.randint(
            jax.random.fold_in(key, step), entries.shape, 0, entries
        )
        blocks = [
            _Block.of(leaf, fraction, start)
            for leaf, start in zip(leaves, starts, strict=True)
        ]

        def restore(message):
            parts = zip(blocks, jax.tree.leaves(message), strict=True)
            return jax.tree.unflatten(structure, [b.place(part) for b, part in parts])

        kept = [b.cut(leaf) for b, leaf in zip(blocks, leaves, strict=True)]
        return jax.tree.unflatten(structure, kept), restore

    return compress


class _Block(NamedTuple):
    """Consecutive entries of a leaf, from its end on at the front.

    As two slices, of the leaf's last entries and of its first, for slices are cheap
    where a gather of single entries is not.
    """

    shape: tuple[int, ...]  # of the leaf
    size: int
    tail: jax.Array  # where the slice that does not reach the front starts, int32 []
    beyond: jax.Array  # how many entries of the block lie at the front, int32 []

    @classmethod
    def of(cls, leaf: jax.Array, fraction: float, start: jax.Array) -> "_Block":
        size = min(leaf.size, max(1, int(fraction * leaf.size)))
        tail = jnp.minimum(start, leaf.size - size)
        return cls(leaf.shape, size, tail, start - tail)

    def cut(self, leaf: jax.Array) -> jax.Array:
        """The block, [size]."""
        flat = leaf.ravel()
        tail = jax.lax.dynamic_slice(flat, (self.tail,), (self.size,))
        both = jnp.concatenate([tail, flat[: self.size]])
        return jax.lax.dynamic_slice(both, (self.beyond,), (self.size,))

    def place(self, block: jax.Array) -> jax.Array:
        """A leaf of zeros but for the block."""
        both = jnp.zeros((2 * self.size,), block.dtype)
        both = jax.lax.dynamic_update_slice(both, block, (self.beyond,))
        tail, front = both[: self.size], both[self.size :]
        flat = jnp.zeros(self.shape, block.dtype).ravel()
        flat = jax.lax.dynamic_update_slice(flat, tail, (self.tail,))
        return flat.at[: self.size].add(front).reshape(self.shape)
