"""Distributed dual averaging (`dasgd`), for delays that grow with the step.

DaSGD, the averaging of models with a delay, is `averaging.delayed_average`.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, kinds, transforms, trees


class DasgdState(NamedTuple):
    """State of `dasgd`."""

    step: jax.Array  # updates done, int32 []
    outside: Any  # y - x, float32 or wider; () without a projection


@kinds.checked
def dasgd(
    learning_rate: kinds.Rate,
    *,
    project: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """DASGD: dual averaging, in which a projection loses no part of a gradient.

        y_{t+1} = y_t - al_t u_t
        x_{t+1} = project(y_{t+1}),    y_0 = x_0

    The projection is lazy: y sums all gradients, also outside of the set, whereas
    projected SGD begins each step at x_t. Without a projection y is x, and this is SGD
    with the step sizes al_t. Under delays that grow with t the step sizes must fall
    fast enough, as the step sizes of `harmonic` do.

    This rule replaces the whole optimizer, `delayed(dasgd(...), delay)`, since it sets
    the parameters itself. Links before it change the direction u_t, by default the
    gradient; links behind it would break the projection.

    It is not DaSGD (delayed averaging), which is `averaging.delayed_average`.

    Args:
        learning_rate: al_t, a number or a schedule.
        project: parameters -> the nearest point of a set, for example
            `optax.projections.projection_simplex`; by default no set. It receives
            float32 where the parameters are narrower.

    Returns:
        A transformation that keeps a counter, and with `project` one parameter tree.
        Updates keep their dtype. With `project`, `update` needs `params`.

    Example:
        >>> tx = dasgd(1.0, project=lambda x: jnp.clip(x, -1.0, 1.0))
        >>> x = jnp.asarray(0.0)
        >>> state = tx.init(x)
        >>> for g in (-3.0, 1.0, 1.5):  # y is 3, 2 and 0.5
        ...     update, state = tx.update(jnp.asarray(g), state, x)
        ...     x = optax.apply_updates(x, update)
        ...     print(x)
        1.0
        1.0
        0.5

    References:
        Zhou, Mertikopoulos, Bambos, Glynn and Ye, Distributed stochastic optimization
        with large delays, 2021, arXiv:2107.02919 (ICML 2018, Distributed asynchronous
        optimization with unbounded delays).
    """

    def init_fn(params):
        outside = () if project is None else dtypes.wide_zeros(params)
        return DasgdState(jnp.zeros((), jnp.int32), outside)

    def update_fn(updates, state, params=None, **extra_args):
        rate = transforms.rate_at(learning_rate, state.step)
        if project is None:
            updates = dtypes.scaled(-rate, updates)
            return updates, DasgdState(state.step + 1, ())
        params = extras.require_params(params, "dasgd")

        def follow(x, outside, u):
            u = u.astype(outside.dtype)
            return x.astype(outside.dtype) + outside - dtypes.times(rate, u)

        y = jax.tree.map(follow, params, state.outside, updates)
        projected = project(y)
        trees.check_same_types("`project` must return what it receives", projected, y)
        updates = jax.tree.map(
            lambda new, x, u: operator.sub(*dtypes.in_one_dtype(new, x)).astype(
                u.dtype
            ),
            *(projected, params, updates),
        )
        # from the rounded parameters, so that y contains all gradients
        x = optax.apply_updates(params, updates)
        outside = jax.tree.map(lambda y, x: y - x.astype(y.dtype), y, x)
        return updates, DasgdState(state.step + 1, outside)

    return transforms.stateful(DasgdState, init_fn, update_fn)


@kinds.checked
def harmonic(
    scale: kinds.Positive, *, logarithms: kinds.NonNegativeInt = 0
) -> transforms.OfStep:
    """Step sizes that fall as 1 / t, or by some logarithms faster.

        al_t = scale / (l_0 l_1 ... l_n),    l_0 = t + 1,    l_{k+1} = 1 + log l_k

    with n = logarithms. The paper's conditions on the step sizes of `dasgd` are

    | delays | al_t falls as | logarithms |
    |---|---|---|
    | bounded | sum al_t diverges, and sum al_t^2 does not | 0 |
    | t^p, p < 1 | 1 / t | 0 |
    | a share of t | 1 / (t log t) | 1 |
    | t^q, any q | 1 / (t log t log log t) | 2 |

    (We add the 1 in l_0 and in l_{k+1}, so that al_0 is `scale` and no step is
    negative.) At a delay of t / 2 and a curvature lam, 1 / t is stable below scale *
    lam = pi / (2 log 2); with one logarithm every scale is stable from some step on.

    Args:
        scale: the first step size, positive. May be traced.
        logarithms: the number of logarithms, an int.

    Returns:
        A schedule: step -> step size, float32 [].

    Example:
        >>> [round(float(harmonic(1.0)(step)), 3) for step in (0, 1, 9)]
        [1.0, 0.5, 0.1]
        >>> [round(float(harmonic(1.0, logarithms=1)(step)), 3) for step in (0, 1, 9)]
        [1.0, 0.295, 0.03]

    References:
        Zhou, Mertikopoulos, Bambos, Glynn and Ye, Distributed stochastic optimization
        with large delays, 2021, arXiv:2107.02919.
    """

    def schedule(step):
        factor = dtypes.wide(step) + 1.0
        rate = scale / factor
        for _ in range(logarithms):
            factor = 1.0 + jnp.log(factor)
            rate = rate / factor
        return rate

    return schedule
