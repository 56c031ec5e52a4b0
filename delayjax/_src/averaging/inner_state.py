"""The state of the workers' own optimizers: averaged, or begun anew."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import means
from delayjax._src.averaging.periods import due, when
from delayjax._src.ground import axes, checks, donation, extras, kinds, transforms


class MeanOfState(NamedTuple):
    """State of `mean_of_state`."""

    step: jax.Array  # updates done, int32 []
    inner_state: Any  # of each worker


class ResetState(NamedTuple):
    """State of `reset_every`."""

    step: jax.Array  # updates done, int32 []
    inner_state: Any  # since the last reset


def mean_of_state(
    inner: transforms.Transformation,
    periods: Mapping[str, ArrayLike],
    *,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DES-LOC: the `inner` of an averaging method whose moments are averaged, too.

        u, m^i, v^i = U(g^i, m^i, v^i)
        m^i <- (1/P) sum_j m^j     where K_m divides t + 1
        v^i <- (1/P) sum_j v^j     where K_v divides t + 1

    DES-LOC averages models every H steps, Adam's first moment every 3 H and its second
    moment every 6 H: moments change more slowly than models.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        periods: the period of each field of the state of U that is averaged, at least
            1, as {"mu": 3 * H, "nu": 6 * H} for Adam. If several states have such a
            field, all of them are averaged. Periods may be traced.
        axis_name: the workers' axis, or several.

    Returns:
        A transformation that needs no more memory than U. It sends an all-reduce of
        each field at the end of its period.

    Raises:
        ValueError: if no field is named; in `init`, if a field does not exist or has no
            floats.

    Example:
        >>> tx = mean_of_state(optax.trace(0.5), {"trace": 1})
        >>> def step(grad):
        ...     updates, state = tx.update(grad, tx.init(grad), grad)
        ...     return updates, optax.tree.get(state, "trace")
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([1., 3.], dtype=float32), Array([2., 2.], dtype=float32))

    References:
        Iacob et al., DES-LOC, 2025, arXiv:2505.22549, as commonly reported.
    """
    if not periods:
        raise ValueError("`periods` must name a field of the state, got none.")
    every = {
        name: checks.check_count(f"periods[{name!r}]", period)
        for name, period in periods.items()
    }
    inner = transforms.as_transformation("inner", inner)

    def mean(tree):
        return means.mean(tree, axis_name)

    def state_of(params):
        inner_state = inner.init(axes.vary(params, axis_name=axis_name))
        named = jax.tree.leaves_with_path(inner_state)
        there = {name for part in named for name in _fields(*part)}
        if missing := periods.keys() - there:
            raise ValueError(
                f"`periods` must name some of {sorted(there)}, the fields of the inner"
                f" state that hold floats, got {sorted(missing)}: a counter has no"
                " mean, and plain SGD has no moments."
            )
        return MeanOfState(jnp.zeros((), jnp.int32), inner_state)

    def init_fn(params):
        return donation.made(state_of, params)

    def update_fn(updates, state, params=None, **extra_args):
        moves, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        named, structure = jax.tree.flatten_with_path(inner_state)
        leaves = [leaf for _, leaf in named]
        for name, period in every.items():
            places = [i for i, part in enumerate(named) if name in _fields(*part)]
            fields = [leaves[i] for i in places]
            fields = when(due(state.step, period), mean, fields, axis_name)
            for i, leaf in zip(places, fields, strict=True):
                leaves[i] = leaf
        return moves, MeanOfState(state.step + 1, structure.unflatten(leaves))

    return transforms.stateful(MeanOfState, init_fn, update_fn)


@kinds.checked
def reset_every(
    inner: transforms.Transformation, period: kinds.Count
) -> optax.GradientTransformationExtraArgs:
    """The `inner` of an averaging method whose state begins anew after `period` steps.

        U <- a new U at the parameters x^i   before step t, where `period` divides t

    With the period of the method each round has a new optimizer, as if workers kept no
    state: the moments from before the exchange are forgotten.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged. Its
            state should hold no history (`delayed`), which would be copied.
        period: H, steps from one reset to the next, at least 1. May be traced.

    Returns:
        A transformation that needs the memory of U, and while it makes a new state, the
        memory of this state.

    Example:
        >>> tx = reset_every(optax.trace(1.0), 2)
        >>> state = tx.init(jnp.zeros(()))
        >>> for _ in range(4):
        ...     update, state = tx.update(jnp.ones(()), state, jnp.zeros(()))
        ...     print(update)
        1.0
        2.0
        1.0
        2.0

    References:
        Liu et al., Asynchronous local-SGD training for language modeling, 2024,
        arXiv:2401.09135, as its code google-deepmind/asyncdiloco does.
    """
    inner = transforms.as_transformation("inner", inner)

    def state_of(params):
        return ResetState(jnp.zeros((), jnp.int32), inner.init(params))

    def init_fn(params):
        return donation.made(state_of, params)

    def update_fn(updates, state, params=None, **extra_args):
        params = extras.require_params(params, "averaging.reset_every")
        # a select, not a branch: XLA makes one loop of it and the step of U
        starts = state.step % period == 0
        inner_state = optax.tree.where(starts, inner.init(params), state.inner_state)
        moves, inner_state = inner.update(updates, inner_state, params, **extra_args)
        return moves, ResetState(state.step + 1, inner_state)

    return transforms.stateful(ResetState, init_fn, update_fn)


def _fields(path: Any, leaf: Any) -> list[str]:
    """The names of the fields on the way to a leaf of floats; others have no mean."""
    is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    keys = path if is_float else ()
    return [key.name for key in keys if isinstance(key, jax.tree_util.GetAttrKey)]
