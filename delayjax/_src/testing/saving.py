"""A tree as a file has it."""

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.testing import comparing


def saved(tree: Any) -> bytes:
    """The leaves as a file has them: numbers, no types of JAX's own."""
    file = io.BytesIO()
    np.savez(file, *map(comparing.numbers, jax.tree.leaves(tree)))
    return file.getvalue()


def restored(saved: bytes, like: Any) -> Any:
    """A tree like another one, of saved numbers."""
    leaves, structure = jax.tree.flatten(like)
    with np.load(io.BytesIO(saved)) as file:
        values = [file[name] for name in file.files]

    def typed(value, leaf):
        dtype = jnp.result_type(leaf)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                jnp.asarray(value), impl=jax.random.key_impl(leaf)
            )
        # NumPy knows bfloat16 by its bits
        return jnp.asarray(value.view(dtype) if value.dtype.kind == "V" else value)

    return jax.tree.unflatten(structure, map(typed, values, leaves))
