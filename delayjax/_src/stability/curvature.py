"""The largest curvatures of a real loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from delayjax._src.ground import kinds

Loss = Callable[[Any, Any], ArrayLike]
"""(params, batch) -> a scalar, twice differentiable."""

_DENSE = 20  # parameters: up to here the whole Hessian is as cheap
# residual over eigenvalue; the relative error of the eigenvalue is its square
_RESIDUAL = {"float32": 1e-4, "float64": 1e-8}


def sharpness(
    loss: Loss, params: Any, batch: Any, *, preconditioner: Any = None
) -> float:
    """The largest eigenvalue of the Hessian of a loss: the lambda of `Dynamics`.

    Args:
        loss: as in `hessian_eigenvalues`, with the same errors and costs.
        params: as in `hessian_eigenvalues`.
        batch: as in `hessian_eigenvalues`.
        preconditioner: as in `hessian_eigenvalues`.

    Example:
        >>> bowl = lambda x, scale: scale * (3.0 * x[0] ** 2 + x[1] ** 2) / 2
        >>> sharpness(bowl, jnp.ones(2), 2.0)
        6.0

    References:
        Cohen et al. (edge of stability), arXiv:2103.00065.
    """
    eigenvalues = hessian_eigenvalues(
        loss, params, batch, preconditioner=preconditioner
    )
    return float(eigenvalues[0])


@kinds.checked
def hessian_eigenvalues(
    loss: Loss,
    params: Any,
    batch: Any,
    *,
    count: kinds.PositiveInt = 1,
    preconditioner: Any = None,
) -> np.ndarray:
    """The largest eigenvalues of the Hessian of a loss, without the Hessian.

    ARPACK's Lanczos method finds the eigenvalues of D^{-1} H from products

        H v = d/ds grad loss(params + s v)  at s = 0.

    Args:
        loss: (params, batch) -> a scalar, twice differentiable.
        params: a tree of real arrays, N numbers in all; computed in float32 or wider.
        batch: the second argument of `loss`; as large as memory allows.
        count: the number of eigenvalues, 1 .. N.
        preconditioner: D, by which the optimizer divides gradients: a tree like
            `params` of positive numbers, as `adam_preconditioner` makes it. None is 1.

    Returns:
        float64 [count], descending by value, not by size. Exact to 1e-6 in float32 if
        the eigenvalues are well separated. Costs 20 to 100 products of two to three
        gradients each, and max(20, 2 count + 1) vectors of N on the host. If ARPACK
        does not converge, find fewer, or widen the parameters to float64.

    Example:
        >>> x = jnp.arange(1.0, 4.0)
        >>> hessian_eigenvalues(lambda x, _: jnp.sum(x**4) / 12, x, None, count=2)
        array([9., 4.])

    References:
        Pearlmutter, Fast exact multiplication by the Hessian, 1994.
    """
    params = widened("params", params)
    point, tree_of = ravel_pytree(params)
    size, dtype = point.size, point.dtype
    if count > size:
        raise ValueError(f"`count` must be at most {size}, got {count}.")
    root = jnp.ones((), dtype)  # D^{-1/2}
    if preconditioner is not None:
        divisor = widened("preconditioner", preconditioner)
        roots = jax.tree.map(
            lambda d, x: jax.lax.rsqrt(d) + jnp.zeros_like(x), divisor, params
        )
        root = ravel_pytree(roots)[0].astype(dtype)
        if not (jnp.isfinite(root) & (root > 0)).all():
            raise ValueError("`preconditioner` must be positive and finite.")

    @jax.jit
    def product(params, batch, root, vector):
        """D^{-1/2} H D^{-1/2} v, with the eigenvalues of D^{-1} H."""

        def gradient(at):
            return ravel_pytree(jax.grad(loss)(at, batch))[0]

        return jax.jvp(gradient, (params,), (tree_of(vector * root),))[1] * root

    def hessian_times(vector):
        vector = jnp.asarray(vector.reshape(size), dtype)
        answer = np.asarray(product(params, batch, root, vector))
        if not np.isfinite(answer).all():
            raise ValueError("`loss` must have a finite Hessian, got nan or inf.")
        return answer

    if size <= max(2 * count, _DENSE):
        columns = [hessian_times(column) for column in np.eye(size)]
        every = np.linalg.eigvalsh(np.asarray(columns, np.float64))
        return every[::-1][:count].copy()
    start = np.random.default_rng(0).standard_normal(size).astype(dtype)
    # ARPACK has an absolute tolerance and refuses 0: scale the matrix to order 1
    unit = np.linalg.norm(hessian_times(start)) / np.linalg.norm(start)
    if not unit:
        return np.zeros(count)
    arpack: Any = scipy.sparse.linalg  # SciPy's stubs lack some of its arguments
    hessian = arpack.LinearOperator(
        (size, size), lambda v: hessian_times(v) / unit, dtype=dtype
    )
    options = {"which": "LA", "tol": _RESIDUAL[dtype.name], "v0": start}
    eigenvalues = arpack.eigsh(hessian, count, return_eigenvectors=False, **options)
    return float(unit) * np.sort(np.asarray(eigenvalues, np.float64))[::-1]


def widened(name: str, tree: Any) -> Any:
    """A tree of real numbers as arrays of float32 or float64."""

    def wide(leaf):
        leaf = jnp.asarray(leaf)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"`{name}` must be real numbers, got {leaf.dtype}.")
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))

    return jax.tree.map(wide, tree)
