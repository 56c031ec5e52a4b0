"""Examples in memory: the held-out split and the order of the training batches."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.tasks.task import WHOLE, at_least


def split(
    size: int, *, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits `size` examples into training and held-out ones.

    Args:
        size: the number of examples.
        test_fraction: the share of examples to hold out.
        seed: fixes the split.

    Returns:
        Two sorted integer arrays with every index in exactly one of them.

    Example:
        >>> train, test = split(8, test_fraction=0.25, seed=0)
        >>> len(train), len(test), sorted([*train, *test]) == list(range(8))
        (6, 2, True)
    """
    held_out = round(test_fraction * size)
    order = np.random.default_rng(seed).permutation(size)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def shuffled(examples: Mapping[str, np.ndarray], batch_size: int) -> Callable[..., Any]:
    """Batches that pass over the examples epoch by epoch, in a new order each epoch.

    Step t takes positions t b .. t b + b - 1 of the endless sequence of permutations

        pi_0, pi_1, pi_2, ...   with pi_e drawn from (seed, e)

    so an epoch has every example once. No example is dropped where the batch size does
    not divide the number of examples, and no state is carried from step to step.

    Args:
        examples: arrays with one leading axis of examples.
        batch_size: examples per step, b; 0 takes all examples in every step,
            unshuffled.

    Returns:
        batches(seed, start, stop, part=WHOLE) -> arrays [stop - start, b, ...], where
        `part` selects along b. The full batch is a read-only view that takes no memory.

    Raises:
        ValueError: if `batch_size` is negative or exceeds the number of examples.

    Example:
        >>> batches = shuffled({"x": np.arange(6)}, 2)
        >>> sorted(batches(0, 0, 3)["x"].ravel())[:3]
        [np.int64(0), np.int64(1), np.int64(2)]
    """
    size = len(next(iter(examples.values())))
    if not 0 <= batch_size <= size:
        raise ValueError(
            f"`batch_size` must lie in 0 .. {size}, the number of training"
            f" examples, got {batch_size}; 0 is the full batch."
        )

    def full_batch(seed, start, stop, part=WHOLE):
        chosen = {name: array[part] for name, array in examples.items()}
        return {
            name: np.broadcast_to(array, (stop - start, *array.shape))
            for name, array in chosen.items()
        }

    def minibatches(seed, start, stop, part=WHOLE):
        first, last = start * batch_size // size, (stop * batch_size - 1) // size
        order = np.concatenate(
            [
                np.random.default_rng([seed, epoch]).permutation(size)
                for epoch in range(first, last + 1)
            ]
        )
        chosen = order[start * batch_size - first * size :]
        chosen = chosen[: (stop - start) * batch_size].reshape(-1, batch_size)
        return {name: array[chosen[:, part]] for name, array in examples.items()}

    return minibatches if batch_size else full_batch


def dirichlet(
    labels: np.ndarray, workers: int, *, concentration: float, seed: int
) -> np.ndarray:
    """Assigns each example to a worker, so that the workers' classes differ.

    The workers' shares of each class are drawn from a Dirichlet distribution.

    Args:
        labels: the classes, int [examples].
        workers: the number of workers.
        concentration: if it is small, a worker has few classes; if it is large, every
            worker has all classes in about equal shares.
        seed: fixes the draw.

    Returns:
        The worker of each example, int [examples]. Every worker has at least one
        example.

    References:
        Hsu, Qi and Brown, 2019, arXiv:1909.06335.
    """
    at_least("workers", workers, 1)
    if not concentration > 0 or workers > len(labels):
        raise ValueError(
            "`concentration` must be positive and `workers` no more than the examples,"
            f" got {concentration} and {workers} of {len(labels)}."
        )
    rng = np.random.default_rng(seed)
    owner = np.zeros(len(labels), int)
    for label in np.unique(labels):
        there = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet([concentration] * workers)
        ends = np.round(np.cumsum(shares) * len(there)).astype(int)
        owner[there] = np.searchsorted(ends, np.arange(len(there)), side="right")
    owner = np.minimum(owner, workers - 1)
    for worker in np.setdiff1d(np.arange(workers), owner):
        richest = np.bincount(owner, minlength=workers).argmax()
        owner[np.flatnonzero(owner == richest)[0]] = worker
    return owner


def of_workers(
    examples: Mapping[str, np.ndarray], batch_size: int, owner: np.ndarray
) -> Callable[..., Any]:
    """Batches that each worker draws from its examples, with replacement.

    Args:
        examples: arrays with one leading axis of examples.
        batch_size: examples per batch.
        owner: the worker of each example, int [examples].

    Returns:
        The `batches_of` of a task.
    """
    places = [np.flatnonzero(owner == worker) for worker in range(owner.max() + 1)]

    def batches(seed, start, workers):
        chosen = [
            np.random.default_rng([seed, start + n]).choice(places[worker], batch_size)
            for n, worker in enumerate(workers)
        ]
        return {name: array[np.stack(chosen)] for name, array in examples.items()}

    return batches
