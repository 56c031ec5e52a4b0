"""Service laws: how long a worker takes for a gradient.

A law is called once for each worker, `law(rng, worker)`, and yields arrays of seconds,
of any length: the times of that worker's tasks, in order. A generator function is the
natural way to write one, and its local variables are the worker's state:

    def warming_up(rng, worker):
        yield np.linspace(2.0, 1.0, 100)  # a hundred tasks, faster and faster
        while True:
            yield rng.exponential(1.0, 256)

Each worker draws from a generator of its own, so its k-th task takes equally long under
every protocol. `inf` is a task that never ends.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from delayjax import base

Service = Callable[[np.random.Generator, int], Iterator[np.ndarray]]
"""(the worker's generator, worker) -> blocks of seconds, float64 [n]."""

_SHARED = 2**32 - 1  # no worker has this number
_FIRST, _LONGEST = 8, 512  # tasks in a block: few at first, for many workers do few


def independent(draw: Callable[[np.random.Generator, int], ArrayLike]) -> Service:
    """Tasks whose times are independent of each other.

    Args:
        draw: (rng, size) -> seconds [size]; any sampler of `np.random.Generator`.

    Raises:
        TypeError: if `draw` is not a function.

    Example:
        >>> law = independent(lambda rng, size: 1.0 + rng.weibull(2.0, size))
        >>> bool((next(law(np.random.default_rng(0), 0)) > 1.0).all())
        True
    """
    if not callable(draw):
        raise TypeError(
            f"`draw` must be a function of (rng, size), got {draw!r}: for a fixed time"
            " use constant(seconds)."
        )

    def law(rng, worker):
        del worker
        for size in _sizes():
            yield np.asarray(draw(rng, size), np.float64)

    return law


def constant(seconds: float) -> Service:
    """Every task takes equally long: T = seconds.

    Args:
        seconds: of one gradient.

    Raises:
        ValueError: if it is not positive and finite.

    Example:
        >>> next(constant(2.0)(np.random.default_rng(0), 0))[:3]
        array([2., 2., 2.])
    """
    base.check_number("seconds", seconds, positive=True)
    return independent(lambda rng, size: np.full(size, seconds, np.float64))


def exponential(mean_seconds: float) -> Service:
    """Memoryless tasks: P(T > t) = exp(-t / mean).

    Args:
        mean_seconds: of one gradient.

    Raises:
        ValueError: if it is not positive and finite.

    Example:
        >>> block = next(exponential(2.0)(np.random.default_rng(0), 0))
        >>> bool((block > 0).all())
        True
    """
    base.check_number("mean_seconds", mean_seconds, positive=True)
    return independent(lambda rng, size: rng.exponential(mean_seconds, size))


def shifted_exponential(shift_seconds: float, mean_seconds: float) -> Service:
    """A fixed part and a memoryless one: T = shift + Exp(mean).

    Args:
        shift_seconds: the fixed part.
        mean_seconds: of the memoryless part; the whole has mean shift + mean.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> block = next(shifted_exponential(1.0, 2.0)(np.random.default_rng(0), 0))
        >>> bool((block > 1.0).all())
        True

    References:
        Dutta, Joshi, Ghosh, Dube and Nagpurkar, Slow and stale gradients can win the
        race, AISTATS 2018, arXiv:1803.01113.
    """
    base.check_number("shift_seconds", shift_seconds, positive=True)
    base.check_number("mean_seconds", mean_seconds, positive=True)
    return independent(
        lambda rng, size: shift_seconds + rng.exponential(mean_seconds, size)
    )


def gamma(mean_seconds: float, shape: float) -> Service:
    """Tasks of `shape` memoryless stages; the squared coefficient of variation is
    1 / shape.

    Args:
        mean_seconds: of one gradient.
        shape: 1 is exponential, large is nearly constant.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> block = next(gamma(2.0, 4.0)(np.random.default_rng(0), 0))
        >>> bool((block > 0).all())
        True
    """
    base.check_number("mean_seconds", mean_seconds, positive=True)
    base.check_number("shape", shape, positive=True)
    return independent(lambda rng, size: rng.gamma(shape, mean_seconds / shape, size))


def lognormal(mean_seconds: float, cv: float) -> Service:
    """A homogeneous cluster's jitter: log T is normal.

        log T ~ N(log mean - s^2 / 2, s^2),  s^2 = log(1 + cv^2)

    Args:
        mean_seconds: of one gradient.
        cv: coefficient of variation, standard deviation over mean; about 0.05 for equal
            machines with blocking transfers.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> block = next(lognormal(2.0, 0.05)(np.random.default_rng(0), 0))
        >>> bool((abs(block - 2.0) < 1.0).all())
        True
    """
    base.check_number("mean_seconds", mean_seconds, positive=True)
    base.check_number("cv", cv, positive=True)
    variance = math.log1p(cv**2)
    location = math.log(mean_seconds) - variance / 2
    return independent(
        lambda rng, size: rng.lognormal(location, math.sqrt(variance), size)
    )


def pareto(scale_seconds: float, shape: float) -> Service:
    """Heavy tails: P(T > t) = (scale / t)^shape for t >= scale.

    Args:
        scale_seconds: the shortest time.
        shape: the tail's exponent; the mean is infinite up to 1, the variance up to 2.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> block = next(pareto(2.0, 3.0)(np.random.default_rng(0), 0))
        >>> bool((block >= 2.0).all())
        True
    """
    base.check_number("scale_seconds", scale_seconds, positive=True)
    base.check_number("shape", shape, positive=True)
    # numpy's is the Lomax law, which begins at 0
    return independent(
        lambda rng, size: scale_seconds * (1.0 + rng.pareto(shape, size))
    )


def infinite_bernoulli(seconds: float, hang_probability: float) -> Service:
    """A task takes `seconds`, or never ends.

        P(T = inf) = hang_probability

    Args:
        seconds: of a task that ends.
        hang_probability: of each task, independently.

    Raises:
        ValueError: if `seconds` is not positive and finite, or the probability is not
            in [0, 1).

    Example:
        >>> law = infinite_bernoulli(1.0, 0.5)
        >>> sorted(set(next(law(np.random.default_rng(0), 0)).tolist()))
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
    """Workers that are slow for a while: Gilbert and Elliott's two-state chain.

    A slow worker takes `slowdown` times as long. From task to task

        P(fast -> slow) = enter,  P(slow -> fast) = leave

    so a share enter / (enter + leave) of the tasks is slow, the chain's correlation is
    1 - enter - leave, and a worker stays slow for 1 / leave tasks on average. The first
    task is drawn from the stationary law.

    Args:
        service: the law of a fast worker.
        slowdown: how many times longer a slow task takes.
        enter: probability that a fast worker's next task is slow.
        leave: probability that a slow worker's next task is fast.

    Raises:
        TypeError: if `service` is not a law.
        ValueError: if `slowdown` is not positive and finite, a probability is not in
            [0, 1], or both are zero.

    Example:
        >>> law = markov_stragglers(constant(1.0), 5.0, enter=0.1, leave=0.4)
        >>> sorted(set(next(law(np.random.default_rng(1), 0)).tolist()))
        [1.0, 5.0]

    References:
        Buyukates, Ozfatura, Ulukus and Gunduz, Gradient coding with dynamic clustering,
        arXiv:2011.01922.
    """
    check_law("service", service)
    base.check_number("slowdown", slowdown, positive=True)
    _check_probability("enter", enter)
    _check_probability("leave", leave)
    if enter + leave == 0:
        raise ValueError(
            "`enter` and `leave` must not both be 0, got 0 and 0: no worker would ever"
            " change; slow workers for good are Cluster(slowdown=[...])."
        )

    def law(rng, worker):
        # a stream of its own, so that the fast law's draws stay what they are
        chain = rng.spawn(1)[0]
        slow = chain.random() < enter / (enter + leave)
        for block in service(rng, worker):
            factors = np.ones(len(block))
            for task, draw in enumerate(chain.random(len(block))):
                factors[task] = slowdown if slow else 1.0
                slow = draw >= leave if slow else draw < enter
            yield block * factors

    return law


def sleepers(
    seconds: float, sleep_seconds: float, workers: int, *, asleep: int = 2
) -> Service:
    """Some workers sleep at each task, others at the next: WAGMA's imbalance.

        T = seconds + sleep_seconds  on the workers drawn for task k, else seconds

    For each k `asleep` numbers are drawn uniformly from 0, ..., workers - 1, perhaps
    the same, and alike for all workers; so this law is not independent between them.
    The workers must share one seed, so only a `Cluster` can draw from it.

    Args:
        seconds: of a task.
        sleep_seconds: what a sleeper takes longer; 0.32 in the paper.
        workers: P, of the whole cluster.
        asleep: how many numbers are drawn.

    Raises:
        TypeError: if `workers` or `asleep` is no integer.
        ValueError: if a time is not positive and finite, `workers` is below 1 or
            `asleep` negative; from `Cluster` if it has another number of workers; from
            the law if it is called with a generator that is not a cluster's, for the
            sleepers would then differ between the workers.

    Example:
        >>> from delayjax.cluster import Cluster
        >>> two = Cluster(2, sleepers(1.0, 0.5, 2, asleep=1))
        >>> first, second = (two.draw(worker, 8, seed=0) for worker in (0, 1))
        >>> sorted(set((first + second).tolist()))  # one of the two sleeps
        [2.5]

    References:
        Li et al. (WAGMA-SGD), 2021, arXiv:2005.00124, and its code
        Shigangli/WAGMA-SGD: two of P ranks sleep 0.32 s, from a seed that all share.
    """
    base.check_number("seconds", seconds, positive=True)
    base.check_number("sleep_seconds", sleep_seconds, positive=True)
    workers = base.check_bound("workers", workers, at_least=1)
    asleep = base.check_bound("asleep", asleep)
    return Sleepers(float(seconds), float(sleep_seconds), workers, asleep)


@dataclasses.dataclass(frozen=True)
class Sleepers:
    """The law of `sleepers`, which knows for how many workers it is."""

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
                "`rng` must be the generator that a Cluster makes for worker"
                f" {worker}, got one of another seed: the workers would not agree on"
                " who sleeps. Draw with Cluster(workers, sleepers(...)).draw(worker,"
                " size, seed=...)."
            )
        # the worker's own seed, without what tells it from the others'
        shared = np.random.SeedSequence(
            seeds.entropy, spawn_key=(_SHARED, *own_key[1:])
        )
        return self._blocks(np.random.default_rng(shared), worker)

    def _blocks(self, shared: np.random.Generator, worker: int) -> Iterator[np.ndarray]:
        for size in _sizes():
            drawn = shared.integers(self.workers, size=(size, self.asleep))
            sleeps = (drawn == worker).any(axis=1)
            yield self.seconds + self.sleep_seconds * sleeps


def empirical(samples: ArrayLike) -> Service:
    """Times that were measured, drawn with replacement.

    Args:
        samples: seconds [n].

    Raises:
        ValueError: if there are none, or one is negative or not a number.

    Example:
        >>> block = next(empirical([1.0, 1.5])(np.random.default_rng(0), 0))
        >>> sorted(set(block.tolist()))
        [1.0, 1.5]
    """
    times = base.as_reals("samples", samples)
    if times.ndim != 1 or not times.size or not (times >= 0).all():
        raise ValueError(
            "`samples` must be a vector of at least one time, none of them negative or"
            f" nan, got {samples!r}."
        )
    return independent(lambda rng, size: rng.choice(times, size))


def by_batch(seconds_of: Callable[[int, np.ndarray], ArrayLike]) -> Service:
    """Times that depend on the batch: long sequences make stragglers.

    Task k of a worker is the gradient on that worker's k-th batch.

    Args:
        seconds_of: (worker, tasks) -> seconds [n] of its tasks int64 [n].

    Raises:
        TypeError: if `seconds_of` is not a function.
        ValueError: when it is drawn from, if there are not as many seconds as tasks.

    Example:
        >>> lengths = np.asarray([[10, 20, 10], [10, 10, 40]])  # [workers, tasks]
        >>> law = by_batch(lambda worker, tasks: 0.1 * lengths[worker, tasks % 3])
        >>> next(law(np.random.default_rng(0), 1))[:4]
        array([1., 1., 4., 1.])
    """
    if not callable(seconds_of):
        raise TypeError(
            f"`seconds_of` must be a function of (worker, tasks), got {seconds_of!r}."
        )

    def law(rng, worker):
        del rng
        first = 0
        for size in _sizes():
            tasks = np.arange(first, first + size)
            seconds = np.asarray(seconds_of(worker, tasks), np.float64)
            if seconds.shape != tasks.shape:
                raise ValueError(
                    "`seconds_of` must give as many seconds as tasks, got shape"
                    f" {seconds.shape} for {size} tasks."
                )
            yield seconds
            first += size

    return law


def check_law(name: str, law: Any) -> None:
    """Checks that `law` can be called.

    Args:
        name: of the argument.
        law: what was given for it.

    Raises:
        TypeError: if it is no law.

    Example:
        >>> check_law("service", exponential(1.0))
    """
    if not callable(law):
        raise TypeError(
            f"`{name}` must be a service law such as cluster.exponential(1.0), got"
            f" {law!r}."
        )


def _sizes() -> Iterator[int]:
    size = _FIRST
    while True:
        yield size
        size = min(2 * size, _LONGEST)


def _check_probability(name: str, value: float) -> None:
    base.check_number(name, value)
    if value > 1.0:
        raise ValueError(f"`{name}` must lie in [0, 1], got {value}.")
