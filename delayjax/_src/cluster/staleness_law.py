"""The law of staleness that renewal theory gives for a cluster."""

import collections
import math
import warnings

import numpy as np

from delayjax._src.cluster.cluster import Cluster
from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.cluster.staleness import StalenessLaw
from delayjax._src.ground import checks

_CELLS = 300  # of the shortest mean time
_MOST_CELLS = 2**14  # of the longest time
_NODES = 400  # service times of a worker
_LEFT_OUT = 1e-6  # share of the longest service times that count as the longest node
_NOTHING = 1e-10  # of a probability
_DEVIATIONS = 10  # of the staleness during the longest time
_LONGEST = 5000  # shortest means
_SHARES = np.arange(1, 40) / 40  # if two of these quantiles are equal, a time repeats
_REMEDY = ": simulate it, and take Trace.staleness_law()."


def staleness_law(cluster: Cluster) -> StalenessLaw:
    """The staleness of plain asynchronous SGD, with one gradient an update.

    While worker i computes for T_i seconds, every other worker j delivers N_j(T_i)
    gradients. Workers never wait: at any moment the rest of worker j's task has the
    density P(T_j > t) / E T_j. With rates nu_i of sum nu,

        E u^tau = sum_i nu_i/nu E prod_{j != i} E u^{N_j(T_i)},    mean tau = P - 1
        P(N_j(t) >= n) = (rest_j * F_j^{*(n-1)})(t)

    Exponential times give a geometric law, equal constant times give tau = P - 1.

    The workers' tasks must end independently. Times that repeat keep workers in step:
    of constant times 1, 2 and 2 s, the last two always end together. On a grid, as 1, 2
    and 3 s, tasks end at the same moment, and the order of these decides. The law then
    has the right mean, but its shape may be far off. There is a warning if a time has a
    probability above 5 %. Finer grids are not noticed.

    Args:
        cluster: a cluster with `ServiceTime`s, constant factors as slowdowns, no
            communication, and no time above 5000 times the shortest mean. Simulate
            other clusters.

    Returns:
        The law, within 0.005 in total variation if times are continuous, or constant
        and equal. It takes 0.1 s for 16 equal workers, some seconds for 1000, and grows
        as the square of the number of different workers.

    Example:
        >>> from delayjax.cluster import exponential
        >>> law = staleness_law(Cluster(4, exponential(1.0)))
        >>> round(law.mean, 3), law.pmf[:3].round(3).tolist()  # geometric, ratio 3/4
        (3.0, [0.25, 0.188, 0.141])

    References:
        Yu, Chen and Poor, arXiv:2406.11159; Cox, Renewal Theory, 1962.
    """
    kinds = _kinds(cluster)
    times, numbers = list(kinds), list(kinds.values())
    nodes = [_nodes(time) for time in times]
    every = np.concatenate([seconds for seconds, _ in nodes])
    if _repeating(kinds) > 1 and np.ptp(every) > 0:
        warnings.warn(
            "`cluster` has workers whose times repeat, so they may stay in step: the"
            f" mean of this law is right, its shape may be far off{_REMEDY}",
            stacklevel=2,
        )
    shortest, longest = min(time.mean for time in times), every.max()
    if longest > _LONGEST * shortest:
        raise ValueError(
            f"`cluster` must not have times above {_LONGEST} times the shortest mean,"
            f" got {longest:.4g} s and {shortest:.4g} s{_REMEDY}"
        )
    cell = max(shortest / _CELLS, longest / _MOST_CELLS)
    counts = [_counts(time, every, cell) for time in times]
    size = _size(counts, numbers, int(every.argmax()))
    shares = np.array(numbers) / [time.mean for time in times]
    transformed, first = np.zeros(size // 2 + 1, complex), 0
    for index, (_, weights) in enumerate(nodes):
        rows = slice(first, first + len(weights))
        others = np.ones((len(weights), size // 2 + 1), complex)
        for other, (count, number) in enumerate(zip(counts, numbers, strict=True)):
            left = number - (other == index)
            if left:
                others *= np.fft.rfft(count[rows], size) ** left
        transformed += shares[index] / shares.sum() * (weights @ others)
        first += len(weights)
    pmf = np.maximum(np.fft.irfft(transformed, size), 0)
    pmf = pmf[: np.flatnonzero(pmf > _NOTHING)[-1] + 1]
    return StalenessLaw(pmf / pmf.sum())


def _kinds(cluster: Cluster) -> dict[ServiceTime, int]:
    """The different service times, and the number of workers of each."""
    workers = collections.Counter()
    for worker, speed in enumerate(cluster.speeds()):
        service = cluster.service_of(worker)
        service = checks.check_instance("service", service, ServiceTime)
        if cluster.communication is not None or len(speed.factors) != 1:
            raise ValueError(
                f"`cluster` must have constant speeds, unlike worker {worker}, and no"
                f" communication{_REMEDY}"
            )
        remedy = f"leave out worker {worker}"
        checks.as_finite("service.mean", service.mean, positive=True, remedy=remedy)
        workers[service, speed.factors[0]] += 1
    return {time.scaled(factor): count for (time, factor), count in workers.items()}


def _repeating(kinds: dict[ServiceTime, int]) -> int:
    """The number of workers that have a time which repeats."""
    return sum(
        number
        for time, number in kinds.items()
        if not np.diff(time.quantile(_SHARES)).all()
    )


def _nodes(time: ServiceTime) -> tuple[np.ndarray, np.ndarray]:
    """Service times, closer where they are short, and their probabilities."""
    low, high = time.quantile(_NOTHING), time.quantile(1 - _LEFT_OUT)
    edges = low + (high - low) * np.linspace(0, 1, _NODES + 1) ** 2
    below = 1 - time.survival(edges)
    below[0], below[-1] = 0, 1
    weights = np.diff(below)
    middle = (below[1:] + below[:-1]) / 2
    counted = weights > 0
    return np.asarray(time.quantile(middle))[counted], weights[counted]


def _counts(time: ServiceTime, seconds: np.ndarray, cell: float) -> np.ndarray:
    """P(a worker delivers n gradients in the time t), float64 [times, n].

    The times t begin at any moment. Service times are rounded to a grid.
    """
    points = math.ceil(1.01 * seconds.max() / cell) + 2
    left = time.survival((np.arange(points) + 0.5) * cell)
    whole = np.fft.rfft(-np.diff(left, prepend=1.0), 2 * points)
    # rounding changes the mean; scale the times t by the same factor
    mean = cell * left.sum() if left[-1] < _NOTHING else time.mean
    at = seconds * (mean / time.mean) / cell
    before = np.floor(at).astype(int)
    at_least = np.append(0, np.cumsum(left)[:-1]) * cell / mean
    rows = [np.ones(len(at))]  # P(N(t) >= n)
    while at_least[-1] > _NOTHING:
        low, high = at_least[before], at_least[before + 1]
        rows.append(low + (high - low) * (at - before))
        spread = np.fft.rfft(at_least, 2 * points) * whole
        at_least = np.fft.irfft(spread, 2 * points)[:points]
    return -np.diff(rows, axis=0, append=0.0).T


def _size(counts: list[np.ndarray], numbers: list[int], longest: int) -> int:
    """A power of two above the largest staleness, during the longest time."""
    mean = variance = 0.0
    for count, number in zip(counts, numbers, strict=True):
        n = np.arange(count.shape[1])
        mean_count = n @ count[longest]
        mean += number * mean_count
        variance += number * (n**2 @ count[longest] - mean_count**2)
    largest = mean + _DEVIATIONS * math.sqrt(max(variance, 0.0)) + _DEVIATIONS
    return 2 ** math.ceil(math.log2(largest))
