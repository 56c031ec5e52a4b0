"""Takes the gradients of one update in chunks, each at its version, and sums them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.cluster.trace import Arrivals
from delayjax._src.ground import dtypes, refusal, trees, xla
from delayjax._src.training import gradients, model_states, sums, versions
from delayjax._src.training.state import ReplayState, Setup, newest


@dataclasses.dataclass(frozen=True)
class Row:
    """The arguments that the gradients of one update share."""

    setup: Setup
    state: ReplayState
    key: jax.Array  # of the update
    arrivals: Arrivals
    batches: Any  # leaves [K, ...]
    shared: versions.Version | None = None  # where all are of one version

    @property
    def kept_at(self) -> jax.Array:
        """Where the version of each gradient is kept, int32 [K]."""
        return versions.places(self.state.versions, self.arrivals)

    def read(self, place: jax.Array, key: jax.Array) -> versions.Version:
        """The version in a place."""
        how = {"capacity": self.setup.capacity, "spread": self.setup.read_spread}
        kept = self.state.versions
        return versions.read(kept, newest(self.state), place, key, **how)


class Gathered(NamedTuple):
    """The sums of an update so far."""

    total: Any  # of the gradients used; or the aggregation's state
    metrics: Any  # of all gradients that are there
    model_state: Any  # the mean over the gradients used
    worker_state: Any  # of each worker, after its last gradient
    ages: jax.Array  # of the gradients used, else -1, int32 [K]
    there: jax.Array  # the number of gradients, int32 []
    used: jax.Array  # the number of gradients used, int32 []
    each_state: Any


class _Chunk(NamedTuple):
    """The places in a row that are taken at once; each may hold a gradient."""

    begin: Any  # the first place that was not taken before, int32 []
    first: jax.Array  # the first place, int32 []
    there: jax.Array  # whether a place is new and holds a gradient, bool [c]
    ages: jax.Array  # in rows of the trace, 0 where there is no gradient, int32 [c]
    kept_at: jax.Array  # the place of each version in the history, int32 [c]
    workers: jax.Array  # int32 [c]
    given: tuple[Any, jax.Array]  # batches and keys, leaves [c, ...]


def gather(row: Row) -> Gathered:
    """The sums over all gradients of an update."""
    setup, state = row.setup, row.state
    batch, of_one = jax.tree.map(
        lambda leaf: leaf[0], (row.batches, state.worker_state)
    )
    one = gradients.check(
        setup.grad_fn, state.params, batch, row.key, state.model_state, of_one
    )
    zero, is_sum = jnp.zeros((), jnp.int32), setup.aggregation is None
    nothing = Gathered(
        total=dtypes.wide_zeros(state.params) if is_sum else state.aggregation_state,
        metrics=dtypes.wide_zeros(one.metrics),
        model_state=model_states.start(state.model_state),
        worker_state=state.worker_state,
        ages=jnp.full(setup.width, -1, jnp.int32),
        there=zero,
        used=zero,
        each_state=state.each_state,
    )
    add = functools.partial(_add, row, is_loss(one.metrics))
    if setup.chunk == setup.width:
        return add(0, nothing)
    there = setup.width if setup.full else (row.arrivals.staleness >= 0).sum()
    return jax.lax.fori_loop(0, -(-there // setup.chunk), add, nothing)


def _add(row: Row, has_loss: bool, number: Any, gathered: Gathered) -> Gathered:
    """Takes the gradients of a chunk, each at its version, and adds them."""
    setup, chunk = row.setup, _cut(row, number)
    at = _read(row, chunk) if row.shared is None else row.shared
    taken = _take(row, at, chunk, gathered.worker_state)
    numbered = jax.tree.leaves(at.number)
    # all gradients at a shared version have one age
    ages = row.state.version - at.number if numbered else chunk.ages
    ages = jnp.where(chunk.there, ages, -1)
    values, used, each_state = taken.gradients, chunk.there, gathered.each_state
    if setup.each is not None:
        extra_args = {"staleness": jnp.maximum(ages, 0), "worker": chunk.workers}
        if has_loss:
            extra_args["value"] = taken.metrics
        rows = values, used, extra_args
        values, used, each_state = _each(row, setup.each, at, each_state, rows)
    if setup.aggregation is None:
        uses_all = setup.dense and not refusal.refuses(row.state.each_state)
        total = sums.add(gathered.total, values, None if uses_all else used)
    else:
        workers = jnp.where(used, chunk.workers, -1)
        total = setup.aggregation.add(gathered.total, values, workers)
    there = None if setup.dense else chunk.there
    return Gathered(
        total=total,
        metrics=sums.add(gathered.metrics, taken.metrics, there),
        model_state=model_states.add(
            gathered.model_state, gathered.used, taken.model_state, used
        ),
        worker_state=_written(chunk, taken.worker_state, gathered.worker_state),
        ages=_placed(setup, chunk, jnp.where(used, ages, -1), gathered.ages),
        there=gathered.there + chunk.there.sum(dtype=jnp.int32),
        used=gathered.used + used.sum(dtype=jnp.int32),
        each_state=each_state,
    )


def _cut(row: Row, number: Any) -> _Chunk:
    """The chunk with this number, int32 []."""
    size = row.setup.chunk
    begin = number * size
    # the last chunk begins early, so that it ends with the row
    first = jnp.minimum(begin, row.setup.width - size)
    places = first + jnp.arange(size)
    staleness, kept_at, workers, batches = jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size),
        (row.arrivals.staleness, row.kept_at, row.arrivals.worker, row.batches),
    )
    there = (staleness >= 0) & (places >= begin)
    ages = jnp.maximum(staleness, 0)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(row.key, places)
    return _Chunk(begin, first, there, ages, kept_at, workers, (batches, keys))


def _read(row: Row, chunk: _Chunk) -> versions.Version:
    """The version of each gradient, leaves [c, ...]."""
    _, keys = chunk.given
    if row.setup.chunk == 1:
        return _of_one(row.read, chunk.kept_at, keys)
    return xla.each_in_turn(row.read, chunk.kept_at, keys)


def _take(
    row: Row, at: versions.Version, chunk: _Chunk, worker_state: Any
) -> gradients.Taken:
    """The gradients of a chunk, leaves [c, ...]."""

    def take(params, given, state):
        batch, key = given
        model_state = row.state.model_state
        return gradients.take(row.setup.grad_fn, params, batch, key, model_state, state)

    of_each = jax.tree.map(lambda leaf: leaf[chunk.workers], worker_state)
    if row.setup.shared:
        each, given = functools.partial(take, at.params), (chunk.given, of_each)
    else:
        each, given = take, (at.params, chunk.given, of_each)
    return _of_one(each, *given) if row.setup.chunk == 1 else jax.vmap(each)(*given)


def _written(chunk: _Chunk, rows: Any, worker_state: Any) -> Any:
    """The state of all workers, after the gradients of a chunk."""

    def write(leaf, rows):
        place = jnp.where(chunk.there, chunk.workers, len(leaf))
        return leaf.at[place].set(rows, mode="drop")

    return jax.tree.map(write, worker_state, rows)


def _of_one(function: Callable[..., Any], *given: Any) -> Any:
    """`vmap` of a function over a single row, as a plain call."""
    only = jax.tree.map(lambda leaf: leaf[0], given)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*only))


def _each(
    row: Row,
    each: optax.GradientTransformationExtraArgs,
    at: versions.Version,
    each_state: Any,
    rows: tuple[Any, jax.Array, dict[str, Any]],
) -> tuple[Any, jax.Array, Any]:
    """The gradients after `each`, in order, whether each is used, and the state."""
    values, there, extra_args = rows
    update = functools.partial(each.update, params=row.state.params)
    if row.setup.shared:
        update = functools.partial(update, stale_params=at.params)
    else:
        extra_args = extra_args | {"stale_params": at.params}

    def one(state, of_one):
        value, there, extra_args = of_one
        value, new_state = update(value, state, **extra_args)
        used = there
        if refusal.refuses(new_state):
            used &= refusal.was_applied(new_state)
        if not row.setup.dense:
            new_state = optax.tree.where(there, new_state, state)
        return new_state, (value, used)

    rows = values, there, extra_args
    if jax.tree.leaves(each_state):
        each_state, (values, used) = jax.lax.scan(one, each_state, rows)
    else:  # without a state the order does not matter
        alone = jax.vmap(functools.partial(one, each_state))
        each_state, (values, used) = alone(rows)
    value = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], values))
    must = "`each` must return gradients like the parameters"
    trees.check_same_shapes(must, value, row.state.params)
    return values, used, each_state


def _placed(setup: Setup, chunk: _Chunk, ages: jax.Array, before: Any) -> jax.Array:
    """The ages of a row, int32 [K], with a chunk's ages in its places.

    It gathers, because a write to these places would be a scatter in a grid.
    """
    place = jnp.arange(setup.width) - chunk.first
    is_here = (place >= chunk.begin - chunk.first) & (place < setup.chunk)
    return jnp.where(is_here, ages[place], before)


def is_loss(metrics: Any) -> bool:
    """Whether metrics are one real number, as `jax.value_and_grad` returns it."""
    if not jax.tree_util.all_leaves([metrics]) or jnp.shape(metrics):
        return False
    return jnp.issubdtype(jnp.result_type(metrics), jnp.floating)
