"""Feeding an optimizer gradients from the past."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src import base, boxes, inners
from delayjax._src.ring import ring as rings

Warmup = Literal["fresh", "skip", "zeros"]

DEEPEST = 2**24
"""Up to here float32, which schedules return, has all integers."""


class Origin(NamedTuple):
    """Where a gradient came from; kept beside it in the history."""

    age: Any  # its staleness when it was handed in, int32 [] or one for each leaf
    value: Any  # the loss handed in with it; 0 where there was none, float32 []
    params: Any  # the parameters it was taken at; () without `keep_params`


class DelayedState(NamedTuple):
    """State of `delayed`."""

    staleness: Any  # handed on by the last update, in steps, int32 [] or a tree
    gradients: rings.Ring  # leaves [max_delay + 1, *shape]; None where max_delay is 0
    origins: rings.Ring  # of `Origin`, likewise
    inner_state: Any


def delayed(
    inner: optax.GradientTransformation,
    delay: base.Delay,
    *,
    max_delay: Any = None,
    keep_params: bool = False,
    warmup: Warmup = "fresh",
    history: rings.Storage | None = None,
    hand_staleness: bool = True,
    axis_name: base.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the gradient of `delay(step)` steps ago.

    The gradient used at step t is g[t - tau], where

        tau = clip(delay(t), 0, min(t, max_delay))

    and `inner` receives tau as the extra argument `staleness`. Ages add: a gradient
    that already came with `staleness=` carries it through the history, and `inner`
    receives the sum. A loss that comes as `value=` stays with its gradient likewise.
    The delay is a *lookback*: under a varying delay a gradient may be used twice or
    never.

    Args:
        inner: the transformation that consumes stale gradients.
        delay: how late, in steps: an int, a scalar array that may be traced, a function
            of the step (see `delayjax.delays`), or a prefix tree of these. Floats in
            arrays and from functions are floored; a NaN makes the update NaN. With a
            tree the staleness handed on is a full tree.
        max_delay: the largest staleness kept, in steps, below 2^24; an int or a prefix
            tree of ints. Static; it alone fixes the memory. May be left out where
            `delay` consists of Python ints.
        keep_params: whether to keep, with each gradient, the parameters it was taken
            at, and to hand them on as the extra argument `stale_params`. Parameters
            keep their own dtype whatever `history` says, since what consumes them takes
            small differences.
        warmup: what happens before there is a gradient that old. "fresh": staleness is
            clipped to the steps done. "skip": inner and parameters stay untouched until
            the history is full. "zeros": `inner` is fed zeros, its counters and moments
            advance, and tau is not clipped to t.
        history: how gradients are kept, `ring.cast(jnp.bfloat16)` for one; by default
            on the device in their own dtype. A parameter's sharding is kept, and its
            Flax metadata: a spec (*spec) becomes (None, *spec).
        hand_staleness: whether `inner` is given `staleness=`; False where a function of
            your own in it takes no such argument.
        axis_name: the workers' axis, or several, along which gradients differ, where
            `init` is called inside `shard_map`.

    Returns:
        A transformation whose state holds `max_delay + 1` gradients (with
        `keep_params` as many parameter trees as well), and nothing for leaves whose
        `max_delay` is 0. Given donated state, a step costs one gradient written and one
        read, whatever `max_delay`. A delay of zero is `inner`: with a `max_delay` of 0
        it is the same program and has the same bits. With a history it has the same
        bits where it is run eagerly; compiled it is another program, and differs by a
        few roundings. "skip" also selects between the old and the new state of `inner`,
        and so copies a history inside of it.

    Raises:
        TypeError: if `inner` is no transformation, `history` no storage, `max_delay` no
            static integer, a delay neither an integer nor a function, or (in `update`)
            a gradient is an integer or, under `keep_params`, there are no `params` or
            a gradient comes with `staleness` but without `stale_params`.
        ValueError: if `inner` holds an optimizer that needs a gradient of today's
            parameters (a line search, L-BFGS, SAM, lookahead), a bound is negative or
            too large, `max_delay` is missing, `warmup` is unknown, or (in `init` and
            `update`) a tree does not match or the state has another depth.

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
    inner = base.as_transformation("inner", inner)
    inners.check("inner", inner)
    axis_name = base.as_names(axis_name)
    delay, max_delay = boxes.unboxed((delay, max_delay))
    jax.tree.map(_check_delay, delay, is_leaf=base.is_function)
    if max_delay is None:
        max_delay = jax.tree.map(_own_bound, delay, is_leaf=base.is_function)
    max_delay = jax.tree.map(_check_bound, max_delay)
    if warmup not in ("fresh", "skip", "zeros"):
        raise ValueError(
            f'`warmup` must be "fresh", "skip" or "zeros", got {warmup!r}.'
        )
    history = rings.plain if history is None else history
    if not isinstance(history, rings.Storage):
        raise TypeError(
            f"`history` must be a storage such as ring.cast(jnp.bfloat16), got"
            f" {history!r}."
        )
    deepest = max(jax.tree.leaves(max_delay), default=0)
    one_staleness = _is_single(delay) and _is_single(max_delay)

    def per_leaf(name, value, tree):
        if one_staleness:
            return value
        return base.broadcast(name, value, boxes.unboxed(tree))

    def like_origin(bound):
        return Origin(bound, value=deepest, params=bound if keep_params else ())

    def init_fn(params):
        varying = base.vary(
            params, axis_name=axis_name
        )  # gradients differ between workers
        bounds = per_leaf("max_delay", max_delay, params)
        ages = jax.tree.map(lambda _: jnp.zeros((), jnp.int32), bounds)
        origin = Origin(
            age=ages,
            value=jnp.zeros((), jnp.result_type(float)),
            params=varying if keep_params else (),
        )
        origin = base.vary(origin, axis_name=axis_name)
        return DelayedState(
            staleness=origin.age,
            gradients=_init(history, varying, max_delay),
            origins=_init(rings.plain, origin, like_origin(max_delay)),
            inner_state=inner.init(params),
        )

    def update_fn(
        updates,
        state,
        params=None,
        *,
        staleness=None,
        stale_params=None,
        value=None,
        **extra_args,
    ):
        base.check_gradients("delayed", updates)
        _check_like(updates, params)
        step = state.gradients.pushed
        kept = step - state.gradients.first  # fewer than steps once it was resized
        asked = jax.tree.map(lambda d: _ask(d, step), delay, is_leaf=base.is_function)
        oldest = deepest if warmup == "zeros" else kept
        tau = jax.tree.map(
            lambda asked, bound: _clip(asked, jnp.minimum(oldest, bound)),
            per_leaf("delay", asked, updates),
            per_leaf("max_delay", max_delay, updates),
        )
        age = _check_age(0 if staleness is None else staleness, one_staleness)
        origin = Origin(
            age=per_leaf("staleness", age, updates),
            value=base.as_loss("delayed", value),
            params=(),
        )
        if keep_params:
            fresh = staleness is None and stale_params is None
            name, snapshot = (
                ("params", params) if fresh else ("stale_params", stale_params)
            )
            base.require(snapshot, name, "delayed(keep_params=True)", _REMEDY[name])
            origin = origin._replace(params=snapshot)

        remember = functools.partial(_remember, axis_name=axis_name)
        gradients, stale = remember(history, state.gradients, updates, tau, max_delay)
        now = like_origin(tau)._replace(value=_oldest(tau))
        origins, origin = remember(
            rings.plain, state.origins, origin, now, like_origin(max_delay)
        )
        stale = _poisoned(stale, asked)
        staleness = jax.tree.map(jnp.add, origin.age, tau)
        staleness = base.typed_like(staleness, state.staleness)
        handed: dict[str, Any] = {"staleness": staleness} if hand_staleness else {}
        if keep_params:
            handed["stale_params"] = origin.params
        if value is not None:
            dtype = jnp.result_type(value)
            handed["value"] = origin.value.astype(dtype) if deepest else value
        stale_updates, inner_state = inner.update(
            stale, state.inner_state, params, **handed, **extra_args
        )
        if warmup == "skip" and deepest > 0:
            nothing = optax.tree.zeros_like(stale_updates)
            full = kept >= deepest
            stale_updates = optax.tree.where(full, stale_updates, nothing)
            inner_state = optax.tree.where(full, inner_state, state.inner_state)
        return stale_updates, DelayedState(staleness, gradients, origins, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def staleness(opt_state: Any) -> Any:
    """The staleness that was last handed on, for logging.

    Of producers inside one another it is the innermost's, which holds the sum.

    Args:
        opt_state: the state of any transformation with one producer of staleness.

    Returns:
        int32 [], in steps; a tree of these where the producer has a delay a leaf.

    Raises:
        ValueError: if no producer, or several side by side, are in the state.

    Example:
        >>> tx = optax.chain(optax.clip(1.0), delayed(optax.sgd(0.1), 2))
        >>> int(staleness(tx.init(jnp.zeros(3))))
        0
    """
    found = optax.tree.get_all_with_path(opt_state, "staleness")
    states = {path[:-1]: value for path, value in found}
    innermost = [
        value
        for path, value in states.items()
        if not any(other != path and other[: len(path)] == path for other in states)
    ]
    if len(innermost) != 1:
        raise ValueError(
            f"`opt_state` must hold one staleness, got {len(innermost)}: "
            + (
                "pass the state of one of them alone."
                if innermost
                else "wrap the optimizer in `delayed`."
            )
        )
    return innermost[0]


_REMEDY = {
    "params": "call `update(grads, state, params)`",
    # a gradient that is late already was not taken at today's parameters
    "stale_params": "give the producer of its `staleness` keep_params=True as well",
}


def _is_single(tree: Any) -> bool:
    return jax.tree_util.treedef_is_leaf(
        jax.tree.structure(tree, is_leaf=base.is_function)
    )


def _check_delay(delay: Any) -> None:
    if callable(delay):
        return
    number = isinstance(delay, (int, np.integer, np.ndarray, jax.Array))
    if not number or jnp.result_type(delay) == jnp.bool_:
        raise TypeError(
            "`delay` must be an integer number of steps or a function of the step, got"
            f" {delay!r}."
        )
    if jnp.ndim(delay) != 0:
        raise TypeError(
            f"`delay` must be a scalar, got shape {jnp.shape(delay)}: for staleness"
            " along a trace use delays.from_trace, for one delay a worker"
            " delays.per_worker."
        )
    if base.is_concrete(delay) and not np.asarray(delay) >= 0:
        raise ValueError(f"`delay` must be non-negative, got {delay}.")
    if base.is_concrete(delay) and np.asarray(delay) >= 2**31:
        raise ValueError(f"`delay` must be below 2^31, got {delay}.")


def _own_bound(delay: Any) -> int:
    if not isinstance(delay, (int, np.integer)):
        raise ValueError(
            "`max_delay` must be given where `delay` is not a Python int, got"
            f" {delay!r}: it fixes how many gradients are kept."
        )
    return int(delay)


def _check_bound(max_delay: Any) -> int:
    bound = base.check_bound("max_delay", max_delay)
    if bound >= DEEPEST:
        raise ValueError(
            f"`max_delay` must be below {DEEPEST}, got {bound}: a gradient is kept for"
            " each step of it."
        )
    return bound


def _ask(delay: Any, step: jax.Array) -> jax.Array:
    """The delay asked for at `step`: an integer, or a floored float []."""
    asked = base.as_scalar("delay(step)", delay(step) if callable(delay) else delay)
    return asked if jnp.issubdtype(asked.dtype, jnp.integer) else jnp.floor(asked)


def _clip(asked: jax.Array, oldest: jax.Array) -> jax.Array:
    """The staleness, int32 []; a float is clipped first, for int32 ends earlier."""
    return jnp.clip(asked, 0, oldest.astype(asked.dtype)).astype(jnp.int32)


def _poisoned(stale: Any, asked: Any) -> Any:
    """`stale`, NaN where the delay that was asked for is NaN."""
    if all(jnp.issubdtype(d.dtype, jnp.integer) for d in jax.tree.leaves(asked)):
        return stale
    unknown = jax.tree.map(jnp.isnan, asked)
    return jax.tree.map(
        lambda leaf, bad: jnp.where(bad, jnp.asarray(jnp.nan, leaf.dtype), leaf),
        stale,
        base.broadcast("delay", unknown, stale),
    )


def _oldest(tau: Any) -> jax.Array:
    """The largest staleness of a tree, 0 if it is empty."""
    return functools.reduce(jnp.maximum, jax.tree.leaves(tau) or [jnp.int32(0)])


def _check_like(updates: Any, params: Any) -> None:
    """Checks the gradients' shapes against the parameters, where these are known."""
    leaves = jax.tree.leaves_with_path(updates)
    own = jax.tree.leaves(params)
    if len(leaves) != len(own):
        return
    for (path, leaf), param in zip(leaves, own, strict=True):
        if jnp.shape(leaf) != jnp.shape(param):
            raise ValueError(
                "The gradients handed to `delayed` must have the parameters' shapes:"
                f" {jax.tree_util.keystr(path) or 'the root'} is {jnp.shape(leaf)}, its"
                f" parameter {jnp.shape(param)}."
            )


def _check_age(age: Any, one_staleness: bool) -> Any:
    if one_staleness and not _is_single(age):
        raise TypeError(
            "`staleness` handed to `delayed` is a tree, but its own delay is one for"
            " all leaves: give it a `delay` for each leaf as well,"
            " jax.tree.map(lambda _: delay, params)."
        )
    return base.check_staleness("delayed", age)


def _kept(tree: Any, max_delay: Any) -> Any:
    """`tree` with None in place of the leaves that need no history."""

    def keep(node, bound):
        return node if any(jax.tree.leaves(bound)) else None

    bounds = base.broadcast("max_delay", max_delay, tree)
    return jax.tree.map(keep, tree, bounds, is_leaf=boxes.is_box)


def _init(storage: rings.Storage, tree: Any, max_delay: Any) -> rings.Ring:
    capacity = jax.tree.map(lambda bound: bound + 1, max_delay)
    return storage.init(_kept(tree, max_delay), capacity)


def _remember(
    storage: rings.Storage,
    ring: rings.Ring,
    fresh: Any,
    tau: Any,
    max_delay: Any,
    *,
    axis_name: tuple[str, ...],
) -> tuple[rings.Ring, Any]:
    """Stores `fresh` and reads what is `tau` old, `fresh` itself without a history."""
    held = _kept(fresh, max_delay)
    bounds = jax.tree.leaves(base.broadcast("max_delay", max_delay, fresh))
    _check_depth(ring, [bound for bound in bounds if bound > 0])
    try:
        ring = storage.push(ring, held)
    except ValueError as error:
        raise ValueError(
            "The trees handed to `delayed` must be like the parameters that `init` was"
            f" given: {error}"
        ) from error
    stored = storage.read(ring, tau, held)
    if any(map(base.is_axis, axis_name)):
        # Always true, but XLA does not know. Without it XLA (CPU, jax 0.10.2) fuses
        # write and read with the sum over simulated workers, and writes the whole ring
        # twice: 4.7 times the bytes of a step at a delay of 8. A barrier does not help.
        stored = optax.tree.where(
            ring.pushed > 0, stored, optax.tree.zeros_like(stored)
        )

    def choose(new, old):
        return new if old is None else old

    return ring, jax.tree.map(choose, fresh, stored, is_leaf=boxes.is_box)


def _check_depth(ring: rings.Ring, bounds: list[int]) -> None:
    """Checks that a history is as deep as this transformation's.

    A history may keep several leaves together: then all are equally deep.
    """
    depths = [slots.shape[0] - 1 for slots in jax.tree.leaves(ring.slots)]
    if len(depths) != len(bounds):
        depths, bounds = sorted(set(depths)), sorted(set(bounds))
    if depths != bounds:
        held = ", ".join(map(str, sorted(set(depths)))) or "none"
        raise ValueError(
            f"`max_delay` is {', '.join(map(str, sorted(set(bounds)))) or 0}, but the"
            f" state was made for another: its history has depth {held}. Change it with"
            " resize_history(state, tx.init(params))."
        )
