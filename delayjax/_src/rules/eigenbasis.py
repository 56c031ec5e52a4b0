"""A basis that follows the eigenvectors of a matrix's second moments."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from delayjax._src.ground import dtypes, xla
from delayjax._src.rules import norms


class Side(NamedTuple):
    """The basis of a matrix's n rows, or of its n columns."""

    second_moment: jax.Array  # L = mean of g g^T, or R of g^T g: [..., n, n]
    basis: jax.Array  # Q, an eigenvector in each column, [..., n, n]; 0 at first


Sides = tuple[Any, Any]
"""The `Side` of the rows and the `Side` of the columns; () is the identity."""

_AXES = -2, -1


def begun(leaf: Any, *, rows: bool, columns: bool) -> Sides:
    """The sides of a leaf [..., m, n], 0 before the first update, at least float32.

    L has the sharding of the rows of the leaf, R the sharding of its columns.
    """
    zeros = xla.zeros_sharded_as(leaf, dtypes.wide_dtype(leaf))

    def side(axis):
        size = zeros.shape[axis]
        shape = (*zeros.shape[:-2], size, size)
        # a sum, because JAX cannot slice an Explicit axis
        nothing = jnp.broadcast_to(zeros.sum(-3 - axis, keepdims=True), shape)
        return Side(nothing, jnp.copy(nothing))

    return (side(-2) if rows else ()), (side(-1) if columns else ())


def observed(sides: Sides, g: jax.Array, decay: ArrayLike) -> Sides:
    """The sides, with L <- decay L + (1 - decay) g g^T and the same for R."""

    def updated(side, rows):
        square = _times(rows, _adjoint(rows))
        return Side(norms.moving_mean(square, side.second_moment, decay), side.basis)

    left, right = sides
    return left and updated(left, g), right and updated(
        right, jnp.swapaxes(g, -2, -1).conj()
    )


def refreshed(which: jax.Array, sides: Sides, v: jax.Array) -> tuple[Sides, jax.Array]:
    """The sides, kept (0), iterated once (1) or exact (2), and v, a mean in them."""
    return jax.lax.switch(which, (_kept, _iterated, _exact), sides, v)


def into(x: jax.Array, sides: Sides) -> jax.Array:
    """Q_L^T x Q_R."""
    left, right = sides
    x = _times(_adjoint(left.basis), x) if left else x
    return _times(x, right.basis) if right else x


def out_of(x: jax.Array, sides: Sides) -> jax.Array:
    """Q_L x Q_R^T."""
    left, right = sides
    x = _times(left.basis, x) if left else x
    return _times(x, _adjoint(right.basis)) if right else x


def _kept(sides, v):
    return sides, v


def _exact(sides, v):
    """All eigenvectors, in descending order of their eigenvalues."""

    def exact(side):
        vectors = xla.factored(_eigenvectors, side.second_moment)
        return side._replace(basis=jnp.flip(vectors, -1))

    left, right = sides
    return (left and exact(left), right and exact(right)), v


def _iterated(sides, v):
    """One step of orthogonal iteration; v is sorted with the basis."""
    new = []
    for axis, side in zip(_AXES, sides, strict=True):
        if side:
            moment, basis = side
            size = (basis.conj() * _times(moment, basis)).sum(-2).real
            order = jnp.argsort(size, descending=True)
            v = jnp.take_along_axis(v, jnp.expand_dims(order, -3 - axis), axis)
            basis = jnp.take_along_axis(basis, jnp.expand_dims(order, -2), -1)
            side = Side(moment, xla.factored(_orthogonal, _times(moment, basis)))
        new.append(side)
    return tuple(new), v


def _eigenvectors(x):
    return jnp.linalg.eigh(x)[1]


def _orthogonal(x):
    return jnp.linalg.qr(x)[0]


def _adjoint(x):
    return jnp.swapaxes(x, -2, -1).conj()


def _times(a, b):
    return jnp.matmul(a, b, precision="highest")  # by default GPUs round to 10 bits
