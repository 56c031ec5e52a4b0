"""Compares protocols on a cluster: time, staleness, and the cost of staleness."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src.advice.advice import Advice, Choice, Mean
from delayjax._src.advice.descent import Bowl, Descent
from delayjax._src.advice.islands import Islands
from delayjax._src.cluster.cluster import Cluster
from delayjax._src.cluster.protocols.bounded_staleness import rennala, ringmaster
from delayjax._src.cluster.protocols.k_scheme import hardsync, k_async, k_sync
from delayjax._src.cluster.protocols.ssp import ssp
from delayjax._src.cluster.server import Server, WaitsForeverError
from delayjax._src.cluster.simulate import name_of, served
from delayjax._src.cluster.staleness import StalenessLaw
from delayjax._src.cluster.trace import Trace
from delayjax._src.ground import checks, kinds

_SHORTEST, _LONGEST = 1000, 64_000  # updates of a trace


def _synchronous(momentum: float) -> float:
    """The limit of eta times curvature, without delay."""
    return 2.0 * (1 + momentum)


@kinds.checked
def advise(
    cluster: Cluster,
    *,
    protocols: Sequence[Callable[[Server], None]] | None = None,
    noise: kinds.NonNegativeFloat = 1.0,
    curvatures: ArrayLike = (0.1, 0.3, 1.0),
    target: kinds.OpenShareFloat = 0.01,
    momentum: kinds.ShareFloat = 0.0,
    seeds: kinds.Several = 5,
) -> Advice:
    """Compares protocols on a cluster: time, staleness, steps, and time to a target.

    The time to a target is simulated: SGD with the best constant step goes down a
    quadratic along the trace of each protocol,

        f(x) = 1/2 sum_i c_i x_i^2,    x(0) = (1, .., 1),    g = c x + s n

    until the mean of f over the noise n, which is computed exactly, is `target` times
    the first. With much noise the gradients that a protocol applies in a second decide.
    With little noise the updates in a second decide, and the step that their staleness
    allows. Every worker's gradients are of the same f: the comparison does not count
    what is lost if the data of a slow worker are never used.

    Args:
        cluster: the workers and their times. Messages take no time unless the cluster
            has a `communication`.
        protocols: protocols of `cluster.protocols`, or functions of a `Server`. The
            others are compared with the first. By default, for P workers, hardsync(),
            k_sync(P - max(1, P // 16)), rennala(P), ssp(3), k_async(1), ringmaster(P).
        noise: the variance of one worker's gradient, summed over the coordinates, over
            the squared length of the mean gradient at first. This is the simple noise
            scale of McCandlish et al. (arXiv:1812.06162) over the worker's batch size.
        curvatures: c, positive, [C].
        target: in (0, 1), a share of the first loss.
        momentum: beta of SGD, in [0, 1): m = beta m + g. With momentum late gradients
            need smaller steps, and pay less often.
        seeds: how often each protocol is simulated, at least 2. Intervals are over the
            seeds; a ratio is their geometric mean. A seed draws the same service times
            under each protocol.

    Returns:
        A table of Python numbers; `str(advice)` shows it. If messages take time,
        `advice.islands` has the period H of workers that each train a model and
        exchange it, as in `averaging.outer`. A comparison takes seconds for tens of
        workers, ten times as long for ten times the noise, and at most 25 C MB of
        memory, or 38 C MB with a momentum of 0.9.

    Raises:
        ValueError: if the cluster has one worker, or an argument is out of its range.
            A protocol that waits forever for a dead worker is no error: its times are
            infinite, and the verdict names it.

    Example:
        >>> from delayjax.cluster import Cluster, constant
        >>> cluster = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 4.0])
        >>> advice = advise(cluster, noise=0.1, seeds=2)
        >>> [choice.protocol for choice in advice.choices[:3]]
        ['hardsync()', 'k_sync(3)', 'rennala(4)']
        >>> [choice.seconds_per_update.mean for choice in advice.choices[:3]]
        [4.0, 1.0, 2.0]
    """
    if cluster.workers == 1:
        raise ValueError(
            "`cluster` must have several workers, got one: it needs no protocol."
        )
    values = checks.as_finite("curvatures", curvatures, positive=True).ravel()
    if not values.size:
        raise ValueError("`curvatures` must hold a number, got none.")
    bowl = Bowl(values, float(noise), float(target), float(momentum))
    given = _usual(cluster.workers) if protocols is None else tuple(protocols)
    if not given:
        raise ValueError("`protocols` must hold a protocol, got none.")
    tables = [name_of(one) for one in given if getattr(one, "aggregation", None)]
    if tables:
        raise ValueError(
            f"`protocols` must use the mean of the gradients, got {', '.join(tables)}:"
            " train along their traces with their `aggregation`."
        )
    runs = [[_run(cluster, one, bowl, seed) for seed in range(seeds)] for one in given]
    choices = [
        _choice(name_of(protocol), its_runs)
        for protocol, its_runs in zip(given, runs, strict=True)
    ]
    assumptions = tuple(_assumptions(cluster, bowl, seeds))
    islands = Islands.from_cluster(cluster)
    ends = [speed.factors[-1] for speed in cluster.speeds()]
    dead = tuple(worker for worker, end in enumerate(ends) if math.isinf(end))
    return Advice(tuple(choices), assumptions, islands, dead)


def _usual(workers: int) -> tuple[Callable[[Server], None], ...]:
    """The default protocols: three without late gradients, then three with them."""
    most = workers - max(1, workers // 16)
    synchronous = hardsync(), k_sync(most), rennala(workers)
    return *synchronous, ssp(3), k_async(1), ringmaster(workers)


class _Run(NamedTuple):
    """A protocol with one seed, without the first tenth of its updates."""

    seconds_per_update: float
    seconds_per_gradient: float
    idle: np.ndarray  # share of each worker's time, [P]
    used: float  # share of the workers' time; computation, as what is not idle
    gradient_shares: np.ndarray  # by worker, [P]
    staleness: StalenessLaw
    max_staleness: int
    step_limit: float
    seconds_to_target: float


def _run(cluster: Cluster, protocol: Any, bowl: Bowl, seed: int) -> _Run:
    """One simulation until the target, and long enough for its staleness."""
    try:
        trace, used = _settled(cluster, protocol, seed)
    except WaitsForeverError:
        return _never(cluster.workers)
    step_limit = _step_limit(trace, bowl.momentum)
    stable = 1.0 if math.isnan(step_limit) else step_limit
    gradients = len(trace.update) / trace.num_updates
    stable *= _synchronous(bowl.momentum) / bowl.curvatures.max()
    largest = bowl.largest_step(gradients, stable)
    updates = max(trace.num_updates, bowl.updates_at(largest))
    arrival, tried = None, 0
    while not arrival and tried < _LONGEST:
        updates = min(updates, _LONGEST)
        if updates > trace.num_updates:
            trace, used = _simulated(cluster, protocol, updates, seed)
        arrival = Descent(trace, bowl, largest).arrival(after=tried)
        updates, tried = 2 * updates, updates
    workers, left_out = trace.num_workers, trace.num_updates // 10
    seconds = trace.seconds[-1] - trace.seconds[left_out]
    kept = trace.num_updates - 1 - left_out
    return _Run(
        seconds_per_update=float(seconds / kept),
        seconds_per_gradient=float(seconds / trace.counts[left_out + 1 :].sum()),
        idle=1 - trace.busy_seconds / trace.seconds[-1],
        used=used / (workers * trace.seconds[-1]),
        gradient_shares=np.bincount(trace.worker, minlength=workers)
        / trace.worker.size,
        staleness=trace.staleness_law(burn_in=left_out),
        max_staleness=trace.max_staleness,
        step_limit=step_limit,
        seconds_to_target=float(trace.seconds[arrival - 1]) if arrival else math.inf,
    )


def _settled(cluster: Cluster, protocol: Any, seed: int) -> tuple[Trace, float]:
    """A trace that is at least 20 times as long as the staleness of 99 %."""
    updates = _SHORTEST
    while True:
        trace, used = _simulated(cluster, protocol, updates, seed)
        late = np.quantile(trace.update - trace.read_version, 0.99)
        if updates >= min(20 * (1 + late), _LONGEST):
            return trace, used
        updates *= 2


def _simulated(
    cluster: Cluster, protocol: Any, updates: int, seed: int
) -> tuple[Trace, float]:
    """A trace, and the seconds of computation of its gradients."""
    server = served(cluster, protocol, updates, seed=seed)
    return server.trace(), server.used_seconds()


def _never(workers: int) -> _Run:
    """The run of a protocol that waits forever for a dead worker."""
    never, unknown = math.inf, np.full(workers, math.nan)
    law = StalenessLaw(np.ones(1))
    return _Run(never, never, unknown, math.nan, unknown, law, 0, math.nan, never)


def _step_limit(trace: Trace, momentum: float) -> float:
    """The largest stable step over the synchronous one; nan if updates are no means."""
    if not np.array_equal(trace.divisor, trace.counts) or not trace.counts.all():
        return math.nan
    if not trace.max_staleness:
        return 1.0
    # stability is loaded on first use: training does not need it
    from delayjax._src.stability.trace_dynamics import TraceDynamics

    limit = TraceDynamics(trace.staleness, momentum=momentum).step_limit().limit
    return limit / _synchronous(momentum)


def _choice(name: str, runs: Sequence[_Run]) -> Choice:
    """The means of the runs."""
    return Choice(
        protocol=name,
        seconds_per_update=Mean.of_times([run.seconds_per_update for run in runs]),
        seconds_per_gradient=Mean.of_times([run.seconds_per_gradient for run in runs]),
        idle_share=Mean.from_values([run.idle.mean() for run in runs]),
        idle_by_worker=np.mean([run.idle for run in runs], axis=0),
        used_share=Mean.from_values([run.used for run in runs]),
        gradient_shares=np.mean([run.gradient_shares for run in runs], axis=0),
        mean_staleness=Mean.from_values([run.staleness.mean for run in runs]),
        max_staleness=max(run.max_staleness for run in runs),
        staleness=_mean_law([run.staleness.pmf for run in runs]),
        step_limit=Mean.from_values([run.step_limit for run in runs]),
        seconds_by_seed=np.array([run.seconds_to_target for run in runs]),
    )


def _mean_law(laws: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of probabilities of 0, 1, ..., some of which have more entries."""
    longest = max(map(len, laws))
    return np.mean([np.pad(law, (0, longest - len(law))) for law in laws], axis=0)


def _assumptions(cluster: Cluster, bowl: Bowl, seeds: int) -> Iterator[str]:
    """The assumptions behind the numbers, in sentences."""
    values = ", ".join(f"{value:g}" for value in bowl.curvatures)
    yield f"{cluster.workers} workers; means over {seeds} seeds, 95 % t intervals."
    yield (
        f"Target: {bowl.target:g} of the first loss on a quadratic with curvatures"
        f" {values}, at the best constant step of each protocol, with momentum"
        f" {bowl.momentum:g}."
    )
    yield (
        "Idle: share of the workers' time without computation; messages are idle time."
        " Used: share of their time in which they computed gradients that were applied."
        " The rest is wasted: computation of other gradients."
    )
    yield (
        "Staleness in updates, without the first tenth of the updates; largest: from"
        " the first update on. Step limit: the largest stable step of SGD over the one"
        " without delay. Times as fast: as the first protocol that reaches the target."
    )
    if cluster.communication is None:
        yield "Messages take no time."
    yield (
        f"Noise: a worker's gradient has {bowl.noise:g} times the squared length of the"
        " mean gradient at first as its variance."
    )
