"""A server that refuses gradients, in plain NumPy: one arrival after another.

The clock counts applied updates. A refused gradient changes neither the parameters
nor the momentum nor the ages of other gradients.
"""

from typing import Any, NamedTuple

import numpy as np


class Arrival(NamedTuple):
    """What the server knows about a gradient."""

    worker: int
    gradient: np.ndarray
    model: np.ndarray  # the parameters that the worker read
    params: np.ndarray  # the server's now
    staleness: int  # updates applied since the worker read


class Served(NamedTuple):
    """The result of all arrivals."""

    params: np.ndarray  # after each arrival [T, n]
    accepted: np.ndarray  # bool [T]
    staleness: np.ndarray  # int [T], of refused gradients too


def serve(
    trace: Any,
    gradient_of: Any,
    rule: Any,
    start: np.ndarray,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    damping: float = 0.0,
) -> Served:
    """Serves the arrivals of a trace that has one gradient in each update.

    The server moves by -learning_rate exp(-damping tau) v, v = momentum v + gradient.
    """
    params, versions, velocity = [start], [0], np.zeros_like(start)
    accepted, ages = [], []
    for t, worker in enumerate(trace.worker.tolist()):
        read = int(trace.read_version[t])  # the number of arrivals before it read
        tau = versions[t] - versions[read]
        gradient = gradient_of(t, worker, params[read])
        arrival = Arrival(worker, gradient, params[read], params[t], tau)
        used, gradient = rule(arrival)
        x = params[t]
        if used:
            velocity = momentum * velocity + gradient
            x = x - learning_rate * np.exp(-damping * tau) * velocity
        params.append(x)
        versions.append(versions[t] + used)
        accepted.append(used)
        ages.append(tau)
    return Served(np.array(params[1:]), np.array(accepted), np.array(ages))


def dropping(bound: int) -> Any:
    """A rule that refuses gradients that are older than the bound."""
    return lambda arrival: (arrival.staleness <= bound, arrival.gradient)


class Kardam:
    """Damaskinos et al.: refuses what changes too fast, or one worker too often."""

    def __init__(
        self,
        workers: int,
        attackers: int,
        window: int = 26,
        patience: int | None = None,
    ):
        self.workers, self.attackers, self.window = workers, attackers, window
        self.patience = patience or workers
        self.sent: dict[int, tuple] = {}  # worker: (its last gradient, its model)
        self.slopes = [[] for _ in range(workers)]  # newest last
        self.last: tuple = ()  # the last accepted gradient, the model before
        self.took: list[int] = []  # the workers of the accepted gradients
        self.move = 0.0
        self.refused = 0  # refusals in a row by the Lipschitz filter

    def __call__(self, arrival: Arrival) -> tuple[bool, np.ndarray]:
        worker, g, y, x, _ = arrival
        if worker in self.sent:
            g_before, y_before = self.sent[worker]
            distance = np.linalg.norm(y - y_before)
            if distance > 0:
                slope = np.linalg.norm(g - g_before) / distance
                self.slopes[worker] = [*self.slopes[worker], slope][-self.window :]
        self.sent[worker] = g, y
        if self.last and (x != self.last[1]).any():
            self.move = np.linalg.norm(x - self.last[1])
        recent = self.took[-2 * self.attackers :] if self.attackers else []
        seldom = worker not in recent
        used = seldom and (self._is_smooth(g) or self.refused >= self.patience)
        self.refused = 0 if used else self.refused + seldom
        if used:
            self.last = g, x
            self.took.append(worker)
        return used, g

    def _is_smooth(self, g: np.ndarray) -> bool:
        largest = sorted(max(slopes) for slopes in self.slopes if slopes)
        if not largest or self.move == 0:
            return True
        rank = -(-len(largest) * (self.workers - self.attackers) // self.workers)
        slope = np.linalg.norm(g - self.last[0]) / self.move
        return bool(slope <= largest[rank - 1])


class Zeno:
    """Xie et al.: a gradient must decrease the loss on the data of the server."""

    def __init__(
        self,
        gradient_of: Any,
        *,
        learning_rate: float,
        rho: float,
        eps: float,
        refresh_every: int,
    ):
        self.gradient_of, self.rate = gradient_of, learning_rate
        self.rho, self.eps, self.every = rho, eps, refresh_every
        self.arrived = 0

    def __call__(self, arrival: Arrival) -> tuple[bool, np.ndarray]:
        if self.arrived % self.every == 0:
            self.v = self.gradient_of(arrival.params)
        self.arrived += 1
        g = arrival.gradient / np.linalg.norm(arrival.gradient)
        g = g * np.linalg.norm(self.v)
        score = self.rate * self.v @ g - self.rho * g @ g
        return bool(score >= -self.rate * self.eps), g
