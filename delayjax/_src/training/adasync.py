"""AdaSync: the server waits for more gradients as the loss falls."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from delayjax._src.cluster.cluster import Cluster
from delayjax._src.cluster.protocols.k_scheme import KScheme
from delayjax._src.cluster.trace import Arrivals
from delayjax._src.ground import checks, donation, kinds, transforms
from delayjax._src.training.gradients import GradFn
from delayjax._src.training.state import ReplayState, Setup, begin
from delayjax._src.training.update import update


class AdaSyncState(NamedTuple):
    """State of `adasync`."""

    training: ReplayState  # parameters, optimizer, history
    service: jax.Array  # seconds of each worker's tasks, float32 [P, draws]
    # the workers, float32 and int32 [P]
    remaining: jax.Array  # seconds until the next delivery
    read_version: jax.Array
    tasks: jax.Array  # the number of tasks begun
    # the choice of K
    k: jax.Array  # int32 []
    elapsed: jax.Array  # seconds of this interval, float32 []
    loss_sum: jax.Array  # over the updates of this interval, float32 []
    loss_updates: jax.Array  # int32 []
    first_loss: jax.Array  # the mean of the first interval, float32 []; nan before


class AdaSyncReport(NamedTuple):
    """The report of an update."""

    metrics: Any  # the mean over the K gradients
    k: jax.Array  # int32 []
    seconds: jax.Array  # the simulated time of the update, float32 []
    staleness: jax.Array  # the mean over the gradients used, in updates, float32 []
    workers: jax.Array  # the K workers in order, then -1, int32 [P]
    clipped: jax.Array  # gradients whose version was no longer kept, int32 []


class AdaSync(NamedTuple):
    """Training with a K that depends on the loss, as two functions."""

    init: Callable[..., AdaSyncState]  # of (params, key, model_state=None)
    step: Callable[[AdaSyncState, Any], tuple[AdaSyncState, AdaSyncReport]]


@kinds.checked
def adasync(
    cluster: Cluster,
    grad_fn: GradFn,
    tx: transforms.Transformation,
    *,
    scheme: KScheme,
    interval_seconds: kinds.PositiveOrInf,
    loss: Callable[[Any], ArrayLike],
    seed: kinds.NonNegativeInt,
    max_staleness: int | None = None,
    draws: kinds.PositiveInt = 1024,
) -> AdaSync:
    """Waits for few gradients at first, and for more as the loss falls.

    After every `interval_seconds` of simulated time the server chooses K again: the K
    for which a bound on the error falls fastest per second. F is the mean loss of the
    gradients in an interval, F_0 the mean loss of the first interval, K_0 the K of
    `scheme`:

        K^2 / (P - K) = F_0 / F  K_0^2 / (P - K_0)     k_sync, k_async
        K = K_0 sqrt(F_0 / F)                          k_batch_sync, k_batch_async

    K is rounded, at most P, and never falls. The step simulates the workers' times.

    Args:
        cluster: a cluster without communication, with constant speeds and finite times.
        grad_fn: (params, batch, key) -> (metrics, gradients), as in `replay`, also with
            a `model_state`.
        tx: the server's optimizer. It receives the mean age as `staleness=`.
        scheme: how the server collects K gradients, with the first K in 1 .. P:
            `cluster.protocols.k_sync(1)`, `k_batch_sync`, `k_async` or `k_batch_async`.
        interval_seconds: the time between two choices, may be traced; inf keeps K.
        loss: metrics -> the loss.
        seed: the seed of the service times, as in `cluster.simulate`.
        max_staleness: the age of the oldest version kept, in updates, for k_async and
            k_batch_async. A gradient of an older version is taken at this oldest
            version, and counted in `clipped`.
        draws: the number of service times drawn for each worker; after these they
            repeat.

    Returns:
        `init(params, key, model_state=None)` and `step(state, batches)` for your own
        scan, with batches [P, ...], of which the first K are used. The state holds
        (max_staleness + 1) parameter trees (none for the synchronous schemes), one
        model state, and P x draws times. A step costs K gradients one after the other,
        and O(K P) for the clocks.

    Example:
        >>> import optax
        >>> from delayjax.cluster import exponential, protocols
        >>> def grad_fn(x, batch, key):
        ...     return 0.5 * (x - batch) ** 2, x - batch
        >>> training = adasync(
        ...     Cluster(8, exponential(1.0)), grad_fn, optax.sgd(0.1),
        ...     scheme=protocols.k_sync(1), interval_seconds=1.0,
        ...     loss=lambda loss: loss, seed=0)
        >>> state = training.init(jnp.ones(()), jax.random.key(0))
        >>> state, report = jax.lax.scan(training.step, state, jnp.zeros((50, 8)))
        >>> report.k[0], report.k[-1] > 4
        (Array(1, dtype=int32), Array(True, dtype=bool))

    References:
        Dutta, Wang and Joshi, Slow and stale gradients can win the race,
        arXiv:2003.10579 (AdaSync).
    """
    if scheme.k > cluster.workers:
        raise ValueError(
            f"`scheme` must have a K in 1 .. {cluster.workers}, got {scheme.k}."
        )
    service = _service(cluster, draws, seed)
    depth = 0
    if not scheme.restarts:
        depth = checks.check_bound("max_staleness", max_staleness)
    tx = transforms.as_transformation("tx", tx)
    setup = Setup(grad_fn=grad_fn, tx=tx, capacity=depth + 1, width=cluster.workers)

    def init_fn(params, key, *, model_state=None):
        state = AdaSyncState(
            training=begin(setup, params, key, model_state=model_state),
            service=jnp.asarray(service),
            remaining=jnp.asarray(service[:, 0]),
            read_version=jnp.zeros(setup.width, jnp.int32),
            tasks=jnp.ones(setup.width, jnp.int32),
            k=jnp.asarray(scheme.k, jnp.int32),
            elapsed=jnp.zeros((), jnp.float32),
            loss_sum=jnp.zeros((), jnp.float32),
            loss_updates=jnp.zeros((), jnp.int32),
            first_loss=jnp.full((), jnp.nan, jnp.float32),
        )
        return donation.unshared(state)

    def step_fn(state, batches):
        training = state.training
        step = training.versions.pushed
        state, workers, read_versions, seconds = _wait(scheme, state, step)
        there = workers >= 0
        ages = jnp.where(there, step - read_versions, 0)
        oldest = jnp.minimum(depth, step - training.versions.first)
        arrivals = Arrivals(
            staleness=jnp.where(there, jnp.minimum(ages, oldest), -1),
            worker=workers,
            divisor=state.k.astype(jnp.float32),
        )
        training, report = update(setup, training, (arrivals, batches))
        report = AdaSyncReport(
            metrics=report.metrics,
            k=state.k,
            seconds=seconds,
            staleness=report.staleness,
            workers=workers,
            clipped=(ages > oldest).sum(dtype=jnp.int32),
        )
        value = checks.as_scalar("loss(metrics)", loss(report.metrics))
        state = _choose(scheme, state, value, seconds, interval_seconds)
        return state._replace(training=training), report

    return AdaSync(init_fn, step_fn)


def _service(cluster: Cluster, draws: int, seed: int) -> np.ndarray:
    """Seconds of the first tasks of each worker, float32 [P, draws]."""
    rows = []
    for worker, speed in enumerate(cluster.speeds()):
        times = cluster.draw(worker, draws, seed=seed) * speed.factors[0]
        is_steady = len(speed.factors) == 1 and np.isfinite(times).all()
        if cluster.communication is not None or not is_steady:
            raise ValueError(
                "`cluster` must be without communication, with constant speeds and"
                f" finite times, got {cluster!r} (see worker {worker})."
            )
        rows.append(times)
    return np.asarray(rows, np.float32)


def _wait(
    scheme: KScheme, state: AdaSyncState, step: jax.Array
) -> tuple[AdaSyncState, jax.Array, jax.Array, jax.Array]:
    """Lets K gradients arrive: the state, their workers, versions, and the seconds."""
    each = jnp.arange(len(state.tasks))

    def begin(clocks, chosen, version):
        remaining, read_version, tasks = clocks
        times = state.service[each, tasks % state.service.shape[1]]
        remaining = jnp.where(chosen, times, remaining)
        return remaining, jnp.where(chosen, version, read_version), tasks + chosen

    def arrive(place, carry):
        clocks, workers, read_versions, seconds = carry
        remaining, read_version, tasks = clocks
        worker = jnp.argmin(remaining).astype(jnp.int32)
        waited = remaining[worker]
        workers = workers.at[place].set(worker)
        read_versions = read_versions.at[place].set(read_version[worker])
        remaining = (remaining - waited).at[worker].set(jnp.inf)
        clocks = remaining, read_version, tasks
        if scheme.repeats:  # the last worker waits for the update
            again = (each == worker) & (place < state.k - 1)
            clocks = begin(clocks, again, step)
        return clocks, workers, read_versions, seconds + waited

    clocks = state.remaining, state.read_version, state.tasks
    empty = jnp.full(len(each), -1, jnp.int32)
    clocks, workers, read_versions, seconds = jax.lax.fori_loop(
        0, state.k, arrive, (clocks, empty, empty, jnp.zeros((), jnp.float32))
    )
    idle = jnp.isinf(clocks[0]) | scheme.restarts
    remaining, read_version, tasks = begin(clocks, idle, step + 1)
    state = state._replace(remaining=remaining, read_version=read_version, tasks=tasks)
    return state, workers, read_versions, seconds


def _choose(
    scheme: KScheme,
    state: AdaSyncState,
    loss: jax.Array,
    seconds: jax.Array,
    interval_seconds: ArrayLike,
) -> AdaSyncState:
    """Adds an update to the interval, and chooses K at its end."""
    elapsed = state.elapsed + seconds
    loss_sum = state.loss_sum + loss.astype(jnp.float32)
    loss_updates = state.loss_updates + 1
    is_over = elapsed >= interval_seconds
    mean = loss_sum / loss_updates
    first = jnp.where(is_over & jnp.isnan(state.first_loss), mean, state.first_loss)
    ratio = first / mean
    initial, workers = float(scheme.k), float(len(state.tasks))
    if scheme.repeats:
        wanted = initial * jnp.sqrt(ratio)
    elif initial == workers:
        wanted = jnp.asarray(workers)
    else:  # the positive root of K^2 + c K - c P
        c = initial**2 / (workers - initial) * ratio
        # (sqrt(c^2 + 4 c P) - c) / 2 would lose its digits for large c
        wanted = 2.0 * workers / (1.0 + jnp.sqrt(1.0 + 4.0 * workers / c))
    wanted = jnp.where(wanted > 0, wanted, 0.0)  # if the loss is nan, K stays
    k = jnp.clip(jnp.round(wanted), state.k, workers).astype(jnp.int32)
    return state._replace(
        k=jnp.where(is_over, k, state.k),
        elapsed=jnp.where(is_over, 0.0, elapsed),
        loss_sum=jnp.where(is_over, 0.0, loss_sum),
        loss_updates=jnp.where(is_over, 0, loss_updates),
        first_loss=first,
    )
