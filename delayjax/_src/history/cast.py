"""A history in a lower precision."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from delayjax._src.ground import trees, xla
from delayjax._src.ground.pickling import remembered
from delayjax._src.history import ring as rings


@remembered
def cast(dtype: DTypeLike, *, storage: rings.Storage | None = None) -> rings.Storage:
    """A history in a lower precision, for `delayed(..., history=cast(dtype))`.

    Args:
        dtype: the floating-point type of the slots. bfloat16 needs half the memory of
            float32, and rounds each gradient by 2^-9 of its value. Only a history with
            slots of 4 bytes or more has a derivative (for a meta-gradient, say).
            `cast(jnp.float32)` keeps bfloat16 or float16 gradients, and parameters with
            `keep_params`, without rounding, in twice their memory.
        storage: where the slots lie, `on_host()` or `sharded(...)`; by default on the
            device.

    Raises:
        TypeError: if a gradient is not real; in a derivative through slots of 2 bytes
            or less, which hold bits.

    Example:
        >>> storage, item = cast(jnp.bfloat16), jnp.full(2, 1.001)
        >>> storage.read(storage.push(storage.init(item, 4), item), 0, item)
        Array([1., 1.], dtype=float32)
    """
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"`dtype` must be a floating-point type, got {dtype!r}.")
    dtype = jnp.dtype(dtype)
    storage = rings.plain if storage is None else storage

    def converted(path, leaf):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                "`cast` stores real floating-point leaves, got"
                f" {jnp.result_type(leaf)} at {trees.path_name(path)}."
            )
        return rings.as_dtype(leaf, dtype)

    def widened(path, leaf):
        is_narrow = jnp.result_type(leaf) in xla.BITS
        return rings.as_dtype(leaf, jnp.float32) if is_narrow else leaf

    of_origins = None if dtype in xla.BITS else _converting(rings.plain, widened)
    return _converting(storage, converted)._replace(of_origins=of_origins, dtype=dtype)


def _converting(
    storage: rings.Storage, convert: Callable[[Any, Any], Any]
) -> rings.Storage:
    """A storage of items whose leaves are converted by convert(path, leaf)."""
    converted = functools.partial(jax.tree.map_with_path, convert)

    def unpack(leaves, like):
        kept = storage.unpack(leaves, jax.eval_shape(converted, like))
        return optax.tree.cast_like(kept, like)

    return storage._replace(
        pack=lambda tree, slots: storage.pack(converted(tree), slots), unpack=unpack
    )
