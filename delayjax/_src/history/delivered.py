"""Feeding an optimizer each gradient once, when it arrives."""

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import (
    axes,
    checks,
    collectives,
    dtypes,
    extras,
    kinds,
    refusal,
    transforms,
    trees,
)
from delayjax._src.history import delays, deliveries, lookback, wrapped
from delayjax._src.history import ring as rings

Idle = Literal["hold", "zeros"]


class Item(NamedTuple):
    """A gradient in flight, or the sum of several."""

    gradient: Any
    age: jax.Array  # its staleness when it will arrive, in steps, float32 []
    value: jax.Array  # the loss that came with it, or 0, float32 []
    params: Any  # the parameters at which it was taken; () without `keep_params`


@refusal.register_producer
class DeliveredState(NamedTuple):
    """State of `delivered`."""

    staleness: jax.Array  # the mean of the last update's arrivals, in steps, float32 []
    arrived: jax.Array  # the number of gradients in the last update, int32 []
    in_flight: deliveries.Calendar  # of `Item`, leaves [max_delay + 1, *shape]
    inner_state: Any


@kinds.checked
def delivered(
    inner: transforms.Transformation,
    delay: extras.Delay,
    *,
    max_delay: int | None = None,
    keep_params: bool = False,
    frozen: Callable[[str, Any], bool] | Any = None,
    idle: Idle = "hold",
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` each gradient once, `delay(step)` steps after it was computed.

    The gradient g[s] of step s arrives at step s + d(s). `inner` receives at step t

        G[t] = sum of g[s] over all s with s + d(s) = t,
        d(s) = clip(delay(s), 0, max_delay)

    The delay is a *delivery*: none, one or several gradients arrive at a step, and the
    sum of all that were used and of those in flight is the sum of all that were given.
    (`delayed` is a *lookback*: if the delay varies, it may use a gradient twice or
    never.)
    With a constant delay this is `delayed` with the warm-up "skip". Plain SGD moves by
    the sum as if it took one step for each arrival. Other optimizers take one step,
    with the sum.

    With K arrivals `inner` receives as the extra argument `staleness` the mean of their
    ages, float32, not rounded. A law multiplies the sum by its value at this mean;
    rules that need a whole number (`delayed`, `closed_loop_momentum`) refuse it. Ages
    add: if a gradient already comes with `staleness=`, its age is the sum. A loss that
    comes as `value=` stays with its gradient, and `inner` receives the mean.

    Args:
        inner: the transformation that uses late gradients.
        delay: the delay in steps of the gradient of a step: an int, a scalar array that
            may be traced, or a function of the step (see `delayjax.delays`); one for
            all leaves. Floats are floored. A NaN makes the update NaN.
        max_delay: the longest delay, in steps; a longer delay is clipped to it. Static.
            Not needed where `delay` is a Python int.
        keep_params: whether to keep with each gradient the parameters at which it was
            taken, for the extra argument `stale_params`. `inner` receives the mean over
            the K arrivals. On a quadratic loss G is K times the gradient at this mean.
        frozen: leaves that are not trained and have no history, as in `delayed`.
        idle: what happens where nothing arrives. "hold": the update is zero, and the
            state of `inner` does not change. "zeros": `inner` receives zeros with a
            staleness of 0; its counters and moments advance. Use "zeros" where `inner`
            sums over workers that have delays of their own, because all workers must
            enter the sum.
        axis_name: the workers' axes along which gradients differ, in `shard_map`.

    Returns:
        A transformation whose state holds `max_delay + 1` gradients (and as many
        parameter trees with `keep_params`), at least in float32, without frozen leaves.
        `arrived` in the state counts the last update's gradients. With a donated state
        a step costs one write and two reads of a gradient, for any `max_delay`. "hold"
        selects between the old and the new state of `inner`, and so copies a history
        inside of it.

        `resize_history` keeps the gradients in flight. `strip_history` loses them.

    Raises:
        TypeError: in `update`, if `staleness` is a tree; or with `keep_params`, if a
            gradient comes with `staleness` but without `stale_params`.
        ValueError: if `delay` is a tree or a number above `max_delay`, or `inner` needs
            a gradient at the current parameters (see `delayed`); in `update`, if the
            state has another depth, or `idle` is "hold" and `inner` sums over workers
            with delays of their own.

    Example:
        >>> tx = delivered(optax.sgd(1.0), delays.from_trace([2, 1, 0, 1]), max_delay=2)
        >>> state = tx.init(jnp.zeros(()))
        >>> for grad in (1.0, 2.0, 4.0, 8.0):  # the first three arrive at step 2
        ...     update, state = tx.update(jnp.asarray(grad), state)
        ...     print(update, state.arrived, state.staleness)
        0.0 0 0.0
        0.0 0 0.0
        -7.0 3 1.0
        0.0 0 0.0

    References:
        Quanrud and Khashabi, Online learning with adversarial delays, NIPS 2015
        (gradient descent by the sum of the gradients that arrive in a round). The means
        that `inner` receives, and `idle`, are ours.
    """
    inner = transforms.as_transformation("inner", inner)
    axis_name = axes.as_names(axis_name)
    if not trees.is_leaf(delay):
        raise ValueError(f"`delay` must be one for all leaves, got {delay!r}.")
    bound = delays.max_delays(delay, max_delay)
    longest = checks.check_bound("max_delay", bound)

    def kept(tree):
        """The leaves of a gradient or of parameters that are in flight."""
        depths = lookback.depths_of(frozen, longest + 1, tree)
        return lookback.without(tree, depths)

    def init_fn(params):
        inner_state = wrapped.init("inner", inner, params, wrapper="delivered")
        item = Item(
            gradient=kept(params),
            age=jnp.zeros((), jnp.float32),
            value=extras.as_loss(None),
            params=kept(params) if keep_params else (),
        )
        item = axes.vary(item, axis_name=axis_name)
        in_flight = deliveries.init(item, longest + 1)
        arrived = jnp.zeros((), jnp.int32)
        if collectives.is_inside(axis_name):  # types vary over axes as the delay does
            like = delays.ask(delay, in_flight.step, longest)
            arrived, due = axes.typed_like((arrived, in_flight.due), (like, like))
            in_flight = in_flight._replace(due=due)
        return DeliveredState(
            staleness=axes.vary(jnp.zeros((), jnp.float32), axis_name=axis_name),
            arrived=arrived,
            in_flight=in_flight,
            inner_state=inner_state,
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, value=None, **extra_args
    ):
        rings.check_depth(state.in_flight.slots, [longest])
        asked = delays.ask(delay, state.in_flight.step, longest)
        wait = delays.clip(asked, jnp.int32(longest))
        stale_params, taken_at = extra_args.pop("stale_params", None), ()
        if keep_params:
            taken_at = wrapped.taken_at("delivered", params, staleness, stale_params)
        updates, age = extras.staleness_of(
            "delivered", updates, staleness, None, one=True
        )
        updates = lookback.trained(frozen, updates)
        fresh = Item(
            gradient=kept(delays.poisoned(updates, asked)),
            age=age.astype(jnp.float32) + wait.astype(jnp.float32),
            value=extras.as_loss(value),
            params=kept(taken_at) if keep_params else (),
        )
        in_flight = deliveries.add(state.in_flight, fresh, wait)
        in_flight, total, arrived = deliveries.take(in_flight, fresh)
        parts = jnp.maximum(arrived, 1).astype(jnp.float32)

        def mean_or(summed, now):
            mean, other = dtypes.in_one_dtype(
                operator.truediv(*dtypes.in_one_dtype(summed, parts)), now
            )
            return jnp.where(arrived > 0, mean, other).astype(jnp.result_type(now))

        mean_age = axes.typed_like(total.age / parts, state.staleness)
        handed: dict[str, Any] = {"staleness": mean_age}
        if value is not None:
            handed["value"] = mean_or(total.value, value)
        if keep_params:
            today = taken_at if params is None else params
            means = jax.tree.map(mean_or, total.params, kept(today))
            handed["stale_params"] = lookback.filled(means, today)
        gradient = optax.tree.cast_like(total.gradient, fresh.gradient)
        gradient = lookback.filled(gradient, updates)
        moves, inner_state = inner.update(
            gradient, state.inner_state, params, **handed, **extra_args
        )
        if idle == "hold" and longest > 0:
            _check_held(arrived, moves, axis_name)
            moves, inner_state = wrapped.only_if(
                arrived > 0, (moves, inner_state), state.inner_state
            )
        moves = lookback.trained(frozen, moves)
        return moves, DeliveredState(mean_age, arrived, in_flight, inner_state)

    return transforms.stateful(DeliveredState, init_fn, update_fn)


def _check_held(arrived: jax.Array, moves: Any, axis_name: tuple[str, ...]) -> None:
    """Checks that `inner` does not sum over workers if some of them receive nothing."""
    differing = axes.varies_over(arrived) & set(axis_name)
    for path, leaf in jax.tree.leaves_with_path(moves):
        if differing - axes.varies_over(leaf):
            raise ValueError(
                '`idle` must be "zeros" where `inner` sums over workers that have'
                f' delays of their own, got "hold" for {trees.path_name(path)}.'
            )
