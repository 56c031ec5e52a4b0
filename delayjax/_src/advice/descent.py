"""The mean loss of SGD on a quadratic along a trace, exactly, for many steps."""

import math
from typing import NamedTuple

import numpy as np

from delayjax._src.cluster.trace import Trace

_STEPS = 1 / 1.1 ** np.arange(48)  # times the largest one that may be the best
_SPARE = 3.0  # the best step is seldom below the largest one over this


class Bowl(NamedTuple):
    """A quadratic, its noise, and how far to go down.

        f(x) = 1/2 sum_i c_i x_i^2,    x(0) = (1, .., 1),    g = c x + s n

    Attributes:
        curvatures: c, positive, float64 [C].
        noise: C s^2 / |c|^2, for the gradient of one worker.
        target: the mean loss to reach, as a share of the loss at first.
    """

    curvatures: np.ndarray
    noise: float
    target: float

    @property
    def variance(self) -> float:
        """s^2, of each coordinate of one worker's gradient."""
        return self.noise * float((self.curvatures**2).mean())

    def largest_step(self, gradients: float, limit: float) -> float:
        """The step above which noise or the limit keeps SGD from the target.

        For small steps eta, fresh means of K gradients end at eta s^2 C / (4 K).

        Args:
            gradients: K.
            limit: of the step.
        """
        if not self.noise:
            return limit
        noisy = self.variance * len(self.curvatures) / (4 * gradients)
        return min(limit, self.target * self.curvatures.sum() / 2 / noisy)

    def updates_at(self, largest: float) -> int:
        """About how many updates the best step needs, from the largest one."""
        rate = largest / _SPARE * self.curvatures.min()
        return math.ceil(math.log(1 / self.target) / rate)


class Descent:
    """SGD with several constant steps along a trace.

        x_{t+1} = x_t - (eta / d_t) sum_i (c x_{t - tau_ti} + s n_ti)

    with the divisor d_t. Each x_T is linear in x_0 and in the noise, so one pass back
    from T gives the derivatives v_t = dx_T / dx_t, and with K_t gradients in update t

        E x_T^2 = v_0^2 + (eta s)^2 sum_t K_t / d_t^2 v_{t+1}^2

    Args:
        trace: of the updates.
        bowl: the quadratic.
        largest: of the steps eta; the smallest is an eighty-eighth of it.
    """

    def __init__(self, trace: Trace, bowl: Bowl, largest: float):
        self.updates, self.bowl, self.steps = trace.num_updates, bowl, largest * _STEPS
        self.noisy = bowl.variance * trace.counts / trace.divisor**2  # of each update
        ends = np.cumsum(trace.counts)
        self.reads = []  # the versions that an update reads, and their shares in it
        bounds = zip(ends - trace.counts, ends, trace.divisor, strict=True)
        for first, last, divisor in bounds:
            read, counts = np.unique(trace.read_version[first:last], return_counts=True)
            shares = counts / divisor
            self.reads.append(list(zip(read.tolist(), shares.tolist(), strict=True)))

    def loss(self, updates: int) -> float:
        """The least mean loss of all steps after so many updates."""
        moved = self.steps[:, None] * self.bowl.curvatures
        v = np.zeros((updates + 1, *moved.shape))
        v[updates] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):  # a step may diverge
            for update in range(updates - 1, -1, -1):
                v[update] += v[update + 1]
                change = moved * v[update + 1]
                for version, share in self.reads[update]:
                    v[version] -= share * change
            noise = np.einsum("t,tsc,tsc->sc", self.noisy[:updates], v[1:], v[1:])
            squares = v[0] ** 2 + self.steps[:, None] ** 2 * noise
            losses = squares @ self.bowl.curvatures / 2
        return float(np.fmin.reduce(losses))

    def arrival(self, after: int = 0) -> int | None:
        """After how many updates the target is reached; None if the trace ends before.

        The least loss of all steps falls from update to update, nearly always.

        Args:
            after: updates that are known to be too few.
        """
        target = self.bowl.target * self.bowl.curvatures.sum() / 2
        low, high = after, min(max(2 * after, 1), self.updates)
        while self.loss(high) > target:
            if high == self.updates:
                return None
            low, high = high, min(2 * high, self.updates)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.loss(middle) > target else (low, middle)
        return high
