"""Feeding an optimizer gradients from the past."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import (
    axes,
    extras,
    kinds,
    named_arrays,
    transforms,
    trees,
)
from delayjax._src.history import delays, layers, lookback, wrapped
from delayjax._src.history import ring as rings
from delayjax._src.history.lookback import DelayedState

Warmup = Literal["fresh", "skip", "zeros"]


@kinds.checked
def delayed(
    inner: transforms.Transformation,
    delay: extras.Delay,
    *,
    max_delay: Any = None,
    keep_params: bool = False,
    frozen: Callable[[str, Any], bool] | Any = None,
    warmup: Warmup = "fresh",
    history: rings.Storage | None = None,
    hand_staleness: bool = True,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the gradient of `delay(step)` steps ago.

    The gradient used at step t is g[t - tau], where

        tau = clip(delay(t), 0, min(t, max_delay))

    and `inner` receives tau as the extra argument `staleness`. Ages add: if a gradient
    already comes with `staleness=`, the history keeps it and `inner` receives the sum.
    A loss that comes as `value=` stays with its gradient. If leaves have different
    delays, the loss has the largest one. The delay is a *lookback*: if it varies, a
    gradient may be used twice or never.

    Args:
        inner: the transformation that uses stale gradients.
        delay: the delay in steps: an int, a scalar array that may be traced, a function
            of the step (see `delayjax.delays`), or a prefix tree of these. Floats are
            floored. A NaN makes the update NaN. With a tree, `inner` receives a full
            tree of staleness. `delays.Layers` gives a leaf a delay for each layer.
        max_delay: the largest staleness kept, in steps: an int or a prefix tree of
            ints. Static. Not needed where `delay` consists of Python ints and
            `Layers`.
        keep_params: whether to keep with each gradient the parameters at which it was
            taken, in their own dtype, for the extra argument `stale_params`.
        frozen: leaves that are not trained and have no history: a function of the
            leaf's path, as "blocks/attention/kernel", and the leaf; or a prefix tree of
            bools. `inner` receives zeros as their gradients, and their updates are
            zeros. All other leaves have a history, also if `inner` does not train them.
        warmup: what happens in the first steps. "fresh": the staleness is at most the
            number of steps done. "skip": `inner` and the parameters do not change
            until the history is full. "zeros": `inner` receives zeros, its counters and
            moments advance, and tau is not clipped to t.
        history: how gradients are kept, for example `ring.cast(jnp.bfloat16)`; by
            default on the device, in the parameters' dtype and sharding (None, *spec).
            The default rounds float32 gradients of bfloat16 parameters;
            `ring.cast(jnp.float32)` keeps them exact.
        hand_staleness: whether `inner` receives `staleness=`. Pass False if `inner` is
            your own function and has no such argument.
        axis_name: the workers' axes along which gradients differ, in `shard_map`.

    Returns:
        A transformation whose state holds `max_delay + 1` gradients (and as many
        parameter trees with `keep_params`), and nothing for leaves that are frozen or
        have a `max_delay` of 0. With a donated state a step costs one write and one
        read of a gradient, for any `max_delay`. With a `max_delay` of 0 the program is
        the program of `inner`. With a delay of 0 and a larger `max_delay` the results
        equal the results of `inner` bit for bit in eager mode; compiled, they differ by
        a few roundings. "skip" selects between the old and the new state of `inner`.

    Raises:
        TypeError: in `update` with `keep_params`, if a gradient comes with `staleness`
            but without `stale_params`.
        ValueError: if `inner` holds an optimizer that needs a gradient at the current
            parameters (a line search, L-BFGS, SAM, lookahead), or (in `update`) the
            state has another depth.

    Example:
        >>> tx = delayed(optax.sgd(1.0), 1)
        >>> state = tx.init(jnp.zeros(()))
        >>> for grad in (1.0, 2.0, 3.0):
        ...     update, state = tx.update(jnp.asarray(grad), state)
        ...     print(update, staleness(state))
        -1.0 0
        -1.0 1
        -2.0 1

    References:
        Langford, Smola and Zinkevich, Slow learners are fast, NIPS 2009,
        arXiv:0911.0491, algorithm 1 (delayed SGD; its first tau steps are "skip").
    """
    inner = transforms.as_transformation("inner", inner)
    delay, max_delay = named_arrays.unboxed((delay, max_delay))
    if layers.has_layers(delay):
        options = dict(keep_params=keep_params, warmup=warmup, history=history)
        options |= dict(hand_staleness=hand_staleness, axis_name=axis_name)
        return _by_layer(inner, delay, (max_delay, frozen), options)
    bounded_by = "delay" if max_delay is None else "max_delay"
    max_delay = delays.max_delays(delay, max_delay)
    whole = lookback.History(
        storage=rings.plain if history is None else history,
        max_delay=max_delay,
        one_age=trees.is_leaf(delay) and trees.is_leaf(max_delay),
        keep_params=keep_params,
        axis_name=axes.as_names(axis_name),
    )

    def past_of(tree):
        """The history of the leaves that are trained."""
        depths = lookback.depths_of(frozen, max_delay, tree)
        return dataclasses.replace(whole, max_delay=depths)

    def init_fn(params):
        inner_state = wrapped.init("inner", inner, params)
        age, kept = past_of(params).init(params, bounded_by)
        return DelayedState(age, *kept, inner_state)

    def received(past, updates, params, staleness, value, stale_params):
        """The gradient that `update` received, and its origin."""
        if whole.one_age and staleness is not None and not trees.is_leaf(staleness):
            raise ValueError(
                "`delay` must be a tree where `staleness` comes for each leaf, got"
                f" {delay!r}: give each leaf its delay, or the other producer of"
                " staleness one delay for all leaves."
            )
        updates, age = extras.staleness_of(
            "delayed", updates, staleness, None, mean=False
        )
        age = past.per_leaf("staleness", age, updates)
        loss, taken_at = extras.as_loss(value), ()
        if keep_params:
            taken_at = wrapped.taken_at("delayed", params, staleness, stale_params)
        return updates, lookback.Origin(age, loss, taken_at)

    def handed(past, origin, total, value):
        """The extra arguments for the gradient that was read."""
        extra: dict[str, Any] = {"staleness": total} if hand_staleness else {}
        if keep_params:
            extra["stale_params"] = origin.params
        if value is not None:
            dtype = jnp.result_type(value)
            extra["value"] = origin.value.astype(dtype) if past.deepest else value
        return extra

    def update_fn(
        updates, state, params=None, *, staleness=None, value=None, **extra_args
    ):
        stale_params = extra_args.pop("stale_params", None)
        past, updates = past_of(updates), lookback.trained(frozen, updates)
        fresh = received(past, updates, params, staleness, value, stale_params)
        kept, step = (state.gradients, state.origins), state.gradients.pushed
        past.check(kept, updates, params)
        kept = past.push(kept, fresh)

        done = step - state.gradients.first  # less than `step` after `resize_history`
        asked = delays.ask(delay, step, past.deepest)
        tau = past.ages(asked, past.deepest if warmup == "zeros" else done, updates)
        stale, origin = past.read(kept, tau, fresh)
        stale = delays.poisoned(stale, asked)

        total = jax.tree.map(jnp.add, origin.age, tau)
        total = axes.typed_like(total, state.staleness)
        arguments = handed(past, origin, total, value) | extra_args
        moves, inner_state = inner.update(stale, state.inner_state, params, **arguments)
        if warmup == "skip" and past.deepest > 0:
            moves, inner_state = wrapped.only_if(
                done >= past.deepest, (moves, inner_state), state.inner_state
            )
        moves = lookback.trained(frozen, moves)
        return moves, DelayedState(total, *kept, inner_state)

    return transforms.stateful(DelayedState, init_fn, update_fn)


def _by_layer(
    inner: optax.GradientTransformationExtraArgs,
    delay: Any,
    left_out: tuple[Any, Any],
    options: dict[str, Any],
) -> optax.GradientTransformationExtraArgs:
    """`delayed` where some delays are `Layers`: it cuts leaves into runs of layers."""
    for name, value in zip(("max_delay", "frozen"), left_out, strict=True):
        if value is not None:
            raise ValueError(f"`{name}` must be left out with `Layers`, got {value!r}.")

    def cut(split: layers.Split, inner_update: Any) -> Any:
        late = optax.GradientTransformationExtraArgs(
            optax.init_empty_state, inner_update
        )
        return delayed(late, split.delays, **options)

    def init_fn(params):
        split = layers.Split(delay, params)
        state = cut(split, optax.identity().update).init(split.cut(params))
        return state._replace(
            staleness=split.by_layer(state.staleness),
            inner_state=wrapped.init("inner", inner, params),
        )

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        split = layers.Split(delay, updates)
        if staleness is not None and not trees.is_leaf(staleness):
            must = "`staleness` must be one number where `delay` has `Layers`"
            raise ValueError(f"{must}, got {staleness!r}.")

        def inner_update(stale, inner_state, _, **arguments):
            if options["hand_staleness"]:
                arguments["staleness"] = split.by_layer(arguments["staleness"])
            if "stale_params" in arguments:
                arguments["stale_params"] = split.joined(arguments["stale_params"])
            return inner.update(split.joined(stale), inner_state, params, **arguments)

        if staleness is not None:
            extra_args["staleness"] = staleness
        if extra_args.get("stale_params") is not None:
            extra_args["stale_params"] = split.cut(extra_args["stale_params"])
        state = state._replace(staleness=split.by_run(state.staleness))
        moves, state = cut(split, inner_update).update(
            split.cut(updates),
            state,
            None if params is None else split.cut(params),
            **extra_args,
        )
        return moves, state._replace(staleness=split.by_layer(state.staleness))

    return transforms.stateful(DelayedState, init_fn, update_fn)


def staleness(opt_state: Any) -> Any:
    """The staleness of the last update, for logging.

    Args:
        opt_state: the state of any transformation with one producer of staleness, or
            several inside one another (the innermost holds the sum). Side by side they
            must be parts of one `optax.partition`.

    Returns:
        int32 [], in steps, or a tree of these where each leaf has its own delay. If
        several parts of an `optax.partition` delay, a dict, label -> staleness.

    Raises:
        ValueError: if no part of the optimizer delays, or if several parts delay and
            are not parts of one `optax.partition`.

    Example:
        >>> tx = optax.chain(optax.clip(1.0), delayed(optax.sgd(0.1), 2))
        >>> int(staleness(tx.init(jnp.zeros(3))))
        0
    """
    named = optax.tree.get_all_with_path(opt_state, "staleness")
    states = {path[:-1]: value for path, value in named}
    innermost = {
        path: value
        for path, value in states.items()
        if not any(other != path and other[: len(path)] == path for other in states)
    }
    if len(innermost) == 1:
        return next(iter(innermost.values()))
    for place, parts in optax.tree.get_all_with_path(opt_state, "inner_states")[:1]:
        if innermost and all(path[: len(place)] == place for path in innermost):
            late = [
                x for x in parts if optax.tree.get_all_with_path(parts[x], "staleness")
            ]
            return {label: staleness(parts[label]) for label in late}
    raise ValueError(
        f"`opt_state` must hold one staleness, got {len(innermost)}: pass one part of"
        " the state."
    )
