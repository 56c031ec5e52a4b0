"""Services: the seconds of each task of a worker, also with memory or without end.

A service is called once for each worker, `service(rng, worker)`, and yields arrays of
seconds, of any length: the times of that worker's tasks, in order. A `ServiceTime` is
one. A service of your own is a generator function; its local variables are the
worker's state:

    def warming_up(rng, worker):
        yield np.linspace(2.0, 1.0, 100)  # a hundred tasks, faster and faster
        while True:
            yield rng.exponential(1.0, 256)

Each worker has its own generator, so its k-th task takes equally long under every
protocol. `inf` is a task that never ends.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src import base
from delayjax._src.cluster.service_time import block_sizes

Service = Callable[[np.random.Generator, int], Iterator[np.ndarray]]
"""(the worker's generator, worker) -> blocks of seconds, float64 [n]."""

_SHARED = 2**32 - 1  # no worker has this number


def independent(draw: Callable[[np.random.Generator, int], ArrayLike]) -> Service:
    """Tasks with independent times, from any sampler.

    `from_scipy` and `empirical` make services with formulas for rates and limits.

    Args:
        draw: (rng, size) -> seconds [size]; any sampler of `np.random.Generator`.

    Example:
        >>> service = independent(lambda rng, size: 1.0 + rng.weibull(2.0, size))
        >>> bool((next(service(np.random.default_rng(0), 0)) > 1.0).all())
        True
    """

    def service(rng, worker):
        del worker
        for size in block_sizes():
            yield np.asarray(draw(rng, size), np.float64)

    return service


def infinite_bernoulli(seconds: float, hang_probability: float) -> Service:
    """A task takes `seconds`, or never ends.

        P(T = inf) = hang_probability

    Args:
        seconds: of a task that ends.
        hang_probability: of each task, independently.

    Example:
        >>> service = infinite_bernoulli(1.0, 0.5)
        >>> sorted(set(next(service(np.random.default_rng(0), 0)).tolist()))
        [1.0, inf]

    References:
        Maranjyan, Omar and Richtarik, MindFlayer, arXiv:2410.04285.
    """
    base.check_number("seconds", seconds, positive=True)
    base.check_number("hang_probability", hang_probability, below=1.0)
    return independent(
        lambda rng, size: np.where(rng.random(size) < hang_probability, np.inf, seconds)
    )


def markov_stragglers(
    service: Service, slowdown: float, enter: float, leave: float
) -> Service:
    """Workers that are slow for some tasks: Gilbert and Elliott's two-state chain.

    A slow worker takes `slowdown` times as long. From task to task

        P(fast -> slow) = enter,  P(slow -> fast) = leave

    A share enter / (enter + leave) of the tasks is slow, the correlation of successive
    tasks is 1 - enter - leave, and a worker stays slow for 1 / leave tasks on average.
    The first task is drawn from the stationary chain.

    Args:
        service: of a fast worker.
        slowdown: how many times longer a slow task takes.
        enter: probability that a fast worker's next task is slow.
        leave: probability that a slow worker's next task is fast.

    Raises:
        ValueError: if a probability is not in [0, 1], or both are zero.

    Example:
        >>> from delayjax.cluster import constant
        >>> service = markov_stragglers(constant(1.0), 5.0, enter=0.1, leave=0.4)
        >>> sorted(set(next(service(np.random.default_rng(1), 0)).tolist()))
        [1.0, 5.0]

    References:
        Buyukates, Ozfatura, Ulukus and Gunduz, Gradient coding with dynamic clustering,
        arXiv:2011.01922.
    """
    base.check_number("slowdown", slowdown, positive=True)
    for name, value in {"enter": enter, "leave": leave}.items():
        base.check_number(name, value)
        if value > 1.0:
            raise ValueError(f"`{name}` must lie in [0, 1], got {value}.")
    if enter + leave == 0:
        raise ValueError(
            "`enter` and `leave` must not both be 0, got 0 and 0: workers with a"
            " constant speed are Cluster(slowdown=[...])."
        )

    def slow_at_times(rng, worker):
        # a stream of its own, so that the fast worker's draws stay the same
        chain = rng.spawn(1)[0]
        slow = chain.random() < enter / (enter + leave)
        for block in service(rng, worker):
            factors = np.ones(len(block))
            for task, draw in enumerate(chain.random(len(block))):
                factors[task] = slowdown if slow else 1.0
                slow = draw >= leave if slow else draw < enter
            yield block * factors

    return slow_at_times


def sleepers(
    seconds: float, sleep_seconds: float, workers: int, *, asleep: int = 2
) -> Service:
    """Some workers sleep at each task: WAGMA's imbalance.

        T = seconds + sleep_seconds  on the workers drawn for task k, else seconds

    For each k, `asleep` numbers are drawn uniformly from 0, ..., workers - 1, with
    replacement. All workers see the same draws, so their times are not independent. The
    workers must share one seed: draw with a `Cluster`.

    Args:
        seconds: of a task.
        sleep_seconds: how much longer a sleeper takes; 0.32 in the paper.
        workers: P of the cluster.
        asleep: how many numbers are drawn for a task.

    Raises:
        ValueError: if a number is out of range; from `Cluster` if it has another number
            of workers; from the service if its generator is not a cluster's.

    Example:
        >>> from delayjax.cluster import Cluster
        >>> two = Cluster(2, sleepers(1.0, 0.5, 2, asleep=1))
        >>> first, second = (two.draw(worker, 8, seed=0) for worker in (0, 1))
        >>> sorted(set((first + second).tolist()))  # one of the two sleeps
        [2.5]

    References:
        Li et al. (WAGMA-SGD), 2021, arXiv:2005.00124, and its code
        Shigangli/WAGMA-SGD: two of P ranks sleep 0.32 s, from one seed.
    """
    base.check_number("seconds", seconds, positive=True)
    base.check_number("sleep_seconds", sleep_seconds, positive=True)
    workers = base.check_bound("workers", workers, at_least=1)
    asleep = base.check_bound("asleep", asleep)
    return Sleepers(float(seconds), float(sleep_seconds), workers, asleep)


@dataclasses.dataclass(frozen=True)
class Sleepers:
    """The service of `sleepers`; a `Cluster` checks its number of workers."""

    seconds: float
    sleep_seconds: float
    workers: int
    asleep: int

    def __call__(self, rng: np.random.Generator, worker: int) -> Iterator[np.ndarray]:
        """Seconds of the worker's tasks, from the seed that all workers share."""
        seeds: Any = getattr(rng.bit_generator, "seed_seq", None)
        own_key = getattr(seeds, "spawn_key", ())
        if own_key[:1] != (worker,):
            raise ValueError(
                f"`rng` must be the generator that a Cluster makes for worker {worker},"
                " got one of another seed, and workers would not agree on the"
                " sleepers: draw with Cluster(workers, sleepers(...)).draw(worker,"
                " size, seed=...)."
            )
        # the worker's seed without the worker's number
        shared = np.random.SeedSequence(
            seeds.entropy, spawn_key=(_SHARED, *own_key[1:])
        )
        draws = np.random.default_rng(shared)
        for size in block_sizes():
            drawn = draws.integers(self.workers, size=(size, self.asleep))
            sleeps = (drawn == worker).any(axis=1)
            yield self.seconds + self.sleep_seconds * sleeps


def by_batch(seconds_of: Callable[[int, np.ndarray], ArrayLike]) -> Service:
    """Times that depend on the batch: long sequences make stragglers.

    Task k of a worker is the gradient on that worker's k-th batch.

    Args:
        seconds_of: (worker, tasks) -> seconds [n] of its tasks int64 [n].

    Raises:
        ValueError: from the service, if there are not as many seconds as tasks.

    Example:
        >>> lengths = np.asarray([[10, 20, 10], [10, 10, 40]])  # [workers, tasks]
        >>> service = by_batch(lambda worker, tasks: 0.1 * lengths[worker, tasks % 3])
        >>> next(service(np.random.default_rng(0), 1))[:4]
        array([1., 1., 4., 1.])
    """

    def service(rng, worker):
        del rng
        first = 0
        for size in block_sizes():
            tasks = np.arange(first, first + size)
            seconds = np.asarray(seconds_of(worker, tasks), np.float64)
            if seconds.shape != tasks.shape:
                raise ValueError(
                    "`seconds_of` must give as many seconds as tasks, got shape"
                    f" {seconds.shape} for {size} tasks."
                )
            yield seconds
            first += size

    return service
