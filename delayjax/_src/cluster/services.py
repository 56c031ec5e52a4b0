"""Services: the seconds of each task of a worker, which may depend on earlier tasks.

A service is a function `service(rng, worker)` that yields arrays of seconds, of any
length: the times of that worker's tasks, in order; `inf` is a task that never ends.
Each worker has its own `rng`. Write your own as a generator:

    def warming_up(rng, worker):
        yield np.linspace(2.0, 1.0, 100)  # a hundred tasks, faster and faster
        while True:
            yield rng.exponential(1.0, 256)
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src.cluster.service_time import block_sizes, blocks
from delayjax._src.ground import kinds
from delayjax._src.ground.pickling import remembered

Service = Callable[[np.random.Generator, int], Iterator[np.ndarray]]
"""(the worker's generator, worker) -> blocks of seconds, float64 [n]."""

_SHARED = 2**32 - 1  # no worker has this number


@remembered
def independent(draw: Callable[[np.random.Generator, int], ArrayLike]) -> Service:
    """Tasks with independent times from any sampler; theory has no formulas for them.

    Args:
        draw: (rng, size) -> seconds [size]; any sampler of `np.random.Generator`.

    Example:
        >>> service = independent(lambda rng, size: np.ones(size))
        >>> next(service(np.random.default_rng(0), 0))[:2]
        array([1., 1.])
    """
    return lambda rng, worker: blocks(draw, rng)


@remembered
def infinite_bernoulli(
    seconds: kinds.PositiveFloat, hang_probability: kinds.ShareFloat
) -> Service:
    """A task takes `seconds`, or never ends: MindFlayer's model.

    Args:
        seconds: the time of a task that ends.
        hang_probability: P(T = inf) of each task, independently.

    Example:
        >>> times = next(infinite_bernoulli(1.0, 0.5)(np.random.default_rng(0), 0))
        >>> sorted(set(times.tolist()))
        [1.0, inf]

    References:
        Maranjyan, Omar and Richtarik, MindFlayer SGD, UAI 2025, arXiv:2410.04285.
    """
    return independent(
        lambda rng, size: np.where(rng.random(size) < hang_probability, np.inf, seconds)
    )


@remembered
def markov_stragglers(
    service: Service,
    slowdown: kinds.PositiveFloat,
    enter: kinds.Probability,
    leave: kinds.Probability,
) -> Service:
    """Workers that are slow for some tasks: Gilbert and Elliott's two-state chain.

    A share enter / (enter + leave) of the tasks is slow, for 1 / leave tasks at a time
    on average; successive tasks have the correlation 1 - enter - leave. The chain
    begins stationary. As in Buyukates et al., arXiv:2011.01922.

    Args:
        service: the service of a fast worker.
        slowdown: how many times longer a slow task takes.
        enter: P(fast -> slow) from task to task.
        leave: P(slow -> fast).

    Example:
        >>> from delayjax.cluster import constant
        >>> service = markov_stragglers(constant(1.0), 5.0, enter=0.1, leave=0.4)
        >>> sorted(set(next(service(np.random.default_rng(1), 0)).tolist()))
        [1.0, 5.0]
    """
    if enter + leave == 0:
        raise ValueError("`enter` or `leave` must be positive, got 0 and 0.")

    def slow_at_times(rng, worker):
        # a separate stream, so that the fast worker's draws stay the same
        chain = rng.spawn(1)[0]
        slow = chain.random() < enter / (enter + leave)
        for block in service(rng, worker):
            factors = []
            for draw in chain.random(len(block)):
                factors.append(slowdown if slow else 1.0)
                slow = draw >= leave if slow else draw < enter
            yield block * np.asarray(factors)

    return slow_at_times


@kinds.checked
def sleepers(
    seconds: kinds.PositiveFloat,
    sleep_seconds: kinds.PositiveFloat,
    workers: kinds.PositiveInt,
    *,
    asleep: kinds.NonNegativeInt = 2,
) -> Service:
    """Some workers sleep at each task: WAGMA's imbalance.

    In Li et al. (WAGMA-SGD, arXiv:2005.00124) two of P ranks sleep 0.32 s.

    Args:
        seconds: the time of a task without sleep.
        sleep_seconds: how much longer a sleeper takes.
        workers: P, the number of workers of the cluster.
        asleep: how many workers are drawn for a task, uniformly, with replacement; all
            workers of a `Cluster` see the same draws.

    Example:
        >>> from delayjax.cluster import Cluster
        >>> two = Cluster(2, sleepers(1.0, 0.5, 2, asleep=1))
        >>> two.draw(0, 4, seed=0) + two.draw(1, 4, seed=0)  # one of the two sleeps
        array([2.5, 2.5, 2.5, 2.5])
    """
    return Sleepers(float(seconds), float(sleep_seconds), workers, asleep)


@dataclasses.dataclass(frozen=True)
class Sleepers:
    """The service of `sleepers`."""

    seconds: float
    sleep_seconds: float
    workers: int
    asleep: int

    def __call__(self, rng: np.random.Generator, worker: int) -> Iterator[np.ndarray]:
        """Blocks of seconds, from a seed that all workers share."""
        draws = shared_by_workers(rng, worker, "sleepers(...)")
        for size in block_sizes():
            drawn = draws.integers(self.workers, size=(size, self.asleep))
            sleeps = (drawn == worker).any(axis=1)
            yield self.seconds + self.sleep_seconds * sleeps


def shared_by_workers(
    rng: np.random.Generator, worker: int, service: str
) -> np.random.Generator:
    """A generator that makes the same draws for all workers of a cluster."""
    seeds: Any = getattr(rng.bit_generator, "seed_seq", None)
    spawn_key = getattr(seeds, "spawn_key", ())
    if spawn_key[:1] != (worker,):
        raise ValueError(
            f"`rng` must be the generator of a Cluster for worker {worker}: otherwise"
            " workers would see different draws: use"
            f" Cluster(workers, {service}).draw(worker, ...)."
        )
    # the worker's seed without the worker's number
    key = _SHARED, *spawn_key[1:]
    return np.random.default_rng(np.random.SeedSequence(seeds.entropy, spawn_key=key))


@remembered
def by_batch(seconds_of: Callable[[int, np.ndarray], ArrayLike]) -> Service:
    """Times that depend on the batch: long sequences make stragglers.

    Args:
        seconds_of: (worker, tasks int64 [n]) -> seconds [n]; task k is the gradient on
            the worker's k-th batch.

    Example:
        >>> lengths = np.asarray([[10, 20, 10], [10, 10, 40]])  # [workers, tasks]
        >>> service = by_batch(lambda worker, tasks: 0.1 * lengths[worker, tasks % 3])
        >>> next(service(np.random.default_rng(0), 1))[:4]
        array([1., 1., 4., 1.])
    """

    def service(rng, worker):
        first = 0
        for size in block_sizes():
            tasks = np.arange(first, first + size)
            yield np.broadcast_to(seconds_of(worker, tasks), size).astype(np.float64)
            first += size

    return service
