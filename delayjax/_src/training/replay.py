"""Training along a trace: each gradient at the version that its worker read."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.cluster.aggregation import Aggregation
from delayjax._src.cluster.trace import Arrivals, Trace
from delayjax._src.ground import checks, donation, refusal, transforms, trees, xla
from delayjax._src.history import ring as rings
from delayjax._src.history import wrapped
from delayjax._src.training import taking


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


class Init(Protocol):
    """The state before the first update."""

    def __call__(
        self, params: Any, key: jax.Array, *, model_state: Any = None
    ) -> ReplayState: ...


class Replay(NamedTuple):
    """Training along a trace, as three functions."""

    init: Init
    step: Callable[
        [ReplayState, tuple[Arrivals, Any]], tuple[ReplayState, ReplayReport]
    ]
    run: Callable[[ReplayState, Any], tuple[ReplayState, ReplayReport]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The static part of a replay."""

    grad_fn: taking.GradFn
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


def replay(
    trace: Trace | Sequence[Trace],
    grad_fn: taking.GradFn,
    tx: transforms.Transformation,
    *,
    each: optax.GradientTransformation | None = None,
    aggregation: Aggregation | None = None,
    chunk: int | None = None,
    max_staleness: int | None = None,
    read_spread: float = 0.0,
) -> Replay:
    """Trains along the trace of a cluster.

    Update t takes the K gradients of its row of the trace. Each is taken on a batch of
    its own, at exactly the version that its worker had read, and is used once:

        x_{t+1} = x_t + tx( (1/K) sum_k each( g(x_{t - tau_k}; batch_k) ) )

    (*Delivery*: unlike `delayed`, it uses no gradient twice and loses none.) A model
    may have a state s that no gradient moves, such as the statistics of BatchNorm. All
    K gradients start from the server's newest state, and over the gradients used

        s_{t+1} = mean_k s'_k,    (g_k, s'_k) of x_{t - tau_k}, batch_k and s_t

    A leaf that is not floating (a counter, a key) comes from the last gradient used.

    A rule that refuses (`drop_stale`, `kardam`, `zeno_plus_plus`, `refusing`) may be
    `tx`, and be in `each`. A refused gradient counts in no sum, and the divisor shrinks
    by its share. An update whose gradients are all refused changes neither parameters
    nor optimizer nor s, and makes no version: with a rule, staleness counts the updates
    that were applied.

    Args:
        trace: a trace from `cluster.simulate` or `cluster.load_trace`; or several
            traces, one for each replicate, over which you map `step`.
        grad_fn: (params, batch, key) -> (metrics, gradients), for example
            `jax.value_and_grad(loss)`. If `init` is given a `model_state`: (params,
            batch, key, model_state) -> ((metrics, model_state), gradients). The key of
            gradient k of update t is `fold_in(fold_in(key, t), k)`.
        tx: the server's optimizer. If the gradients of each update have one version
            (one gradient per update, `hardsync`, groups), it receives that version as
            `stale_params=` and its `staleness=` (int32). Else it receives the mean
            `staleness=` (float32). If every update has one gradient, also `worker=`.
            If the metrics are one real number, the loss, also its mean, `value=`.
        each: a transformation of each gradient before the mean, with its `staleness=`,
            `stale_params=`, `worker=` and `value=`. Its state passes through them in
            order. Also when `tx` refuses their mean.
        aggregation: replaces the sum over the trace's divisor.
        chunk: the number of gradients that one `vmap` takes; by default all.
        max_staleness: the largest staleness allowed, in updates.
        read_spread: the share of a gradient's staleness over which its read is spread,
            in [0, 1]. Each coordinate is read at its own version, drawn uniformly from
            tau - floor(spread tau) .. tau updates ago (Hogwild!: reads without a lock).

    Returns:
        `init(params, key, model_state=None)`. `step(state, (arrivals, batches))`, for a
        scan of your own over `(trace.arrivals(start, stop), batches)` with batches
        [n, K, ...], returns the state and a `ReplayReport`. `run(state, batches)` scans
        the next n updates and donates the state. In rows with fewer than K gradients
        the other batches are not used. A row that asks for a version that is not kept
        (of another trace, or soon after `resize_history`) reports nan.

        The state holds (largest staleness + 1) parameter trees, none if it is 0, and
        one model state; `versions.pushed` is the number of rows done, and `version` the
        number of updates applied, which is smaller if a rule refused some. An update
        needs `chunk` more of both, whatever the number of workers. It costs the
        gradients, one write and K reads of a tree. Under `vmap` use
        `ring.vmap_axes(state)`. A run that is saved and restored between two calls of
        `run` ends in the same bits.

    Raises:
        ValueError: if the trace is deeper than `max_staleness`, (in `init`) gradients
            are late and `tx` or `each` needs fresh ones (see `delayed`), or a rule that
            refuses is not last in its chain, or (in `step`) the batches do not fit the
            trace.

    Example:
        >>> from delayjax import cluster
        >>> workers = cluster.Cluster(2, cluster.constant(1.0))
        >>> trace = cluster.simulate(workers, cluster.protocols.k_async(1), 4, seed=0)
        >>> def grad_fn(x, batch, key):
        ...     return 0.5 * (x - batch) ** 2, x - batch
        >>> training = replay(trace, grad_fn, optax.sgd(0.5))
        >>> state = training.init(jnp.zeros(()), jax.random.key(0))
        >>> state, report = training.run(state, jnp.ones((4, 1)))
        >>> report.staleness  # the two workers overtake each other
        Array([0., 1., 1., 1.], dtype=float32)
        >>> float(state.params)  # 0.5, 1.0, 1.25, 1.25
        1.25

    References:
        Zhang, Gupta, Lian and Liu, Staleness-aware async-SGD, IJCAI 2016,
        arXiv:1511.05950 (a rate for each gradient of a mean); Niu, Recht, Re and
        Wright, Hogwild!, NIPS 2011, arXiv:1106.5730 (inconsistent reads).
    """
    traces = taking.check_traces(trace)
    checks.check_function("grad_fn", grad_fn)
    checks.check_number("read_spread", read_spread)
    if not isinstance(aggregation, Aggregation | None):
        raise TypeError(f"`aggregation` must be an Aggregation, got {aggregation!r}.")
    if not 0.0 <= read_spread <= 1.0:
        raise ValueError(f"`read_spread` must lie in [0, 1], got {read_spread}.")
    depth = max(one.max_staleness for one in traces)
    allowed = depth if max_staleness is None else max_staleness
    if depth > checks.check_bound("max_staleness", allowed):
        raise ValueError(
            f"`trace` has a staleness of {depth}, more than `max_staleness`, got"
            f" {max_staleness}: allow more, or bound the staleness in the cluster with"
            " protocols.bounded_staleness(...)."
        )
    width = max(1, *(one.max_gradients for one in traces))
    chunk = checks.check_bound("chunk", width if chunk is None else chunk, at_least=1)
    full = all((one.counts == width).all() for one in traces)
    constant = full and all((one.divisor == width).all() for one in traces)
    plan = Plan(
        grad_fn=grad_fn,
        tx=transforms.as_transformation("tx", tx),
        depth=depth,
        width=width,
        chunk=min(chunk, width),
        full=full,
        shared=all(map(_ages_agree, traces)) and (read_spread == 0.0 or width == 1),
        divisor=width if constant else None,
        each=None if each is None else transforms.as_transformation("each", each),
        aggregation=aggregation,
        read_spread=float(read_spread),
    )
    step = functools.partial(update, plan)
    scan = jax.jit(functools.partial(jax.lax.scan, step), donate_argnums=0)

    def run(state, batches):
        if len(traces) > 1:
            raise ValueError(
                f"`run` follows one trace, got {len(traces)}: map `step` over them."
            )
        leaves = jax.tree.leaves(batches)
        if not leaves:
            raise ValueError(
                "`batches` must have leaves, whose leading axis is the number of"
                f" updates, got {batches!r}: scan `step` if no data is needed."
            )
        start, updates = int(state.versions.pushed), len(leaves[0])
        if start + updates > traces[0].num_updates:
            raise ValueError(
                f"`batches` must end with the trace, got {updates} updates, of which"
                f" {traces[0].num_updates - start} are left: simulate more of them."
            )
        return scan(state, (traces[0].arrivals(start, start + updates), batches))

    return Replay(functools.partial(begin, plan), step, run)


def _ages_agree(trace: Trace) -> bool:
    """Whether the gradients of each update were taken at one version."""
    first = np.searchsorted(trace.update, trace.update)
    return bool((trace.read_version == trace.read_version[first]).all())


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
        wrapped.check_late("tx", state.opt_state)
        wrapped.check_late("each", state.each_state)
    versions = rings.init(_kept(plan, state), plan.depth + 1)
    return donation.unshared(state._replace(versions=versions))


def update(
    plan: Plan, state: ReplayState, arrived: tuple[Arrivals, Any]
) -> tuple[ReplayState, ReplayReport]:
    """One update of the server."""
    arrivals, batches = arrived
    _check_width(plan.width, arrivals, batches)
    taking.check_depth(state.params, state.versions, plan.depth)
    step = state.versions.pushed
    # write, then read: a read of the old buffer would copy the whole ring
    versions = rings.push(state.versions, _kept(plan, state))
    state = state._replace(versions=versions)
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
        taking.check_shapes("aggregation", "a direction", direction, state.params)
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
        handed["value"] = taking.over(gathered.metrics, there)
    updates, opt_state = plan.tx.update(
        direction, state.opt_state, state.params, **handed
    )
    taking.check_shapes("tx", "updates", updates, state.params)
    after = state._replace(
        params=optax.apply_updates(state.params, updates),
        model_state=taking.new_state(gathered.model_state, state.model_state),
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
            taking.over(gathered.metrics, there),
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
        taken = _over(functools.partial(taking.take, plan.grad_fn), axes, plan.chunk)(
            at.params, own, keys, state.model_state
        )
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
            taking.check_shapes("each", "gradients", value, state.params)
        if plan.aggregation is None:
            mask = None if plan.dense and not refuses_some else used
            total = taking.add(gathered.total, values, mask)
        else:
            workers = jnp.where(used, workers, -1)
            total = plan.aggregation.add(gathered.total, values, workers)
        mask = None if plan.dense else there
        # by a gather: a write to `slots` would be a scatter in a grid
        place = jnp.arange(plan.width) - first
        is_here = (place >= block * plan.chunk - first) & (place < plan.chunk)
        return _Gathered(
            total=total,
            metrics=taking.add(gathered.metrics, taken.metrics, mask),
            model_state=taking.add_states(
                gathered.model_state, gathered.used, taken.model_state, used
            ),
            ages=jnp.where(is_here, jnp.where(used, ages, -1)[place], gathered.ages),
            there=gathered.there + there.sum(dtype=jnp.int32),
            used=gathered.used + used.sum(dtype=jnp.int32),
            each_state=each_state,
        )

    zero = jnp.zeros((), jnp.int32)
    batch = jax.tree.map(lambda leaf: leaf[0], batches)
    one = taking.check(plan.grad_fn, state.params, batch, key, state.model_state)
    total = (
        state.aggregation_state if plan.aggregation else taking.nothing(state.params)
    )
    nothing = _Gathered(
        total=total,
        metrics=taking.nothing(one.metrics),
        model_state=taking.no_states(state.model_state),
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
