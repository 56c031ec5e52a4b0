"""Rounds each leaf to few levels, on a scale of its own."""

import jax
import jax.numpy as jnp

from delayjax._src.ground import checks
from delayjax._src.ground.compression import Compressor


def quantized(bits: int) -> Compressor:
    """The compressor that rounds entries to integers of b bits, times a leaf's scale.

        s    = max_i |x_i| / L,    L = 2^(b - 1) - 1
        Q(x) = s round(x / s)

    for each leaf and each worker. Up to rounding no entry moves by more than s / 2, the
    largest does not move, and an entry of 0 stays 0. So |x - Q(x)| < |x| unless x is 0,
    and error feedback loses nothing. Give it to `error_feedback`, or to
    `averaging.outer` as `compress`.

    The mean is that of an exchange in which each worker sends its integers and one
    scale a leaf to all others, which add up Q(x) in the dtype of the leaf: between two
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
        del step
        return jax.tree.map(rounded, tree), lambda message: message

    return compress
