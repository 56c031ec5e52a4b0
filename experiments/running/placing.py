"""The workers that a process feeds, and the placement of their data on devices."""

import math

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.running.meshes import Axes


def workers_here(fed: jax.sharding.Sharding, axes: Axes) -> np.ndarray:
    """The workers that this process feeds, in order; all if they are simulated.

    Args:
        fed: the sharding of the arrays of a chunk.
        axes: the axes of all workers.
    """
    numbers = _numbers(axes)
    if isinstance(fed, NamedSharding):  # regardless of how examples are divided
        fed = NamedSharding(fed.mesh, P(*fed.spec[: 1 + numbers.ndim]))
    parts = fed.addressable_devices_indices_map((1, *numbers.shape)).values()
    return np.unique(np.concatenate([np.ravel(numbers[part[1:]]) for part in parts]))


def _numbers(axes: Axes) -> np.ndarray:
    """The workers' numbers, by their places along the axes."""
    return np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))


def divided(axes: Axes, leaf: np.ndarray) -> np.ndarray:
    """[chunk, workers, ...] -> [chunk, *axes, ...]; unchanged for one worker."""
    if not axes:
        return leaf
    return leaf.reshape(leaf.shape[0], *axes.values(), *leaf.shape[2:])


def placed(leaf: np.ndarray, fed: NamedSharding, axes: Axes) -> jax.Array:
    """[chunk, workers of a process, ...] -> [chunk, *axes, ...] of all workers."""
    here, numbers = workers_here(fed, axes), _numbers(axes)
    first = 1 + numbers.ndim  # the dimension after those of the workers

    def of_device(part):
        workers = np.searchsorted(here, numbers[part[1:first]])
        return leaf[:, workers][(slice(None),) * first + part[first:]]

    shape = leaf.shape[0], *numbers.shape, *leaf.shape[2:]
    return jax.make_array_from_callback(shape, fed, of_device)
