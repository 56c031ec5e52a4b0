"""An optimizer that steps only when its worker visits the center."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging.orders import ArrivalOrder
from delayjax._src.averaging.visits import only
from delayjax._src.ground import axes, checks, donation, transforms


class OnlyOnVisitState(NamedTuple):
    """State of `only_on_visit`."""

    step: jax.Array  # rounds done, int32 []
    inner_state: Any  # of each worker, after its last visit


def only_on_visit(
    inner: transforms.Transformation,
    order: ArrivalOrder,
    *,
    axis_name: str = "workers",
) -> optax.GradientTransformation:
    """The `inner` of `easgd` and `downpour` that steps only when its worker visits.

        u = U(g^i) where order(t) >= 0, else 0, and the state of U does not change

    Args:
        inner: each worker's own optimizer, U. Each step copies its whole state, which
            is slow if the state holds a history.
        order: as in `easgd` and `downpour`.
        axis_name: the workers' axis.

    Example:
        >>> from delayjax.averaging import first_come
        >>> tx = only_on_visit(optax.sgd(1.0), first_come([[0.0, float("inf")]]))
        >>> jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="workers")(
        ...     jnp.ones(2))
        Array([-1.,  0.], dtype=float32)
    """
    checks.check_function("order", order)
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        inner_state = inner.init(axes.vary(params, axis_name=axis_name))
        inner_state = donation.unshared(
            axes.vary(inner_state, axis_name=axis_name), params
        )
        return OnlyOnVisitState(jnp.zeros((), jnp.int32), inner_state)

    def update_fn(updates, state, params=None, **extra_args):
        place = checks.as_scalar("order(step)", order(state.step), jnp.integer)
        moves, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        kept = optax.tree.where(place >= 0, inner_state, state.inner_state)
        return only(place >= 0, moves), OnlyOnVisitState(state.step + 1, kept)

    return transforms.stateful(OnlyOnVisitState, init_fn, update_fn)
