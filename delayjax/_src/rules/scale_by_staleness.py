"""Multiplies updates by a law of their staleness.

The place of a law in a chain decides its effect. After the optimizer it scales the
step, as in the papers. Before the optimizer it weights gradients. A scale-free
optimizer (Adam, Lion, Muon) removes such a weight if the staleness is constant.
"""

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import checks, dtypes, extras, kinds, trees

_WRAP = (
    f"{extras.WRAP}; `delayed(optax.identity(), delay)` beside it in a chain hands"
    " nothing to it"
)


@kinds.checked
def scale_by_staleness(law: extras.Law) -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by a law of their staleness.

        u <- law(tau) * u

    Args:
        law: staleness -> factor, for example `inverse` or `polynomial(0.5)`. The
            staleness is int32 [], or float32 [] where it is a mean, and may be traced:
            write `jnp.where` and no `if`. With a tree of staleness each leaf has its
            own factor, and behind `delays.Layers` each layer.

    Returns:
        A transformation without state, which needs `staleness=` in `update`. Updates
        keep their dtype.

    Example:
        >>> from delayjax import modulation
        >>> tx = scale_by_staleness(modulation.inverse)
        >>> tx.update(jnp.ones(2), tx.init(None), staleness=4)[0]
        Array([0.25, 0.25], dtype=float32)

    References:
        Zhang, Gupta, Lian and Liu, Staleness-aware async-SGD, IJCAI 2016,
        arXiv:1511.05950.
    """

    def factor(tau):
        if jnp.ndim(tau) == 0:
            return checks.as_scalar("law(staleness)", law(tau))
        return jax.vmap(factor)(tau)  # a law takes one number

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        name = "scale_by_staleness"
        updates, staleness = extras.staleness_of(
            name, updates, staleness, _WRAP, by_layer=True
        )
        factors = jax.tree.map(factor, staleness)
        updates = jax.tree.map(
            lambda update, factor: dtypes.times(factor, update),
            *(updates, trees.broadcast("staleness", factors, updates)),
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)
