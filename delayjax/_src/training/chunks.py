"""The gradients of one update: taken in chunks, each at its version, and added up."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.cluster.trace import Arrivals
from delayjax._src.ground import dtypes, refusal, xla
from delayjax._src.training import gradients, model_states, sums, versions
from delayjax._src.training.state import Plan, ReplayState, newest


class Gathered(NamedTuple):
    """The sums of an update so far."""

    total: Any  # of the gradients used; or the aggregation's state
    metrics: Any  # of all gradients that are there
    model_state: Any  # the mean over the gradients used
    ages: jax.Array  # of the gradients used, else -1, int32 [K]
    there: jax.Array  # the number of gradients, int32 []
    used: jax.Array  # the number of gradients used, int32 []
    each_state: Any


class _Chunk(NamedTuple):
    """The slots of an update that are taken at once."""

    begin: jax.Array  # the first slot that is new, int32 []
    first: jax.Array  # the first slot, int32 []
    there: jax.Array  # whether a slot is new and has a gradient, bool [c]
    ages: jax.Array  # in rows of the trace, 0 where there is no gradient, int32 [c]
    workers: jax.Array  # int32 [c]
    batches: Any  # leaves [c, ...]
    keys: jax.Array  # [c]


def gather(
    plan: Plan,
    state: ReplayState,
    shared: versions.Version | None,
    key: jax.Array,
    arrivals: Arrivals,
    batches: Any,
) -> Gathered:
    """The sums over all gradients of an update, of the `shared` version if any."""
    batch = jax.tree.map(lambda leaf: leaf[0], batches)
    one = gradients.check(plan.grad_fn, state.params, batch, key, state.model_state)
    row = arrivals.staleness, arrivals.worker, batches

    def add(block, gathered):
        chunk = _cut(plan, block, row, key)
        return _add(plan, state, shared, chunk, is_loss(one.metrics), gathered)

    nothing = _nothing(plan, state, one.metrics)
    if plan.chunk == plan.width:
        return add(0, nothing)
    there = plan.width if plan.full else (arrivals.staleness >= 0).sum()
    return jax.lax.fori_loop(0, -(-there // plan.chunk), add, nothing)


def _nothing(plan: Plan, state: ReplayState, metrics: Any) -> Gathered:
    """The sums before the first gradient."""
    zero = jnp.zeros((), jnp.int32)
    is_sum = plan.aggregation is None
    return Gathered(
        total=dtypes.wide_zeros(state.params) if is_sum else state.aggregation_state,
        metrics=dtypes.wide_zeros(metrics),
        model_state=model_states.none(state.model_state),
        ages=jnp.full(plan.width, -1, jnp.int32),
        there=zero,
        used=zero,
        each_state=state.each_state,
    )


def _cut(plan: Plan, block: Any, row: tuple[Any, Any, Any], key: jax.Array) -> _Chunk:
    """The slots of a block of the row: staleness, worker and batch of each gradient."""
    begin = block * plan.chunk
    # the last chunk begins early, so as not to reach beyond the row
    first = jnp.minimum(begin, plan.width - plan.chunk)
    slots = first + jnp.arange(plan.chunk)
    staleness, workers, batches = jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, plan.chunk), row
    )
    return _Chunk(
        begin=begin,
        first=first,
        there=(staleness >= 0) & (slots >= begin),
        ages=jnp.maximum(staleness, 0),
        workers=workers,
        batches=batches,
        keys=jax.vmap(jax.random.fold_in, (None, 0))(key, slots),
    )


def _add(
    plan: Plan,
    state: ReplayState,
    shared: versions.Version | None,
    chunk: _Chunk,
    has_loss: bool,
    gathered: Gathered,
) -> Gathered:
    """Takes the gradients of a chunk, each at its version, and adds them."""
    there = chunk.there
    at = _read_each(plan, state, chunk) if shared is None else shared
    taken = _take_each(plan, state, at, chunk)
    numbered = jax.tree.leaves(at.number)
    # of a shared version one age for all
    ages = state.version - at.number if numbered else chunk.ages
    ages = jnp.where(there, ages, -1)
    values, used, each_state = taken.gradients, there, gathered.each_state
    if plan.each is not None:
        told = {"staleness": jnp.maximum(ages, 0), "worker": chunk.workers}
        if has_loss:
            told["value"] = taken.metrics
        rows = values, there, told
        values, used, each_state = _each(plan, plan.each, state, at, each_state, rows)
    return Gathered(
        total=_total(plan, state, chunk, values, used, gathered.total),
        metrics=sums.add(
            gathered.metrics, taken.metrics, None if plan.dense else there
        ),
        model_state=model_states.add(
            gathered.model_state, gathered.used, taken.model_state, used
        ),
        ages=_placed(plan, chunk, jnp.where(used, ages, -1), gathered.ages),
        there=gathered.there + there.sum(dtype=jnp.int32),
        used=gathered.used + used.sum(dtype=jnp.int32),
        each_state=each_state,
    )


def _read_each(plan: Plan, state: ReplayState, chunk: _Chunk) -> versions.Version:
    """The version of each gradient, leaves [c, ...]."""

    def read(age, key):
        return read_at(plan, state, age, key)

    if plan.chunk == 1:
        return _of_one(read, chunk.ages, chunk.keys)
    return xla.each_in_turn(read, chunk.ages, chunk.keys)


def read_at(
    plan: Plan, state: ReplayState, age: jax.Array, key: jax.Array
) -> versions.Version:
    """The version of `age` rows ago."""
    how = {"depth": plan.depth, "spread": plan.read_spread}
    return versions.read(state.versions, newest(state), age, key, **how)


def _take_each(
    plan: Plan, state: ReplayState, at: versions.Version, chunk: _Chunk
) -> gradients.Taken:
    """The gradients of a chunk, [c, ...]."""

    def take(params, row):
        batch, key = row
        return gradients.take(plan.grad_fn, params, batch, key, state.model_state)

    rows = chunk.batches, chunk.keys
    if plan.shared:
        each, given = functools.partial(take, at.params), (rows,)
    else:
        each, given = take, (at.params, rows)
    return _of_one(each, *given) if plan.chunk == 1 else jax.vmap(each)(*given)


def _of_one(function: Callable[..., Any], *given: Any) -> Any:
    """`vmap` of a function over a single row, as a plain call."""
    only = jax.tree.map(lambda leaf: leaf[0], given)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*only))


def _total(
    plan: Plan,
    state: ReplayState,
    chunk: _Chunk,
    values: Any,
    used: jax.Array,
    before: Any,
) -> Any:
    """The sum, or the aggregation's state, with the gradients used of a chunk."""
    if plan.aggregation is not None:
        workers = jnp.where(used, chunk.workers, -1)
        return plan.aggregation.add(before, values, workers)
    uses_all = plan.dense and not refusal.refuses(state.each_state)
    return sums.add(before, values, None if uses_all else used)


def _each(
    plan: Plan,
    each: optax.GradientTransformationExtraArgs,
    state: ReplayState,
    at: versions.Version,
    each_state: Any,
    rows: tuple[Any, jax.Array, dict[str, Any]],
) -> tuple[Any, jax.Array, Any]:
    """The gradients after `each`, in order, whether each is used, and the state."""
    values, there, told = rows
    update = functools.partial(each.update, params=state.params)
    if plan.shared:
        update = functools.partial(update, stale_params=at.params)
    else:
        told = told | {"stale_params": at.params}

    def one(state, row):
        value, there, told = row
        value, new_state = update(value, state, **told)
        used = there
        if refusal.refuses(new_state):
            used &= refusal.was_applied(new_state)
        if not plan.dense:
            new_state = optax.tree.where(there, new_state, state)
        return new_state, (value, used)

    rows = values, there, told
    if jax.tree.leaves(each_state):
        each_state, (values, used) = jax.lax.scan(one, each_state, rows)
    else:  # without a state the order does not matter
        alone = jax.vmap(functools.partial(one, each_state))
        each_state, (values, used) = alone(rows)
    value = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], values))
    gradients.check_shapes("each", "gradients", value, state.params)
    return values, used, each_state


def _placed(plan: Plan, chunk: _Chunk, ages: jax.Array, before: jax.Array) -> jax.Array:
    """The ages of all slots, int32 [K], with those of a chunk.

    By a gather: a write to the slots would be a scatter in a grid.
    """
    place = jnp.arange(plan.width) - chunk.first
    is_here = (place >= chunk.begin - chunk.first) & (place < plan.chunk)
    return jnp.where(is_here, ages[place], before)


def is_loss(metrics: Any) -> bool:
    """Whether metrics are one real number, as `jax.value_and_grad` returns it."""
    if not jax.tree_util.all_leaves([metrics]) or jnp.shape(metrics):
        return False
    return jnp.issubdtype(jnp.result_type(metrics), jnp.floating)
