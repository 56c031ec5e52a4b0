"""Training along a trace; a gradient is taken at the version that its worker read."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from delayjax._src.cluster.protocol import Aggregation
from delayjax._src.cluster.trace import Arrivals, Trace
from delayjax._src.ground import kinds, transforms, trees
from delayjax._src.training import gradients
from delayjax._src.training.state import ReplayState, Setup, begin
from delayjax._src.training.update import ReplayReport, update


class Replay(NamedTuple):
    """Training along a trace, as three functions."""

    init: Callable[..., ReplayState]
    step: Callable[
        [ReplayState, tuple[Arrivals, Any]],
        tuple[ReplayState, ReplayReport],
    ]
    run: Callable[[ReplayState, Any], tuple[ReplayState, ReplayReport]]


@kinds.checked
def replay(
    trace: Trace | Sequence[Trace],
    grad_fn: gradients.GradFn,
    tx: transforms.Transformation,
    *,
    each: optax.GradientTransformation | None = None,
    aggregation: Aggregation | None = None,
    chunk: kinds.PositiveInt | None = None,
    max_versions: kinds.PositiveInt | None = None,
    read_spread: kinds.Probability = 0.0,
) -> Replay:
    """Trains along the trace of a cluster.

    Update t takes the K gradients of its row of the trace. Each is taken on another
    batch, at exactly the version that its worker had read, and is used once:

        x_{t+1} = x_t + tx( (1/K) sum_k each( g(x_{t - tau_k}; batch_k) ) )

    (*Delivery*: unlike `delayed`, it uses no gradient twice and loses none.) A model
    may have a state s that no gradient moves, such as the statistics of BatchNorm. All
    K gradients start from the server's newest state, and over the gradients used

        s_{t+1} = mean_k s'_k,    (g_k, s'_k) of x_{t - tau_k}, batch_k and s_t

    A leaf that is not floating (a counter, a key) comes from the last gradient used.
    A worker may have a state too, which goes from each of its gradients to the next.

    `tx` may refuse gradients (`drop_stale`, `kardam`, `zeno_plus_plus`, `refusing`),
    and a transformation in `each` may refuse too. A refused gradient is in no sum, and
    the divisor shrinks by its share. If all gradients of an update are refused, the
    update changes no parameters, no optimizer state and no s, and makes no version:
    with such a rule, staleness counts the updates that were applied. An update without
    gradients changes nothing either, but makes a version.

    Args:
        trace: a trace from `cluster.simulate` or `cluster.load_trace`; or several
            traces, one for each replicate, over which you map `step`.
        grad_fn: (params, batch, key) -> (metrics, gradients), for example
            `jax.value_and_grad(loss)`. If `init` is given a `model_state`: (params,
            batch, key, model_state) -> ((metrics, model_state), gradients). If it is
            given a `worker_state`, leaves [P, ...]: (params, batch, key, model_state,
            worker_state) -> ((metrics, model_state, worker_state), gradients), with the
            row of its worker. The key of gradient k of update t is
            `fold_in(fold_in(key, t), k)`.
        tx: the server's optimizer. If the gradients of each update have one version
            (one gradient per update, `hardsync`, groups), it receives that version as
            `stale_params=` and its `staleness=` (int32). Otherwise it receives the mean
            `staleness=` (float32). If every update has one gradient, it also receives
            `worker=`. If the metrics are one real number, the loss, it also receives
            their mean as `value=`.
        each: a transformation of each gradient before the mean, with its `staleness=`,
            `stale_params=`, `worker=` and `value=`. Its state passes from gradient to
            gradient, in order, also when `tx` refuses their mean.
        aggregation: replaces the sum over the trace's divisor; one that a protocol
            makes for P workers needs a trace of P workers.
        chunk: the number of gradients that one `vmap` takes; by default all.
        max_versions: the number of versions that the state keeps; by default as many as
            the traces need (`Trace.max_versions`). With a larger number one compiled
            `step` takes the arrivals of other traces, for example of other seeds.
        read_spread: the share of a gradient's staleness over which its read is spread,
            in [0, 1]. Each coordinate is read at its own version, drawn uniformly from
            tau - floor(spread tau) .. tau updates ago (Hogwild!: reads without a lock).

    Returns:
        `init(params, key, model_state=None, worker_state=None)`. `step(state,
        (arrivals, batches))`, for your own scan over `(trace.arrivals(start, stop),
        batches)` with batches [n, K, ...], returns the state and a `ReplayReport`.
        `run(state, batches)` scans the next n updates and donates the state. If a row
        has fewer than K gradients, its other batches are not used. The report of a row
        has nan if the row needs a version that is not kept: the row is of another
        trace, or comes soon after `resize_history`. The report also has nan if a row
        lacks what all rows of the given traces have: K gradients, one divisor, or one
        version for all of its gradients.

        The state holds one model state and `max_versions` parameter trees, none if no
        gradient is late. It keeps each version until its last gradient has arrived, so
        at most min(P, largest staleness + 1) versions; with a `read_spread` it keeps
        the last (largest staleness + 1). `versions.pushed` is the number of rows done,
        and `version` the number of updates applied, which is smaller if a rule refused
        some. An update needs memory for `chunk` more gradients, parameter trees and
        model states, for any number of workers. It costs the gradients, one write and K
        reads of a tree. Under `vmap` use `ring.vmap_axes(state)`. A run that is saved
        and restored between two calls of `run` ends in the same bits, also along a
        longer trace of the same simulation: see `Trace.max_versions`.

    Raises:
        ValueError: if the trace needs more than `max_versions`, (in `init`) gradients
            are late and `tx` or `each` needs fresh ones (see `delayed`), or a rule that
            refuses is not last in its chain, or (in `step`) the batches do not fit the
            trace.

    Example:
        >>> import jax.numpy as jnp
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
    traces = _check_traces(trace)
    slotted = read_spread == 0.0
    needed = max(
        one.max_versions if slotted else one.max_staleness + 1 for one in traces
    )
    allowed = needed if max_versions is None else max_versions
    if needed > allowed:
        raise ValueError(f"`max_versions` must be at least {needed}, got {allowed}.")
    _check_tables(aggregation, traces)
    width = max(1, *(one.max_gradients for one in traces))
    full = all((one.counts == width).all() for one in traces)
    constant = full and all((one.divisor == width).all() for one in traces)
    setup = Setup(
        grad_fn=grad_fn,
        tx=transforms.as_transformation("tx", tx),
        capacity=allowed,
        width=width,
        chunk=width if chunk is None else min(chunk, width),
        full=full,
        has_empty=any((one.counts == 0).any() for one in traces),
        shared=all(map(_ages_agree, traces)) and (read_spread == 0.0 or width == 1),
        divisor=width if constant else None,
        each=None if each is None else transforms.as_transformation("each", each),
        aggregation=aggregation,
        read_spread=float(read_spread),
        slotted=slotted,
    )
    step = functools.partial(update, setup)
    scan = jax.jit(functools.partial(jax.lax.scan, step), donate_argnums=0)

    def run(state, batches):
        if len(traces) > 1:
            raise ValueError(f"`run` follows one trace, got {len(traces)}: map `step`.")
        leaves = jax.tree.leaves(batches)
        if not leaves:
            raise ValueError("`batches` must have leaves, got none: scan `step`.")
        start, updates = int(state.versions.pushed), len(leaves[0])
        if updates > (left := traces[0].num_updates - start):
            raise ValueError(f"`batches` must fit {left} updates, got {updates}.")
        return scan(state, (traces[0].arrivals(start, start + updates), batches))

    def init(params, key, *, model_state=None, worker_state=None):
        _check_workers(traces, worker_state)
        states = {"model_state": model_state, "worker_state": worker_state}
        return begin(setup, params, key, **states)

    return Replay(init, step, run)


def _check_tables(aggregation: Aggregation | None, traces: list[Trace]) -> None:
    """Checks that an aggregation with a row for each worker has the traces' workers."""
    rows = aggregation.num_workers if aggregation else None
    of_traces = {one.num_workers for one in traces}
    if rows is not None and of_traces != {rows}:
        shown = " and ".join(map(str, sorted(of_traces)))
        raise ValueError(
            f"`aggregation` must be for the {shown} workers of the trace, got {rows}."
        )


def _check_workers(traces: list[Trace], worker_state: Any) -> None:
    """Checks that each worker has a row of the state and one gradient in an update."""
    for path, leaf in jax.tree.leaves_with_path(worker_state):
        workers = max(one.num_workers for one in traces)
        if np.shape(leaf)[:1] != (workers,):
            raise ValueError(
                f"`worker_state` must have leaves [P, ...] of {workers} workers, got"
                f" shape {np.shape(leaf)} at {trees.path_name(path)}."
            )
    for one in traces if jax.tree.leaves(worker_state) else []:
        arrived = one.update.astype(np.int64) * one.num_workers + one.worker
        if len(np.unique(arrived)) < len(arrived):
            raise ValueError(
                "`worker_state` needs traces in which no update has two gradients of"
                " one worker."
            )


def _check_traces(trace: Any) -> list[Trace]:
    """The argument `trace` as a list of traces."""
    traces = list(trace) if isinstance(trace, (list, tuple)) else [trace]
    if not traces or not all(isinstance(one, Trace) for one in traces):
        raise TypeError(
            f"`trace` must be a trace, or a list of some, got {trace!r}: make it with"
            " cluster.simulate(...) or cluster.load_trace(path)."
        )
    return traces


def _ages_agree(trace: Trace) -> bool:
    """Whether the gradients of each update were taken at one version."""
    first = np.searchsorted(trace.update, trace.update)
    return bool((trace.read_version == trace.read_version[first]).all())
