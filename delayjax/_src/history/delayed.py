"""Feeding an optimizer gradients from the past."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import (
    axes,
    checks,
    collectives,
    extras,
    named_arrays,
    transforms,
    trees,
    xla,
)
from delayjax._src.history import delays, wrapped
from delayjax._src.history import ring as rings

Warmup = Literal["fresh", "skip", "zeros"]


class Origin(NamedTuple):
    """The origin of a gradient, kept beside it in the history."""

    age: Any  # its staleness when `update` received it, int32 [] or one for each leaf
    value: Any  # the loss that came with it, or 0, float32 []
    params: Any  # the parameters at which it was taken; () without `keep_params`


class DelayedState(NamedTuple):
    """State of `delayed`."""

    staleness: Any  # handed on by the last update, in steps, int32 [] or a tree
    gradients: rings.Ring  # leaves [max_delay + 1, *shape]; None where max_delay is 0
    origins: rings.Ring  # of `Origin`, with the same depths
    inner_state: Any


def delayed(
    inner: transforms.Transformation,
    delay: extras.Delay,
    *,
    max_delay: Any = None,
    keep_params: bool = False,
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
    A loss that comes as `value=` stays with its gradient. The delay is a *lookback*: if
    it varies, a gradient may be used twice or never.

    Args:
        inner: the transformation that uses stale gradients.
        delay: the delay in steps: an int, a scalar array that may be traced, a function
            of the step (see `delayjax.delays`), or a prefix tree of these. Floats are
            floored. A NaN makes the update NaN. With a tree, `inner` receives a full
            tree of staleness.
        max_delay: the largest staleness kept, in steps: an int or a prefix tree of
            ints. Static. Not needed where `delay` consists of Python ints.
        keep_params: whether to keep with each gradient the parameters at which it was
            taken, in their own dtype, for the extra argument `stale_params`.
        warmup: the rule before there is a gradient that old. "fresh": staleness is at
            most the number of steps done. "skip": inner and parameters do not change
            until the history is full. "zeros": `inner` receives zeros, its counters and
            moments advance, and tau is not clipped to t.
        history: how gradients are kept, for example `ring.cast(jnp.bfloat16)`; by
            default on the device, in the parameters' dtype and sharding (None, *spec).
            float32 gradients of bfloat16 parameters are rounded there, and are exact
            with `ring.cast(jnp.float32)`.
        hand_staleness: whether `inner` receives `staleness=`. False for a function of
            your own that has no such argument.
        axis_name: the workers' axes along which gradients differ, in `shard_map`.

    Returns:
        A transformation whose state holds `max_delay + 1` gradients (and as many
        parameter trees with `keep_params`), and nothing for leaves with a `max_delay`
        of 0. With a donated state a step costs one write and one read of a gradient,
        whatever `max_delay`. A `max_delay` of 0 is the program of `inner`. A delay of 0
        gives the same bits eagerly, and differs by a few roundings where it is
        compiled. "skip" selects between the old and the new state of `inner`, and so
        copies a history inside of it.

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
    axis_name = axes.as_names(axis_name)
    delay, max_delay = named_arrays.unboxed((delay, max_delay))
    for one in jax.tree.leaves(delay, is_leaf=trees.is_function):
        if not callable(one):
            checks.check_number("delay", one)
        if max_delay is None and not isinstance(one, (int, np.integer)):
            raise ValueError(
                "`max_delay` must be given where `delay` is no Python int, got"
                f" {one!r}: it fixes the number of gradients kept."
            )
    bounds = delay if max_delay is None else max_delay
    max_delay = jax.tree.map(lambda one: checks.check_bound("max_delay", one), bounds)
    _check_within(delay, max_delay)
    if warmup not in ("fresh", "skip", "zeros"):
        raise ValueError(
            f'`warmup` must be "fresh", "skip" or "zeros", got {warmup!r}.'
        )
    history = rings.plain if history is None else rings.check_storage(history)
    beside = history.beside or rings.plain
    deepest = max(jax.tree.leaves(max_delay), default=0)
    one_staleness = trees.is_leaf(delay) and trees.is_leaf(max_delay)

    def per_leaf(name, value, tree):
        if one_staleness:
            return value
        return trees.broadcast(name, value, named_arrays.unboxed(tree))

    def like_origin(bound):
        return Origin(bound, value=deepest, params=bound if keep_params else ())

    def remember(storage, ring, fresh, tau, max_delay):
        """Stores `fresh` and reads the item of `tau` steps ago, or `fresh` itself."""
        held = _kept(fresh, max_delay)
        bounds = jax.tree.leaves(trees.broadcast("max_delay", max_delay, fresh))
        _check_depth(ring, [bound for bound in bounds if bound > 0])
        ring = storage.push(ring, held)
        stored = storage.read(ring, tau, held)
        if collectives.is_inside(axis_name):
            stored = xla.read_apart(stored, ring.pushed)
        return ring, jax.tree.map(
            lambda new, old: new if old is None else old,
            *(fresh, stored),
            is_leaf=named_arrays.is_box,
        )

    def init_fn(params):
        inner_state = wrapped.init("inner", inner, params)
        bounds = per_leaf("max_delay", max_delay, params)
        origin = Origin(
            age=jax.tree.map(lambda _: jnp.zeros((), jnp.int32), bounds),
            value=jnp.zeros((), jnp.result_type(float)),
            params=params if keep_params else (),
        )
        varying, origin = axes.vary((params, origin), axis_name=axis_name)
        return DelayedState(
            staleness=origin.age,
            gradients=_init(history, varying, max_delay),
            origins=_init(beside, origin, like_origin(max_delay)),
            inner_state=inner_state,
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, value=None, **extra_args
    ):
        extras.check_gradients("delayed", updates)
        step = state.gradients.pushed
        kept = step - state.gradients.first  # fewer than steps once it was resized
        asked = jax.tree.map(
            lambda d: delays.ask(d, step), delay, is_leaf=trees.is_function
        )
        oldest = deepest if warmup == "zeros" else kept
        tau = jax.tree.map(
            lambda asked, bound: delays.clip(asked, jnp.minimum(oldest, bound)),
            per_leaf("delay", asked, updates),
            per_leaf("max_delay", max_delay, updates),
        )
        given = 0 if staleness is None else staleness
        updates, age = extras.take_staleness("delayed", updates, given)
        stale_params, snapshot = extra_args.pop("stale_params", None), ()
        if keep_params:
            is_fresh = staleness is None and stale_params is None
            name = "params" if is_fresh else "stale_params"
            snapshot = params if is_fresh else stale_params
            extras.require(snapshot, name, "delayed(keep_params=True)", _REMEDY[name])
        loss = extras.as_loss("delayed", value)
        origin = Origin(per_leaf("staleness", age, updates), loss, snapshot)
        # the largest staleness of any leaf
        oldest_used = functools.reduce(jnp.maximum, jax.tree.leaves(tau), jnp.int32(0))
        _check_structures(state, updates, params, keep_params, max_delay)
        _check_kept(history, state.gradients, updates, params, max_delay)
        gradients, stale = remember(history, state.gradients, updates, tau, max_delay)
        now = like_origin(tau)._replace(value=oldest_used)
        origins, origin = remember(
            beside, state.origins, origin, now, like_origin(max_delay)
        )
        stale = _poisoned(stale, asked)
        staleness = jax.tree.map(jnp.add, origin.age, tau)
        staleness = axes.typed_like(staleness, state.staleness)
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
            nothing = optax.tree.zeros_like(stale_updates), state.inner_state
            stale_updates, inner_state = optax.tree.where(
                kept >= deepest, (stale_updates, inner_state), nothing
            )
        return stale_updates, DelayedState(staleness, gradients, origins, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def staleness(opt_state: Any) -> Any:
    """The staleness of the last update, for logging.

    Args:
        opt_state: the state of any transformation with one producer of staleness, or
            several inside one another (the innermost holds the sum), none side by side.

    Returns:
        int32 [], in steps, or a tree of these where each leaf has its own delay.

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
            f"`opt_state` must hold one staleness, got {len(innermost)}: pass the state"
            " of one producer, such as `delayed`, alone."
        )
    return innermost[0]


_REMEDY = {
    "params": "call `update(grads, state, params)`",
    # a gradient that was late before was not taken at the current parameters
    "stale_params": "give the producer of its `staleness` keep_params=True as well",
}


def _poisoned(stale: Any, asked: Any) -> Any:
    """`stale`, NaN where the delay is NaN."""

    def poison(leaf, asked):
        if jnp.issubdtype(asked.dtype, jnp.integer):
            return leaf
        return jnp.where(jnp.isnan(asked), jnp.asarray(jnp.nan, leaf.dtype), leaf)

    return jax.tree.map(poison, stale, trees.broadcast("delay", asked, stale))


def _check_within(delay: Any, max_delay: Any) -> None:
    """Checks that no delay that is known is larger than what is kept."""

    def check(one, bound):
        is_number = not callable(one) and checks.is_concrete(one)
        if is_number and checks.known(one) > bound:
            raise ValueError(
                f"`delay` must be at most `max_delay` = {bound}, got {one}: raise"
                " `max_delay`, which costs one gradient a step."
            )

    if trees.is_leaf(delay):
        for bound in jax.tree.leaves(max_delay):
            check(delay, bound)
    elif trees.is_leaf(max_delay):
        for one in jax.tree.leaves(delay, is_leaf=trees.is_function):
            check(one, max_delay)
    else:  # prefix trees of one another, or of a third tree
        deep = jax.tree.structure(delay, is_leaf=trees.is_function)
        if deep == jax.tree.structure(max_delay):
            jax.tree.map(check, delay, max_delay, is_leaf=trees.is_function)


def _kept(tree: Any, max_delay: Any) -> Any:
    """`tree` with None in place of the leaves that need no history."""
    return jax.tree.map(
        lambda node, bound: node if any(jax.tree.leaves(bound)) else None,
        *(tree, trees.broadcast("max_delay", max_delay, tree)),
        is_leaf=named_arrays.is_box,
    )


def _init(storage: rings.Storage, tree: Any, max_delay: Any) -> rings.Ring:
    capacity = jax.tree.map(lambda bound: bound + 1, max_delay)
    return storage.init(_kept(tree, max_delay), capacity)


def _check_structures(
    state: DelayedState, updates: Any, params: Any, keep_params: bool, max_delay: Any
) -> None:
    """Checks that gradients are like parameters, and the state of this transformation.

    Their shapes are checked where they are stored.
    """
    bare = named_arrays.unboxed((updates, updates if params is None else params))
    got, wanted = map(jax.tree.structure, bare)
    if got != wanted:
        raise ValueError(
            f"`updates` must have the structure of the parameters, {wanted}, got {got}."
        )
    held, deepest = state.origins.slots, max(jax.tree.leaves(max_delay), default=0)
    kept = held is not None and bool(jax.tree.leaves(held.params))
    if deepest and jax.tree.leaves(updates) and kept != keep_params:
        raise ValueError(
            f"`keep_params` is {keep_params}, but the state was made with {kept}: make"
            " it with `init` of this transformation."
        )


def _check_kept(
    history: rings.Storage, ring: rings.Ring, updates: Any, params: Any, max_delay: Any
) -> None:
    """Checks that a state's slots have the dtype of this history."""
    found = [rings.dtype_of(slots) for slots in jax.tree.leaves(ring.slots)]
    if history.dtype is not None:
        wanted = [[history.dtype] * len(found)]
    else:
        like = [tree for tree in (updates, params) if tree is not None]
        kept = [jax.tree.leaves(_kept(tree, max_delay)) for tree in like]
        wanted = [list(map(jnp.result_type, leaves)) for leaves in kept]
    if not found or not wanted[0]:  # of another depth, which is refused as such
        return
    if len(wanted[0]) != len(found):  # a history that keeps several leaves together
        found, wanted = sorted(set(found)), [sorted(set(x)) for x in wanted]
    if found not in wanted:
        raise ValueError(
            f"`history` keeps {_names(wanted[-1])}, but the history in the state holds"
            f" {_names(found)}: convert it with resize_history(state, tx.init(params))."
        )


def _names(dtypes: Any) -> str:
    return (
        " and ".join(sorted({str(jnp.dtype(dtype)) for dtype in dtypes})) or "nothing"
    )


def _check_depth(ring: rings.Ring, bounds: list[int]) -> None:
    """Checks that a ring has the depths of this transformation."""
    depths = [slots.shape[0] - 1 for slots in jax.tree.leaves(ring.slots)]
    if len(depths) != len(bounds):  # a history that keeps several leaves together
        depths, bounds = sorted(set(depths)), sorted(set(bounds))
    if depths != bounds:
        raise ValueError(
            f"`max_delay` is {sorted(set(bounds)) or 0}, but the history in the state"
            f" has depth {sorted(set(depths)) or 0}: change it with"
            " resize_history(state, tx.init(params))."
        )
