"""The last versions of the parameters: kept, and read at an age."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.history import ring as rings


class Version(NamedTuple):
    """A version of the parameters in the history."""

    params: Any
    number: Any  # updates that were applied before, int32 []; () where all are


def kept(newest: Version, depth: int) -> Version:
    """The part of a version that is kept: nothing where no gradient is late."""
    return newest if depth else Version((), ())


def read(
    versions: rings.Ring,
    newest: Version,
    age: jax.Array,
    key: jax.Array,
    *,
    depth: int,
    spread: float,
) -> Version:
    """The version of `age` updates ago; a mixture of several with a `spread`."""
    if depth == 0:
        return newest
    if spread == 0.0:
        return rings.read(versions, age, newest)
    least = age - jnp.floor(spread * age).astype(jnp.int32)
    ages = optax.tree.random_like(
        # another key than the user's
        jax.random.fold_in(key, 0x5EED),
        newest.params,
        lambda key, shape, dtype: jax.random.randint(key, shape, least, age + 1),
    )
    number = jax.tree.map(lambda _: age, newest.number)
    return rings.read(versions, Version(ages, number), newest)


def check_depth(params: Any, versions: rings.Ring, depth: int) -> None:
    """Checks that a state keeps versions of this age."""
    held = min((len(kept) - 1 for kept in jax.tree.leaves(versions.slots)), default=0)
    if jax.tree.leaves(params) and held < depth:
        raise ValueError(
            f"`state` keeps versions up to a staleness of {held}, got a trace with"
            f" {depth}: change it with resize_history(state, training.init(params,"
            " key)), and `model_state=` if there is one."
        )
