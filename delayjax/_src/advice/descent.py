"""The mean loss of SGD on a quadratic along a trace, exactly, for many steps."""

import math
from typing import NamedTuple

import numpy as np

from delayjax._src.cluster.trace import Trace

_RATIO, _STEPS = 1.1, 48  # of the steps: the smallest is the largest over 88
_SPARE = 3.0  # the best step is seldom below the largest step over this number


class Bowl(NamedTuple):
    """A quadratic, its noise, and the target loss.

        f(x) = 1/2 sum_i c_i x_i^2,    x(0) = (1, .., 1),    g = c x + s n

    Attributes:
        curvatures: c, positive, float64 [C].
        noise: C s^2 / |c|^2, for the gradient of one worker.
        target: the mean loss to reach, as a share of the loss at first.
        momentum: beta of the descent.
    """

    curvatures: np.ndarray
    noise: float
    target: float
    momentum: float = 0.0

    @property
    def variance(self) -> float:
        """s^2, of each coordinate of one worker's gradient."""
        return self.noise * float((self.curvatures**2).mean())

    def largest_step(self, gradients: float, limit: float) -> float:
        """The step above which SGD does not reach the target: by noise, or `limit`.

        For small steps eta, SGD with fresh means of K gradients ends at the loss

            eta s^2 C / (4 K (1 - beta))

        Args:
            gradients: K.
            limit: the largest stable step.
        """
        if not self.noise:
            return limit
        noisy = self.variance * len(self.curvatures) / (4 * gradients)
        noisy /= 1 - self.momentum
        return min(limit, self.target * self.curvatures.sum() / 2 / noisy)

    def updates_at(self, largest: float) -> int:
        """About the number of updates that the best step needs, by the largest step."""
        rate = largest / _SPARE * self.curvatures.min() / (1 - self.momentum)
        return math.ceil(math.log(1 / self.target) / rate)

    def steps(self, largest: float) -> np.ndarray:
        """The steps that are tried, the largest first.

        With momentum the best step is smaller by up to a factor of 1 - beta.
        """
        more = math.ceil(math.log(1 / (1 - self.momentum)) / math.log(_RATIO))
        return largest / _RATIO ** np.arange(_STEPS + more)


class Descent:
    """SGD with several constant steps along a trace.

        m_{t+1} = beta m_t + 1 / d_t sum_i (c x_{t - tau_ti} + s n_ti)
        x_{t+1} = x_t - eta m_{t+1}

    with the divisor d_t. Each x_T is linear in x_0 and in the noise, so one pass back
    from T gives the derivatives v_t = dx_T / dx_t and u_t = -dx_T / dm_t, and with K_t
    gradients in update t

        u_{t+1} = eta v_{t+1} + beta u_{t+2}
        E x_T^2 = v_0^2 + s^2 sum_t K_t / d_t^2 u_{t+1}^2

    Args:
        trace: the trace of the updates.
        bowl: the quadratic.
        largest: the largest of the steps eta.
    """

    def __init__(self, trace: Trace, bowl: Bowl, largest: float):
        self.updates, self.bowl = trace.num_updates, bowl
        self.steps = bowl.steps(largest)
        self.noisy = bowl.variance * trace.counts / trace.divisor**2  # of each update
        ends = np.cumsum(trace.counts)
        self.reads = []  # the versions that an update reads, and their shares in it
        bounds = zip(ends - trace.counts, ends, trace.divisor, strict=True)
        for first, last, divisor in bounds:
            read, counts = np.unique(trace.read_version[first:last], return_counts=True)
            shares = counts / divisor
            self.reads.append(list(zip(read.tolist(), shares.tolist(), strict=True)))

    def loss(self, updates: int) -> float:
        """The least mean loss of all steps after a number of updates."""
        curvatures, steps = self.bowl.curvatures, self.steps[:, None]
        v = np.zeros((updates + 1, len(steps), len(curvatures)))
        v[updates] = 1.0
        u, noise = np.zeros_like(v[0]), np.zeros_like(v[0])
        with np.errstate(over="ignore", invalid="ignore"):  # a step may diverge
            for update in range(updates - 1, -1, -1):
                v[update] += v[update + 1]
                u = steps * v[update + 1] + self.bowl.momentum * u
                noise += self.noisy[update] * u**2
                change = curvatures * u
                for version, share in self.reads[update]:
                    v[version] -= share * change
            losses = (v[0] ** 2 + noise) @ curvatures / 2
        return float(np.fmin.reduce(losses))

    def arrival(self, after: int = 0) -> int | None:
        """The number of updates to the target; None if the trace ends before.

        The least loss of all steps nearly always falls from update to update.

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
