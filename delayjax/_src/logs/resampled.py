"""A service that draws recorded times again, the same steps for all workers."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from delayjax._src.cluster.service_time import block_sizes
from delayjax._src.cluster.services import shared_by_workers


@dataclasses.dataclass(frozen=True, eq=False)
class Resampled:
    """The service of `Recorded.service`.

    Attributes:
        seconds: the times of each recorded worker's tasks, float64 [W, T].
        block: how many consecutive steps are drawn together; None for all, in order.
    """

    seconds: np.ndarray = dataclasses.field(repr=False)
    block: int | None

    @property
    def recorded_workers(self) -> int:
        """The number of recorded workers, W."""
        return len(self.seconds)

    def __call__(self, rng: np.random.Generator, worker: int) -> Iterator[np.ndarray]:
        """Blocks of seconds; all workers take the same steps."""
        seconds = self.seconds[worker % len(self.seconds)]
        for steps in self._steps(rng, worker):
            yield seconds[steps]

    def _steps(self, rng: np.random.Generator, worker: int) -> Iterator[np.ndarray]:
        length, block = self.seconds.shape[1], self.block
        if block is None:
            first = 0
            for size in block_sizes():
                yield np.arange(first, first + size) % length
                first += size
        else:
            draws = shared_by_workers(rng, worker, "recorded.service(...)")
            for size in block_sizes():
                number = -(-size // block)
                first = draws.integers(length - block + 1, size=(number, 1))
                yield (first + np.arange(block)).ravel()
