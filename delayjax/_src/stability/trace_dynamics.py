"""Delayed training on one curvature, along the staleness that a trace recorded."""

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from scipy import special

from delayjax._src import base
from delayjax._src.stability.known import check_known, floats
from delayjax._src.stability.recursion import UpdateRule

_SHORTEST = 16  # updates; twice as many do not reach exp(-700)
_LOG_RANGE = 300.0  # float64 holds the exponential of twice that
_LARGEST = math.exp(_LOG_RANGE)
_WINDOWS = 10  # that a trace must be long, or memories of momentum
_ALMOST = 0.99  # of all gradients: how stale these are decides how long that is
_LEFT_OUT = 0.1  # of a trace, at its beginning
_PARTS = 10  # of the rest, whose spread gives the interval
_RATIO, _STEPS = 1.1, 32  # of the steps that are tried together


class TraceLimit(NamedTuple):
    """A step limit, and the 95 % interval that a trace leaves for it."""

    limit: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class TraceDynamics(UpdateRule):
    """SGD on one curvature, each gradient as late as a trace says.

        x_{t+1} = x_t - (a/K) sum_i x_{t - tau_ti},    a = eta lambda

    Unlike `Dynamics` it needs no law of the delays, nor that they are independent: it
    is for simulated or measured workers.

    Args:
        staleness: in updates, int [T], or [T, K] where an update takes the mean of up
            to K gradients, -1 where it has fewer; as `trace.staleness`. T is at least
            160, 10 / (1 - momentum), and 10 times one more than the staleness of all
            gradients but 1 %.
        momentum: as in `Dynamics`, and so are the other options.
        nesterov: likewise.
        modulation: likewise; for several gradients it is called with their mean
            staleness, np.float32, as `replay` does.
        compensation: likewise.
        extrapolation: likewise.

    Raises:
        TypeError: if `staleness` holds no integers, or as `Dynamics` does.
        ValueError: if `staleness` is too short, below -1, or -1 for all of an update,
            or as `Dynamics` does.

    Example:
        >>> in_turn = TraceDynamics([0, 2] * 5_000)  # drawn anew, they bear 1.0
        >>> round(in_turn.step_limit().limit, 3)
        1.414
    """

    staleness: ArrayLike
    ages: np.ndarray = dataclasses.field(init=False, repr=False)  # int64 [T, K]
    weights: np.ndarray = dataclasses.field(init=False, repr=False)  # of updates, [T]
    recent: int = dataclasses.field(init=False, repr=False)  # versions most often read

    def __post_init__(self):
        super().__post_init__()
        check_known(staleness=self.staleness)
        ages = _table(self.staleness)
        known = ages >= 0
        late = ages[known] if known.any() else np.zeros(1)
        recent = 1 + int(np.quantile(late, _ALMOST, method="higher"))
        memory = round(1 / (1 - self.momentum))
        needed = _WINDOWS * max(recent, memory, _SHORTEST)
        if len(ages) < needed:
            raise ValueError(
                f"`staleness` must be of at least {needed} updates, {_WINDOWS} times"
                f" the largest of {_SHORTEST}, the staleness plus 1, {recent}, and 1 /"
                f" (1 - `momentum`), {memory}, got {len(ages)}: simulate longer."
            )
        mean = np.where(known, ages, 0).sum(axis=1) / known.sum(axis=1)
        mean = mean.astype(np.int32 if ages.shape[1] == 1 else np.float32)
        values, places = np.unique(mean, return_inverse=True)
        self._set(ages=ages, weights=self.weights_of(values)[places], recent=recent)

    def growth(self, step: ArrayLike) -> float | np.ndarray:
        """The Lyapunov exponent: the growth of log|x| in an update.

            growth = lim log|x_t| / t

        Almost all runs have it, though the mean of x may die out. For a constant
        staleness it is log(spectral_radius). Now and then x and the momentum m are
        divided by their size, whose logarithms add up: sqrt(x^2 + a m^2), as of an
        oscillator, with the largest |x| that is often read and, where it is larger, 1 -
        beta for sqrt(a). x is 1 before the first update and m is 0; the first tenth of
        the updates are left out.

        Args:
            step: a = eta lambda, a number or any array.

        Returns:
            float64, shaped as `step`; below 0 where x dies out. Its negative times
            `trace.num_updates / trace.seconds[-1]` is the rate in 1/seconds. Its error
            falls as 1/sqrt(T). Costs 1 microsecond an update for one step, 2 for a
            hundred, thrice that with momentum, and 5 more for several gradients. Exact
            but where x falls by e^300 while one worker pauses.

        Raises:
            TypeError: if `step` is no number.
            ValueError: if it is negative or not finite.

        Example:
            >>> grown = TraceDynamics([1] * 2000).growth([0.64, 1.44])  # always 1 late
            >>> np.exp(grown).round(2).tolist()
            [0.8, 1.2]

        References:
            Benettin, Galgani, Giorgilli and Strelcyn, Lyapunov characteristic
            exponents, Meccanica 15, 1980, for renormalizing.
        """
        steps = floats("step", step)
        if not ((steps >= 0) & np.isfinite(steps)).all():
            raise ValueError(f"`step` must be finite and non-negative, got {step!r}.")
        growth = self._growth_by_parts(steps.ravel()).mean(axis=0).reshape(steps.shape)
        return growth if steps.ndim else float(growth)

    def step_limit(self) -> TraceLimit:
        """The smallest step at which single runs along the trace diverge.

            growth(a) = 0

        For 16 workers and more it is within 3 % of the mean's `Dynamics.step_limit` by
        the law of their staleness, if the coefficient of variation of their times is
        0.7 or less. For 8 and more memoryless workers, whose mean bears 2 (2P - 1), it
        is sqrt(pi/P) + 1/(2P) to 1 %.

        Returns:
            float64, with an interval by the spread over ten parts of the trace; eta is
            stable below it divided by the largest curvature. For 16 workers and 9,000
            updates the interval is 3 % to each side for gamma times of shape 4, and 6 %
            for memoryless ones, and falls as 1/sqrt(T). It held the limit of long
            traces in 93 to 97 % of simulations, and in 88 % with 64 workers, for whom
            9,000 updates are few. Costs two or three `growth`s of 32 steps.

        Example:
            >>> late = np.random.default_rng(1).geometric(1 / 16, 10_000) - 1
            >>> [round(value, 2) for value in TraceDynamics(late).step_limit()]
            [0.47, 0.44, 0.5]
        """
        late = 1 + self.ages[self.ages >= 0].mean()
        start = (1 - self.momentum) / (self.weights.mean() * late) / 4
        while True:
            steps = start * _RATIO ** np.arange(_STEPS)
            growth = self._growth_by_parts(steps).mean(axis=0)
            above = int(np.argmax(growth >= 0))
            if above:
                break
            # down by less than the steps span, or on from the last one
            start = start / 16 if growth[0] >= 0 else float(steps[-1])
        ends = growth[above - 1 : above + 1]
        steps = np.linspace(steps[above - 1], steps[above], _STEPS)
        parts = self._growth_by_parts(steps)
        slope = (ends[1] - ends[0]) / (steps[-1] - steps[0])
        growth = np.concatenate([ends[:1], parts.mean(axis=0)[1:-1], ends[1:]])
        above = int(np.argmax(growth >= 0))
        left, right = growth[above - 1 : above + 1]
        limit = steps[above] - (steps[1] - steps[0]) * right / (right - left)
        error = parts[:, above].std(ddof=1) / math.sqrt(_PARTS) / slope
        half = special.stdtrit(_PARTS - 1, 0.975) * error
        return TraceLimit(*map(float, (limit, max(limit - half, 0), limit + half)))

    def _growth_by_parts(self, steps: np.ndarray) -> np.ndarray:
        """The growth of an update in each part of the trace, float64 [10, S]."""
        beta, c, e = self.momentum, self.compensation, self.extrapolation
        lead, carried = self.lead, self.carried
        weights = self.weights.tolist() if (self.weights != 1).any() else None
        single = self.ages.shape[1] == 1
        reads = self.ages[:, 0].tolist() if single else [a[a >= 0] for a in self.ages]
        window = int(self.ages.max()) + len(self.taken)  # versions that may be read
        block = self._block(steps)
        x = np.ones((window + block, len(steps)))
        rows = list(x)  # views
        m = np.zeros(len(steps))
        energy = np.sqrt(steps) * math.sqrt(self.weights.mean())
        unit = np.maximum(energy, 1 - beta)  # of m: they turn into one another
        updates = len(self.ages)
        edges = np.linspace(_LEFT_OUT * updates, updates, _PARTS + 1).astype(int)
        logs = np.zeros((_PARTS + 1, len(steps)))
        for part, (begin, end) in enumerate(itertools.pairwise([0, *edges.tolist()])):
            for first in range(begin, end, block):
                last = min(first + block, end)
                for now, late in enumerate(reads[first:last], window - 1):
                    read = now - late
                    y = rows[read] if single else x[read].mean(axis=0)
                    if e:
                        before = rows[read - 1] if single else x[read - 1].mean(axis=0)
                        y = y + e * (y - before)
                    if c:
                        y = (1 - c) * y + c * rows[now]
                    change = steps * (lead * y + carried * m) if beta else steps * y
                    if weights:
                        change *= weights[first + now - window + 1]
                    if beta:
                        m = beta * m + y
                    np.subtract(rows[now], change, out=rows[now + 1])
                kept = x[last - first : last - first + window]
                size = np.hypot(np.abs(kept[-self.recent :]).max(axis=0), unit * m)
                with np.errstate(divide="ignore"):
                    logs[part] += np.log(size)
                size = np.where(size > 0, size, 1.0)  # 0 stays what it is
                # what a pause keeps from long ago may be larger, by any factor
                with np.errstate(over="ignore"):
                    x[:window] = np.clip(kept / size, -_LARGEST, _LARGEST)
                m = m / size
        return logs[1:] / np.diff(edges)[:, None]

    def _block(self, steps: np.ndarray) -> int:
        """So many updates in a row that nothing overflows or vanishes."""
        heard = np.abs(self.taken).sum() + self.compensation
        # of max(|x|, (1 - beta) |m|), in one update
        most = heard + steps.max(initial=0.0) * self.weights.max() * (
            self.lead * heard + self.carried / (1 - self.momentum)
        )
        safe = _LOG_RANGE / math.log(most) if most > 1 else math.inf
        return int(max(min(2 * max(self.recent, _SHORTEST), safe), 1))


def _table(staleness: ArrayLike) -> np.ndarray:
    """int64 [T, K]."""
    ages = np.asarray(base.as_array("staleness", staleness))
    if ages.dtype.kind not in "iu" or ages.ndim not in (1, 2):
        raise TypeError(
            "`staleness` must hold integers, [T] or [T, K], as `trace.staleness`, got"
            f" {ages.dtype} of shape {ages.shape}."
        )
    ages = ages.astype(np.int64)
    ages = ages[:, None] if ages.ndim == 1 else ages
    if ages.min(initial=0) < -1 or (ages.max(axis=1, initial=-1) < 0).any():
        raise ValueError(
            "`staleness` must be non-negative, or -1 beside another gradient of the"
            f" update, got {ages.min()}: leave out updates without gradients."
        )
    return ages
