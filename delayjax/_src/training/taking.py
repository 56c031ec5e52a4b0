"""Taking gradients with `grad_fn`, and adding them up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.cluster.trace import Trace
from delayjax._src.ground import dtypes, trees
from delayjax._src.history import ring as rings

GradFn = Callable[..., tuple]
"""(params, batch, key) -> (metrics, gradients), as `jax.value_and_grad` returns; with a
state, (params, batch, key, model_state) -> ((metrics, model_state), gradients)."""


class Taken(NamedTuple):
    """One gradient, or [c, ...] several."""

    gradients: Any
    metrics: Any
    model_state: Any  # None where the model has none


def check_traces(trace: Any) -> list[Trace]:
    """The traces that are the argument `trace`: one, or several."""
    traces = list(trace) if isinstance(trace, (list, tuple)) else [trace]
    if not traces or not all(isinstance(one, Trace) for one in traces):
        raise TypeError(
            f"`trace` must be a trace, or a list of some, got {trace!r}: make it with"
            " cluster.simulate(cluster, protocol, ...) or cluster.load_trace(path)."
        )
    return traces


def take(
    grad_fn: GradFn, params: Any, batch: Any, key: jax.Array, model_state: Any
) -> Taken:
    """Calls `grad_fn`, with the model's state where there is one."""
    if model_state is None:
        metrics, gradients = grad_fn(params, batch, key)
        return Taken(gradients, metrics, None)
    (metrics, after), gradients = grad_fn(params, batch, key, model_state)

    def placed(leaf, before):
        # on a mesh of Explicit axes statistics are sharded as the activations are
        wanted = jax.typeof(before).sharding
        is_there = jax.typeof(leaf).sharding == wanted
        return leaf if is_there else jax.sharding.reshard(leaf, wanted)

    return Taken(gradients, metrics, jax.tree.map(placed, after, model_state))


def check(
    grad_fn: GradFn, params: Any, batch: Any, key: jax.Array, model_state: Any
) -> Taken:
    """The shapes of one gradient, which must be like the parameters."""
    after, returns = None, "(metrics, gradients)"
    if model_state is None:
        answer = jax.eval_shape(grad_fn, params, batch, key)
        metrics, gradients = _pair(returns, answer)
    else:
        returns = "((metrics, model_state), gradients)"
        answer = jax.eval_shape(grad_fn, params, batch, key, model_state)
        value, gradients = _pair(returns, answer)
        metrics, after = _pair(returns, value)
    rule = f"`grad_fn` must return {returns}"
    trees.check_alike(f"{rule} with gradients like the parameters", gradients, params)
    trees.check_alike(f"{rule} with a model state like the given", after, model_state)
    return Taken(gradients, metrics, after)


def _pair(returns: str, answer: Any) -> Any:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise TypeError(
            f"`grad_fn` must return {returns}, got {answer!r}: write for example"
            " jax.value_and_grad(loss)."
        )
    return answer


def check_depth(params: Any, versions: rings.Ring, depth: int) -> None:
    """Checks that a state keeps versions of this age."""
    held = min((len(kept) - 1 for kept in jax.tree.leaves(versions.slots)), default=0)
    if jax.tree.leaves(params) and held < depth:
        raise ValueError(
            f"`state` keeps versions up to a staleness of {held}, got a trace of"
            f" {depth}: change it with resize_history(state, training.init(params,"
            " key)), and `model_state=` if there is one."
        )


def check_shapes(name: str, returned: str, tree: Any, params: Any) -> None:
    """Checks that no broadcast hides a leaf of another shape than the parameters'."""
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.float32), (tree, params)
    )
    trees.check_alike(
        f"`{name}` must return {returned} of the parameters' shapes", *shapes
    )


def nothing(tree: Any) -> Any:
    """Zeros for a sum of such leaves. Narrow floats add up in float32."""
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, dtype=_wide(leaf)), tree)


def add(total: Any, values: Any, used: jax.Array | None = None) -> Any:
    """`total` plus the values [c, ...] that are used, bool [c]; all by default."""

    def sum_up(total, leaf):
        if used is not None:
            mask = used.reshape(-1, *(1 for _ in leaf.shape[1:]))
            leaf = jnp.where(mask, leaf, jnp.zeros_like(leaf))
        return total + leaf.sum(0, dtype=total.dtype)

    return jax.tree.map(sum_up, total, values)


def over(total: Any, count: jax.Array) -> Any:
    """A sum over a count, leaf by leaf."""

    def divided(leaf):
        leaf = leaf.astype(dtypes.wide_dtype(leaf))  # integers too
        return leaf / count.astype(leaf.dtype)

    return jax.tree.map(divided, total)


def no_states(model_state: Any) -> Any:
    """The beginning of `add_states`, and its result without a gradient."""
    return jax.tree.map(
        lambda leaf: leaf.astype(_wide(leaf)) if _has_mean(leaf) else leaf, model_state
    )


def add_states(mean: Any, seen: jax.Array, states: Any, used: jax.Array) -> Any:
    """The mean of `seen` model states and of the used ones among [c, ...], bool [c].

    Equal values stay equal bit for bit, because differences are averaged. A leaf that
    is not floating (a counter, a key) comes from the last gradient used.
    """
    count = used.sum(dtype=jnp.int32)
    first = jnp.argmax(used)
    last = len(used) - 1 - jnp.argmax(used[::-1])

    def put(mean, leaf):
        if not _has_mean(leaf):
            return jnp.where(count > 0, leaf[last], mean)
        states = leaf.astype(mean.dtype)
        total = add(jnp.zeros_like(mean), _apart(states, states[first][None]), used)
        own = states[first] + over(total, jnp.maximum(count, 1))
        share = (count / jnp.maximum(seen + count, 1)).astype(mean.dtype)
        both = mean + _apart(own, mean) * share
        both = jnp.where(seen > 0, both.astype(mean.dtype), own)
        return jnp.where(count > 0, both, mean)

    return jax.tree.map(put, mean, states)


def new_state(mean: Any, model_state: Any) -> Any:
    """The server's model state after an update, of the types it had."""
    return jax.tree.map(
        lambda mean, leaf: mean.astype(leaf.dtype) if _has_mean(leaf) else mean,
        *(mean, model_state),
    )


def _apart(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a == b, 0, a - b)  # equal infinities too


def _wide(leaf: Any) -> Any:
    return dtypes.wide_dtype(leaf)


def _has_mean(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
