"""One update of a server: the gradients of a row of a trace, each at its version."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.cluster.aggregation import Aggregation
from delayjax._src.cluster.trace import Arrivals
from delayjax._src.ground import (
    checks,
    donation,
    dtypes,
    refusal,
    trees,
    xla,
)
from delayjax._src.history import late_inners
from delayjax._src.history import ring as rings
from delayjax._src.training import gradients, model_states, sums, versions


class Version(NamedTuple):
    """A version of the parameters in the history."""

    params: Any
    number: Any  # updates that were applied before, int32 []; () where all are


class ReplayState(NamedTuple):
    """State of `replay`, complete for a checkpoint."""

    params: Any
    model_state: Any  # the server's newest; None where the model has none
    version: jax.Array  # updates that were applied, int32 []
    versions: rings.Ring  # the last `Version`s; `pushed` counts refused updates too
    opt_state: Any
    each_state: Any
    aggregation_state: Any
    key: jax.Array


class ReplayReport(NamedTuple):
    """The report of an update."""

    metrics: Any  # the mean over the gradients that arrived
    staleness: jax.Array  # the mean over the gradients used, in updates, float32 []
    gradients: jax.Array  # the number of gradients used, int32 []
    ages: jax.Array  # the staleness of each gradient, -1: not used, int32 [K]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The static part of a replay."""

    grad_fn: gradients.GradFn
    tx: optax.GradientTransformationExtraArgs
    depth: int  # the largest staleness, in updates
    width: int  # the most gradients of an update, K
    chunk: int = 1  # gradients taken at once
    full: bool = False  # every update has K gradients
    shared: bool = False  # the gradients of an update are of one version
    divisor: int | None = None  # None where it is not the same for all updates
    each: optax.GradientTransformationExtraArgs | None = None
    aggregation: Aggregation | None = None
    read_spread: float = 0.0

    @property
    def dense(self) -> bool:
        """Whether every slot of every chunk holds a gradient of its own."""
        return self.full and self.width % self.chunk == 0


class _Gathered(NamedTuple):
    """The sums of an update so far."""

    total: Any  # of the gradients used; or the aggregation's state
    metrics: Any  # of all gradients that are there
    model_state: Any  # the mean over the gradients used
    ages: jax.Array  # of the gradients used, else -1, int32 [K]
    there: jax.Array  # the number of gradients, int32 []
    used: jax.Array  # the number of gradients used, int32 []
    each_state: Any


def begin(
    plan: Plan, params: Any, key: jax.Array, *, model_state: Any = None
) -> ReplayState:
    """The state before the first update."""
    checks.check_key("key", key)
    start = params, model_state, key
    params, model_state, key = jax.tree.map(donation.copied, start)
    state = ReplayState(
        params=params,
        model_state=model_state,
        version=jnp.zeros((), jnp.int32),
        versions=rings.init((), plan.depth + 1),
        opt_state=plan.tx.init(params),
        each_state=plan.each.init(params) if plan.each else (),
        aggregation_state=plan.aggregation.init(params) if plan.aggregation else (),
        key=key,
    )
    refusal.check_place("tx", state.opt_state)
    refusal.check_place("each", state.each_state, alone=False)
    if plan.depth:
        late_inners.check_late("tx", state.opt_state)
        late_inners.check_late("each", state.each_state)
    kept = rings.init(_kept(plan, state), plan.depth + 1)
    return donation.unshared(state._replace(versions=kept))


def update(
    plan: Plan, state: ReplayState, arrived: tuple[Arrivals, Any]
) -> tuple[ReplayState, ReplayReport]:
    """One update of the server."""
    arrivals, batches = arrived
    _check_width(plan.width, arrivals, batches)
    versions.check_depth(state.params, state.versions, plan.depth)
    step = state.versions.pushed
    # write, then read: a read of the old buffer would copy the whole ring
    state = state._replace(versions=rings.push(state.versions, _kept(plan, state)))
    key, version = jax.random.fold_in(state.key, step), None
    if plan.shared:
        age = jnp.maximum(arrivals.staleness[0], 0)
        version = _read(plan, state, age, jax.random.fold_in(key, 0))
    gathered = _gather(plan, state, version, key, arrivals, batches)
    there = jnp.maximum(gathered.there, 1)

    aggregation_state = state.aggregation_state
    if plan.aggregation is None:
        divisor = arrivals.divisor if plan.divisor is None else plan.divisor
        if refusal.refuses(state.each_state):
            used = jnp.maximum(gathered.used, 1).astype(jnp.float32)
            divisor = divisor * used / there.astype(jnp.float32)
        direction = jax.tree.map(
            lambda total, leaf: (total / divisor).astype(leaf.dtype),
            *(gathered.total, state.params),
        )
    else:
        direction, aggregation_state = plan.aggregation.finish(gathered.total)
        gradients.check_shapes("aggregation", "a direction", direction, state.params)
    ages = gathered.ages
    total_age = jnp.maximum(ages, 0).sum(dtype=jnp.int32)
    mean = (total_age / jnp.maximum(gathered.used, 1)).astype(jnp.float32)
    handed: dict[str, Any] = {"staleness": mean}
    if version is not None:
        handed["staleness"] = jnp.maximum(ages.max(), 0)  # one age for all
        handed["stale_params"] = version.params
    if plan.width == 1:
        handed["worker"] = arrivals.worker[0]
    if _is_loss(gathered.metrics):
        handed["value"] = sums.over(gathered.metrics, there)
    updates, opt_state = plan.tx.update(
        direction, state.opt_state, state.params, **handed
    )
    gradients.check_shapes("tx", "updates", updates, state.params)
    after = state._replace(
        params=optax.apply_updates(state.params, updates),
        model_state=model_states.new_state(gathered.model_state, state.model_state),
        version=state.version + 1,
        opt_state=opt_state,
        aggregation_state=aggregation_state,
    )
    used = gathered.used
    if refusal.refuses(state.each_state):
        has_some = (used > 0) | (gathered.there == 0)
        after = _moved_where(has_some, after, state, *_MOVED)
    if refusal.refuses(opt_state):
        applied = refusal.was_applied(opt_state)
        # the rule has kept the optimizer, and its memory moves
        after = _moved_where(applied, after, state, *_MADE)
        used, mean = jnp.where(applied, used, 0), jnp.where(applied, mean, 0.0)
        ages = jnp.where(applied, ages, -1)
    oldest = jnp.minimum(step - state.versions.first, plan.depth)
    is_kept = (arrivals.staleness <= oldest).all()
    report = ReplayReport(
        metrics=jax.tree.map(
            lambda mean: jnp.where(is_kept, mean, jnp.nan),
            sums.over(gathered.metrics, there),
        ),
        staleness=jnp.where(is_kept, mean, jnp.nan),
        gradients=used,
        ages=ages,
    )
    return after._replace(each_state=gathered.each_state), report


_MADE = ("params", "model_state", "version", "aggregation_state")
_MOVED = (*_MADE, "opt_state")


def _moved_where(
    moves: jax.Array, after: ReplayState, before: ReplayState, *names: str
) -> ReplayState:
    """`after`, with these parts as they were before where nothing moves."""
    new, old = ({n: getattr(state, n) for n in names} for state in (after, before))
    return after._replace(**optax.tree.where(moves, new, old))


def _check_width(width: int, arrivals: Arrivals, batches: Any) -> None:
    leaves = {"arrivals": arrivals.staleness, "batches": batches}
    for path, leaf in jax.tree.leaves_with_path(leaves):
        if jnp.shape(leaf)[:1] != (width,):
            raise ValueError(
                "An update's `arrivals` and `batches` must have a leading axis of"
                f" {width}, the most gradients of an update in the trace, got shape"
                f" {jnp.shape(leaf)} at {trees.path_name(path)}: scan `step` over"
                f" trace.arrivals(start, stop, width={width})."
            )


def _gather(
    plan: Plan,
    state: ReplayState,
    version: Version | None,
    key: jax.Array,
    arrivals: Arrivals,
    batches: Any,
) -> _Gathered:
    """The sums over all gradients of an update, of one `version` if they share it."""
    row = arrivals.staleness, arrivals.worker, batches
    refuses_some = refusal.refuses(state.each_state)
    counted = _is_counted(state)

    def add(block, gathered):
        """Takes the gradients of one chunk, each at its version, and adds them."""
        # the last chunk begins early, so as not to reach beyond the row
        first = jnp.minimum(block * plan.chunk, plan.width - plan.chunk)
        slots = first + jnp.arange(plan.chunk)
        staleness, workers, own = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, plan.chunk), row
        )
        there = (staleness >= 0) & (slots >= block * plan.chunk)
        ages = jnp.maximum(staleness, 0)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, slots)
        read = functools.partial(_read, plan, state)
        read_each = _over(read, (0, 0), 1)
        if plan.chunk > 1:
            read_each = functools.partial(xla.each_in_turn, read)
        at: Version = read_each(ages, keys) if version is None else version
        axes = (None if plan.shared else 0, 0, 0, None)
        taken = _over(
            functools.partial(gradients.take, plan.grad_fn), axes, plan.chunk
        )(at.params, own, keys, state.model_state)
        if counted:
            ages = state.version - at.number  # at a shared version one for all
        ages = jnp.where(there, ages, -1)
        used, values, each_state = there, taken.gradients, gathered.each_state
        if plan.each is not None:
            handed = {"staleness": jnp.maximum(ages, 0), "worker": workers}
            if _is_loss(one.metrics):
                handed["value"] = taken.metrics
            same = {"stale_params": at.params}
            if not plan.shared:
                handed, same = handed | same, {}
            each = functools.partial(plan.each.update, params=state.params, **same)
            rows = values, there, handed
            values, used, each_state = _each(each, each_state, rows, dense=plan.dense)
            value = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], values))
            gradients.check_shapes("each", "gradients", value, state.params)
        if plan.aggregation is None:
            mask = None if plan.dense and not refuses_some else used
            total = sums.add(gathered.total, values, mask)
        else:
            workers = jnp.where(used, workers, -1)
            total = plan.aggregation.add(gathered.total, values, workers)
        mask = None if plan.dense else there
        # by a gather: a write to `slots` would be a scatter in a grid
        place = jnp.arange(plan.width) - first
        is_here = (place >= block * plan.chunk - first) & (place < plan.chunk)
        return _Gathered(
            total=total,
            metrics=sums.add(gathered.metrics, taken.metrics, mask),
            model_state=model_states.add_states(
                gathered.model_state, gathered.used, taken.model_state, used
            ),
            ages=jnp.where(is_here, jnp.where(used, ages, -1)[place], gathered.ages),
            there=gathered.there + there.sum(dtype=jnp.int32),
            used=gathered.used + used.sum(dtype=jnp.int32),
            each_state=each_state,
        )

    zero = jnp.zeros((), jnp.int32)
    batch = jax.tree.map(lambda leaf: leaf[0], batches)
    one = gradients.check(plan.grad_fn, state.params, batch, key, state.model_state)
    total = (
        state.aggregation_state if plan.aggregation else dtypes.wide_zeros(state.params)
    )
    nothing = _Gathered(
        total=total,
        metrics=dtypes.wide_zeros(one.metrics),
        model_state=model_states.no_states(state.model_state),
        ages=jnp.full(plan.width, -1, jnp.int32),
        there=zero,
        used=zero,
        each_state=state.each_state,
    )
    if plan.chunk == plan.width:
        return add(0, nothing)
    there = plan.width if plan.full else (arrivals.staleness >= 0).sum()
    return jax.lax.fori_loop(0, -(-there // plan.chunk), add, nothing)


def _is_loss(metrics: Any) -> bool:
    """Whether metrics are one real number, as `jax.value_and_grad` returns it."""
    if not jax.tree_util.all_leaves([metrics]) or jnp.shape(metrics):
        return False
    return jnp.issubdtype(jnp.result_type(metrics), jnp.floating)


def _each(
    update: Callable, each_state: Any, rows: tuple[Any, Any, Any], *, dense: bool
) -> tuple[Any, jax.Array, Any]:
    """The gradients after `each`, in order, whether each is used, and the state."""

    def one(state, row):
        value, there, handed = row
        value, new_state = update(value, state, **handed)
        used = there
        if refusal.refuses(new_state):
            used &= refusal.was_applied(new_state)
        if not dense:
            new_state = optax.tree.where(there, new_state, state)
        return new_state, (value, used)

    if jax.tree.leaves(each_state):
        each_state, (values, used) = jax.lax.scan(one, each_state, rows)
    else:  # without a state the order does not matter
        alone = jax.vmap(functools.partial(one, each_state))
        each_state, (values, used) = alone(rows)
    return values, used, each_state


def _read(plan: Plan, state: ReplayState, age: jax.Array, key: jax.Array) -> Version:
    """The version of `age` updates ago; a mixture with `read_spread`."""
    if plan.depth == 0:
        return Version(state.params, state.version)
    like = _kept(plan, state)
    if plan.read_spread == 0.0:
        return rings.read(state.versions, age, like)
    newest = age - jnp.floor(plan.read_spread * age).astype(jnp.int32)
    ages = optax.tree.random_like(
        # another key than the user's
        jax.random.fold_in(key, 0x5EED),
        state.params,
        lambda key, shape, dtype: jax.random.randint(key, shape, newest, age + 1),
    )
    counted = age if _is_counted(state) else ()
    return rings.read(state.versions, Version(ages, counted), like)


def _kept(plan: Plan, state: ReplayState) -> Version:
    """The part of a version that is kept: nothing where no gradient is late."""
    if plan.depth == 0:
        return Version((), ())
    return Version(state.params, state.version if _is_counted(state) else ())


def _is_counted(state: ReplayState) -> bool:
    """Whether arrivals and versions differ in number, because a rule refuses some."""
    return refusal.refuses((state.opt_state, state.each_state))


def _over(function: Callable, axes: tuple, size: int) -> Callable:
    """`vmap(function, axes)`, but a plain call for a single gradient."""
    if size > 1:
        return jax.vmap(function, axes)

    def of_one(*arguments):
        only = (
            argument if axis is None else jax.tree.map(lambda leaf: leaf[0], argument)
            for argument, axis in zip(arguments, axes, strict=True)
        )
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*only))

    return of_one
