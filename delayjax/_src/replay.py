"""Training along a trace: each gradient at the version that its worker read."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src import base, buffers, inners, taking, xla
from delayjax._src.aggregation import Aggregation
from delayjax._src.cluster.trace import Arrivals, Trace
from delayjax._src.ring import ring as rings

Accept = Callable[[Any, jax.Array], jax.Array]
"""(gradients, staleness int32 []) -> whether the server uses them, bool []."""


class Version(NamedTuple):
    """A version of the parameters in the history."""

    params: Any
    applied: Any  # updates that had moved them, int32 []; () where all updates do


class ReplayState(NamedTuple):
    """State of `replay`, complete for a checkpoint."""

    params: Any
    model_state: Any  # the server's newest; None where the model has none
    applied: jax.Array  # updates that moved the parameters, int32 []
    versions: rings.Ring  # the last `Version`s; `pushed` is the number of updates done
    opt_state: Any
    each_state: Any
    aggregation_state: Any
    key: jax.Array


class Report(NamedTuple):
    """The report of an update."""

    metrics: Any  # the mean over the gradients that arrived
    staleness: jax.Array  # the mean over the gradients used, in updates, float32 []
    gradients: jax.Array  # the number of gradients used, int32 []


class Replay(NamedTuple):
    """Training along a trace, as three functions."""

    init: Callable[..., ReplayState]  # of (params, key, model_state=None)
    step: Callable[[ReplayState, tuple[Arrivals, Any]], tuple[ReplayState, Report]]
    run: Callable[[ReplayState, Any], tuple[ReplayState, Report]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a replay."""

    grad_fn: taking.GradFn
    tx: optax.GradientTransformationExtraArgs
    each: optax.GradientTransformationExtraArgs | None
    aggregation: Aggregation | None
    accept: Accept | None
    read_spread: float
    depth: int  # the largest staleness, in updates
    width: int  # the most gradients of an update, K
    chunk: int  # gradients taken at once
    full: bool  # every update has K gradients
    shared: bool  # the gradients of an update are of one version
    divisor: int | None  # None where it is not the same for all updates

    @property
    def dense(self) -> bool:
        """Whether every slot of every chunk holds a gradient of its own."""
        return self.full and self.width % self.chunk == 0


class _Gradients(NamedTuple):
    """One chunk of gradients; leaves are [chunk, ...]."""

    values: Any
    metrics: Any
    model_state: Any  # after each gradient; None where the model has none
    params: Any  # of each gradient; without a leading axis where `shared`
    staleness: jax.Array  # updates, int32
    worker: jax.Array  # int32
    there: jax.Array  # whether there is a gradient, bool
    used: jax.Array  # whether the server uses it, bool


class _Gathered(NamedTuple):
    """The sums of an update so far."""

    total: Any  # the gradients used
    metrics: Any  # of all gradients that are there
    model_state: Any  # the mean over the gradients used
    staleness: jax.Array  # of the gradients used, int32 []
    there: jax.Array  # the number of gradients, int32 []
    used: jax.Array  # the number of gradients used, int32 []
    each_state: Any
    aggregation_state: Any


def replay(
    trace: Trace | Sequence[Trace],
    grad_fn: taking.GradFn,
    tx: optax.GradientTransformation,
    *,
    each: optax.GradientTransformation | None = None,
    aggregation: Aggregation | None = None,
    accept: Accept | None = None,
    chunk: int | None = None,
    max_staleness: int | None = None,
    read_spread: float = 0.0,
) -> Replay:
    """Trains along the trace of a cluster.

    Update t takes the K gradients of its row of the trace. Each is taken on a batch of
    its own, at exactly the version that its worker had read, and is used once:

        x_{t+1} = x_t + tx( (1/K) sum_k each( g(x_{t - tau_k}; batch_k) ) )

    (*Delivery*: unlike `delayed`, it uses no gradient twice and loses none.)

    A model may have a state s that no gradient moves, such as the running statistics of
    BatchNorm. The server keeps it. All K gradients start from its newest state,
    whatever their version of the parameters, and

        s_{t+1} = (1/K) sum_k s'_k,    (g_k, s'_k) of x_{t - tau_k}, batch_k and s_t

    The mean is over the gradients that are used, whatever the divisor. A leaf that is
    not floating (a counter, a key) comes from the last gradient used. Without a used
    gradient s does not change.

    Args:
        trace: a trace from `cluster.simulate` or `cluster.load_trace`; or several
            traces, one for each replicate, over which you map `step`.
        grad_fn: (params, batch, key) -> (metrics, gradients), for example
            `jax.value_and_grad(loss)`, where the metrics are the loss; with
            `has_aux=True` the metrics are (loss, aux). If `init` is given a
            `model_state`: (params, batch, key, model_state) -> ((metrics, model_state),
            gradients). The key of gradient k of update t is `fold_in(fold_in(key, t),
            k)`. Draw from it, not from a key in the model's state, which the K
            gradients of an update share.
        tx: the server's optimizer. If the gradients of each update have one version
            (one gradient per update, `hardsync`, groups), it receives that version as
            `stale_params=` and its `staleness=` (int32), as inside `delayed(...)`. Else
            it receives the mean `staleness=` of the update (float32). If every update
            has one gradient, it receives its `worker=` too.
        each: a transformation of each gradient before the mean. It receives the
            gradient's own `staleness=`, `stale_params=` and `worker=`. Its state passes
            through the gradients in their order.
        aggregation: replaces the sum over the trace's divisor.
        accept: refuses gradients by their value: (gradients, staleness) -> bool []. If
            an update accepts nothing, parameters and optimizer do not change, and the
            update counts in no later staleness. `accept` selects between the old and
            the new state of `tx`, and so copies a history inside of it.
        chunk: the number of gradients that one `vmap` takes; by default all of an
            update.
        max_staleness: the largest staleness allowed, in updates.
        read_spread: the share of a gradient's staleness over which its read is spread,
            in [0, 1]. Each coordinate is read at its own version, drawn uniformly from
            tau - floor(spread tau) .. tau updates ago (Hogwild!: reads without a lock).

    Returns:
        `init(params, key, model_state=None)`. `step(state, (arrivals, batches))`, for a
        scan of your own over `(trace.arrivals(start, stop), batches)` with batches
        [n, K, ...], returns the state and a `Report`. `run(state, batches)` scans the
        next n updates and donates the state. In rows with fewer than K gradients the
        other batches are not used.

        A `Report` has `metrics` (the mean over the gradients that arrived), `staleness`
        (the mean over the gradients used, float32, in updates) and `gradients` (the
        number used), each [n] after a scan. A row that asks for a version that is not
        kept (a row of another trace, or the first rows after `resize_history`) reports
        metrics and staleness of nan. The state has `params`, `opt_state`,
        `model_state`, and `versions.pushed`, the number of updates done.

        The state holds (largest staleness + 1) parameter trees, none if it is 0, and
        one model state. An update needs `chunk` more of both, whatever the number of
        workers. It costs the gradients, one write and K reads of a tree. Under `vmap`
        use `ring.vmap_axes(state)`. A run that is saved and restored between two calls
        of `run` ends in the same bits. A call of another length, or a scan of your own,
        is another program, which XLA may round differently.

    Raises:
        TypeError: in `step`, if gradients, model state, or the results of `each`,
            `aggregation` or `tx` are not like the parameters.
        ValueError: if the trace is deeper than `max_staleness`, a number is out of
            range, gradients are late and `tx` or `each` needs fresh ones (see
            `delayed`), or (in `step`) the batches do not fit the trace.

    Example:
        >>> from delayjax import cluster
        >>> asgd = cluster.protocols.k_async(1)
        >>> workers = cluster.Cluster(2, cluster.constant(1.0))
        >>> trace = cluster.simulate(workers, asgd, 4, seed=0)
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
    traces = list(trace) if isinstance(trace, Sequence) else [trace]
    if not 0.0 <= read_spread <= 1.0:
        raise ValueError(f"`read_spread` must lie in [0, 1], got {read_spread}.")
    if chunk is not None:
        base.check_bound("chunk", chunk, at_least=1)
    depth = max(one.max_staleness for one in traces)
    if max_staleness is not None and depth > base.check_bound(
        "max_staleness", max_staleness
    ):
        raise ValueError(
            f"`trace` has a staleness of {depth}, more than `max_staleness`, got"
            f" {max_staleness}: allow more, or bound the staleness in the cluster with"
            " protocols.bounded_staleness(...)."
        )
    if depth:
        inners.check("tx", tx)
        inners.check("each", each)
    width = max(1, *(one.max_gradients for one in traces))
    full = all((one.counts == width).all() for one in traces)
    constant = full and all((one.divisor == width).all() for one in traces)
    plan = Plan(
        grad_fn=grad_fn,
        tx=base.as_transformation("tx", tx),
        each=None if each is None else base.as_transformation("each", each),
        aggregation=aggregation,
        accept=accept,
        read_spread=float(read_spread),
        depth=depth,
        width=width,
        chunk=width if chunk is None else min(chunk, width),
        full=full,
        shared=all(map(_ages_agree, traces)) and (read_spread == 0.0 or width == 1),
        divisor=width if constant and accept is None else None,
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
        return scan(state, (traces[0].arrivals(start, start + updates), batches))

    return Replay(functools.partial(begin, plan), step, run)


def begin(
    plan: Plan, params: Any, key: jax.Array, *, model_state: Any = None
) -> ReplayState:
    """The state before the first update."""
    params, model_state, key = taking.begun(params, model_state, key)
    applied = jnp.zeros((), jnp.int32)
    state = ReplayState(
        params=params,
        model_state=model_state,
        applied=applied,
        versions=rings.init(_kept(plan, Version(params, applied)), plan.depth + 1),
        opt_state=plan.tx.init(params),
        each_state=() if plan.each is None else plan.each.init(params),
        aggregation_state=()
        if plan.aggregation is None
        else plan.aggregation.init(params),
        key=key,
    )
    return buffers.unshared(state)


def update(
    plan: Plan, state: ReplayState, arrived: tuple[Arrivals, Any]
) -> tuple[ReplayState, Report]:
    """One update of the server."""
    arrivals, batches = arrived
    _check_width(plan.width, arrivals, batches)
    taking.check_depth(state.params, state.versions, plan.depth)
    now = Version(state.params, state.applied)
    step = state.versions.pushed
    # write, then read: a read of the old buffer would copy the whole ring
    state = state._replace(versions=rings.push(state.versions, _kept(plan, now)))
    gathered, params = _gather(plan, state, step, arrivals, batches)

    if plan.aggregation is None:
        divisor = arrivals.divisor if plan.divisor is None else plan.divisor
        if plan.accept is not None:
            divisor = jnp.maximum(gathered.used, 1)
        direction = jax.tree.map(
            lambda total, leaf: (total / divisor).astype(leaf.dtype),
            gathered.total,
            state.params,
        )
        aggregation_state = state.aggregation_state
    else:
        direction, aggregation_state = plan.aggregation.finish(
            gathered.aggregation_state
        )
        taking.check_shapes("aggregation", "a direction", direction, state.params)
    mean = gathered.staleness / jnp.maximum(gathered.used, 1)
    handed: dict[str, Any] = {"staleness": mean.astype(jnp.float32)}
    if plan.shared:
        age = arrivals.staleness[0] if plan.accept is None else mean
        handed["staleness"] = jnp.maximum(age, 0).astype(jnp.int32)
        handed["stale_params"] = params
    if plan.width == 1:
        handed["worker"] = arrivals.worker[0]
    updates, opt_state = plan.tx.update(
        direction, state.opt_state, state.params, **handed
    )
    taking.check_shapes("tx", "updates", updates, state.params)
    moved = optax.apply_updates(state.params, updates)
    applied = state.applied + 1
    if plan.accept is not None:
        any_used = gathered.used > 0
        moved = optax.tree.where(any_used, moved, state.params)
        opt_state = optax.tree.where(any_used, opt_state, state.opt_state)
        applied = state.applied + any_used
    oldest = jnp.minimum(step - state.versions.first, plan.depth)
    is_kept = (arrivals.staleness <= oldest).all()
    report = Report(
        metrics=jax.tree.map(
            lambda total: jnp.where(
                is_kept, total / jnp.maximum(gathered.there, 1), jnp.nan
            ),
            gathered.metrics,
        ),
        staleness=jnp.where(is_kept, mean.astype(jnp.float32), jnp.nan),
        gradients=gathered.used,
    )
    return state._replace(
        params=moved,
        model_state=taking.new_state(gathered.model_state, state.model_state),
        applied=applied,
        opt_state=opt_state,
        each_state=gathered.each_state,
        aggregation_state=aggregation_state,
    ), report


def _gather(
    plan: Plan, state: ReplayState, step: jax.Array, arrivals: Arrivals, batches: Any
) -> tuple[_Gathered, Any]:
    """All gradients of an update, and their parameters where `plan.shared`."""
    key = jax.random.fold_in(state.key, step)

    def add(block, gathered):
        # the last chunk begins early, so as not to reach beyond the row
        first = jnp.minimum(block * plan.chunk, plan.width - plan.chunk)
        slots = first + jnp.arange(plan.chunk)
        own = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, plan.chunk),
            (arrivals.staleness, arrivals.worker, batches),
        )
        there = (own[0] >= 0) & (slots >= block * plan.chunk)
        gradients = _take(plan, state, key, slots, there, *own)
        return _add(plan, state, gathered, gradients), gradients.params

    def nothing():
        zeros = jnp.zeros((), jnp.int32)
        batch = jax.tree.map(lambda leaf: leaf[0], batches)
        one = taking.check(plan.grad_fn, state.params, batch, key, state.model_state)
        return _Gathered(
            total=() if plan.aggregation else taking.nothing(state.params),
            metrics=taking.nothing(one.metrics),
            model_state=taking.no_states(state.model_state),
            staleness=zeros,
            there=zeros,
            used=zeros,
            each_state=state.each_state,
            aggregation_state=state.aggregation_state,
        )

    if plan.chunk == plan.width:
        return add(0, nothing())
    blocks = -(-plan.width // plan.chunk)
    if not plan.full:
        blocks = -(-(arrivals.staleness >= 0).sum() // plan.chunk)
    params = state.params
    if plan.shared:
        params = _read(plan, state, jnp.maximum(arrivals.staleness[0], 0), key).params
    gathered = jax.lax.fori_loop(
        0, blocks, lambda block, gathered: add(block, gathered)[0], nothing()
    )
    return gathered, params


def _take(
    plan: Plan,
    state: ReplayState,
    key: jax.Array,
    slots: jax.Array,
    there: jax.Array,
    staleness: jax.Array,
    worker: jax.Array,
    batches: Any,
) -> _Gradients:
    """The gradients of one chunk, each at its version."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, slots)
    ages = jnp.maximum(staleness, 0)
    if plan.shared:
        version = _read(plan, state, ages[0], keys[0])
    else:
        version = _read_each(plan, state, ages, keys)
    axes = (None if plan.shared else 0, 0, 0, None)
    taken = _over(functools.partial(taking.take, plan.grad_fn), axes, plan.chunk)(
        version.params, batches, keys, state.model_state
    )
    used = there
    if plan.accept is not None:
        ages = jnp.where(there, state.applied - version.applied, 0)
        accepts = functools.partial(_accepts, plan.accept)
        used = there & _over(accepts, (0, 0), plan.chunk)(taken.gradients, ages)
    return _Gradients(
        values=taken.gradients,
        metrics=taken.metrics,
        model_state=taken.model_state,
        params=version.params,
        staleness=ages,
        worker=worker,
        there=there,
        used=used,
    )


def _accepts(accept: Accept, gradients: Any, staleness: jax.Array) -> jax.Array:
    answer = accept(gradients, staleness)
    return base.as_scalar("accept(gradients, staleness)", answer, jnp.bool_)


def _add(
    plan: Plan, state: ReplayState, gathered: _Gathered, gradients: _Gradients
) -> _Gathered:
    values, each_state = gradients.values, gathered.each_state
    if plan.each is not None:
        values, each_state = _each(plan, plan.each, state.params, each_state, gradients)
        one = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], values))
        taking.check_shapes("each", "gradients", one, state.params)
    used = None if plan.dense and plan.accept is None else gradients.used
    aggregation_state = gathered.aggregation_state
    total = gathered.total
    if plan.aggregation is None:
        total = taking.add(total, values, used)
    else:
        workers = jnp.where(gradients.used, gradients.worker, -1)
        aggregation_state = plan.aggregation.add(aggregation_state, values, workers)
    there = None if plan.dense else gradients.there
    return _Gathered(
        total=total,
        metrics=taking.add(gathered.metrics, gradients.metrics, there),
        model_state=taking.add_states(
            *(gathered.model_state, gathered.used),
            *(gradients.model_state, gradients.used),
        ),
        staleness=gathered.staleness
        + jnp.where(gradients.used, gradients.staleness, 0).sum(dtype=jnp.int32),
        there=gathered.there + gradients.there.sum(dtype=jnp.int32),
        used=gathered.used + gradients.used.sum(dtype=jnp.int32),
        each_state=each_state,
        aggregation_state=aggregation_state,
    )


def _each(
    plan: Plan,
    each: optax.GradientTransformationExtraArgs,
    params: Any,
    each_state: Any,
    gradients: _Gradients,
) -> tuple[Any, Any]:
    """The gradients after `each`, which receives one after the other."""

    def one(state, value, used, handed):
        handed = handed_to_all | handed
        value, new_state = each.update(value, state, params, **handed)
        if not plan.dense or plan.accept is not None:
            new_state = optax.tree.where(used, new_state, state)
        return new_state, value

    handed_to_all, handed = {"stale_params": gradients.params}, {}
    if not plan.shared:
        handed_to_all, handed = handed, handed_to_all
    handed |= {"staleness": gradients.staleness, "worker": gradients.worker}
    rows = gradients.values, gradients.used, handed
    if not jax.tree.leaves(each_state):  # without a state the order does not matter
        return jax.vmap(lambda *row: one(each_state, *row)[1])(*rows), each_state
    each_state, values = jax.lax.scan(lambda s, row: one(s, *row), each_state, rows)
    return values, each_state


def _read_each(
    plan: Plan, state: ReplayState, ages: jax.Array, keys: jax.Array
) -> Version:
    """The versions of the gradients of a chunk, [chunk, ...]."""
    read = functools.partial(_read, plan, state)
    if plan.chunk == 1:
        return _over(read, (0, 0), 1)(ages, keys)
    return xla.each_in_turn(read, ages, keys)


def _read(plan: Plan, state: ReplayState, age: jax.Array, key: jax.Array) -> Version:
    """The version of `age` updates ago; a mixture with `read_spread`."""
    if plan.depth == 0:
        return Version(state.params, state.applied)
    like = _kept(plan, Version(state.params, state.applied))
    if plan.read_spread == 0.0:
        return rings.read(state.versions, age, like)
    newest = age - jnp.floor(plan.read_spread * age).astype(jnp.int32)
    ages = optax.tree.random_like(
        # another key than the user's
        jax.random.fold_in(key, 0x5EED),
        state.params,
        lambda key, shape, dtype: jax.random.randint(key, shape, newest, age + 1),
    )
    counted = () if plan.accept is None else age
    return rings.read(state.versions, Version(ages, counted), like)


def _kept(plan: Plan, version: Version) -> Version:
    """The part of a version that is kept: nothing where no gradient is late."""
    if plan.depth == 0:
        return Version((), ())
    return version if plan.accept is not None else version._replace(applied=())


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


def _check_width(width: int, arrivals: Arrivals, batches: Any) -> None:
    """Checks the leading axis of the row and the batches of one update."""
    leaves = {"arrivals": arrivals.staleness, "batches": batches}
    for path, leaf in jax.tree.leaves_with_path(leaves):
        if jnp.shape(leaf)[:1] != (width,):
            raise ValueError(
                "An update's `arrivals` and `batches` must have a leading axis of"
                f" {width}, the most gradients of an update in the trace, got shape"
                f" {jnp.shape(leaf)} at {base.path_name(path)}: scan `step` over"
                f" trace.arrivals(start, stop, width={width})."
            )


def _ages_agree(trace: Trace) -> bool:
    """Whether the gradients of each update were taken at one version."""
    first = np.searchsorted(trace.update, trace.update)
    return bool((trace.read_version == trace.read_version[first]).all())
