"""The expected loss of delayed SGD on a quadratic, by its second moments."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize


class Bowl(NamedTuple):
    """A quadratic with noise on its gradient, as `tasks.quadratic` makes it.

    Attributes:
        curvatures: lambda_i; training starts at |x_i| = 1.
        noise: sigma, the standard deviation of each coordinate's noise.
        updates: T.
    """

    curvatures: Sequence[float]
    noise: float
    updates: int

    def expected_loss(self, delay: int, learning_rate: float, decay: float) -> float:
        """1/2 sum_i lambda_i E x_i^2 after T updates.

            m_{t+1} = (1 - d) m_t + d (lambda x_{t - tau} + sigma z_t)
            x_{t+1} = x_t - eta m_{t+1},    x_t = x_0 for t < 0

        is linear: the second moment S of (x_t, ..., x_{t - tau}, m_t) follows
        S <- A S A' + Q. P equal workers have tau = P - 1.

        Args:
            delay: tau, in updates.
            learning_rate: eta.
            decay: d, 1 - momentum.

        Returns:
            The loss; inf if it overflows.

        Example:
            >>> bowl = Bowl([0.5], noise=0.2, updates=1)  # x = 1 - eta (0.5 + 0.2 z)
            >>> round(bowl.expected_loss(3, learning_rate=0.1, decay=1.0), 8)
            0.225725
        """
        total = 0.0
        for curvature in self.curvatures:
            step, noise = self._step(delay, curvature, learning_rate, decay)
            state = np.ones(delay + 2)
            state[-1] = 0.0  # the momentum
            moment = np.outer(state, state)
            with np.errstate(over="ignore", invalid="ignore"):
                for _ in range(self.updates):
                    moment = step @ moment @ step.T + noise
            total += 0.5 * curvature * moment[0, 0]
        return float(total) if np.isfinite(total) else np.inf

    def _step(
        self, delay: int, curvature: float, rate: float, decay: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """A and Q."""
        size = delay + 2
        step = np.eye(size, k=-1)  # the newest becomes the one before
        step[-1] = 0.0
        step[-1, -1], step[-1, delay] = 1 - decay, decay * curvature
        step[0] = 0.0
        step[0, 0] += 1.0
        step[0] -= rate * step[-1]
        enters = np.zeros(size)
        enters[-1], enters[0] = decay * self.noise, -rate * decay * self.noise
        return step, np.outer(enters, enters)

    def least(self, delay: int) -> tuple[float, float, float]:
        """The least expected loss, and the learning rate and decay that have it."""

        def height(point):
            rate, decay = np.exp(point)
            return np.log(self.expected_loss(delay, rate, min(decay, 1.0)))

        starts = np.log([(0.3, 1.0), (0.1, 0.3), (1.0, 0.1)])
        ends = [optimize.minimize(height, at, method="Nelder-Mead") for at in starts]
        best = min(ends, key=lambda end: end.fun)
        rate, decay = np.exp(best.x)
        return float(np.exp(best.fun)), float(rate), float(min(decay, 1.0))
