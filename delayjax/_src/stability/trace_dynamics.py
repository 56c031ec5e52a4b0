"""Delayed training on one curvature, along the staleness of a trace."""

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds
from delayjax._src.stability.recursion import UpdateRule

_SHORTEST = 16  # updates of a block, if the staleness is small
_LOG_RANGE = 300.0  # float64 holds the exponential of twice this
_LARGEST = math.exp(_LOG_RANGE)
_WINDOWS = 10  # a trace must be this many times as long as its memory
_ALMOST = 0.99  # the share of the gradients whose staleness sets that memory
_LEFT_OUT = 0.1  # the share of a trace that is left out, at its beginning
_PARTS = 10  # parts of the rest; their spread gives the interval
_RATIO, _STEPS = 1.1, 32  # of the steps that are tried together


class TraceLimit(NamedTuple):
    """A step limit, and the 95 % interval that the length of the trace leaves."""

    limit: float
    low: float
    high: float


@kinds.checked
@dataclasses.dataclass(frozen=True, eq=False)
class TraceDynamics(UpdateRule):
    """SGD on one curvature, in which the delays of gradients come from a trace.

        x_{t+1} = x_t - (a/K) sum_i x_{t - tau_ti},    a = eta lambda

    Unlike `Dynamics` this needs no law of the delays and no independence.

    Args:
        staleness: in updates, int [T]; or [T, K] as `trace.staleness`, where an update
            takes the mean of up to K gradients and -1 marks a missing one. T is at
            least 160, 10 / (1 - momentum), and 10 (tau + 1), with tau the staleness
            that 99 % of the gradients do not exceed.
        momentum, nesterov, compensation, extrapolation: as in `Dynamics`.
        modulation: as in `Dynamics`; for several gradients it receives their mean
            staleness, np.float32, as in `replay`.

    Example:
        >>> late = np.random.default_rng(1).geometric(1 / 16, 10_000) - 1
        >>> [round(value, 2) for value in TraceDynamics(late).step_limit()]
        [0.47, 0.44, 0.5]
    """

    staleness: ArrayLike
    ages: np.ndarray = dataclasses.field(init=False, repr=False)  # int64 [T, K]
    weights: np.ndarray = dataclasses.field(init=False, repr=False)  # of updates, [T]
    recent: int = dataclasses.field(init=False, repr=False)  # versions most often read

    def __post_init__(self):
        ages = _table(self.staleness)
        known = ages >= 0
        late = ages[known] if known.any() else np.zeros(1)
        recent = 1 + int(np.quantile(late, _ALMOST, method="higher"))
        needed = _WINDOWS * max(recent, round(1 / (1 - self.momentum)), _SHORTEST)
        if len(ages) < needed:
            raise ValueError(
                f"`staleness` must have at least {needed} updates, got {len(ages)}."
            )
        mean = np.where(known, ages, 0).sum(axis=1) / known.sum(axis=1)
        mean = mean.astype(np.int32 if ages.shape[1] == 1 else np.float32)
        values, places = np.unique(mean, return_inverse=True)
        self._set(ages=ages, weights=self.weights_of(values)[places], recent=recent)

    def growth(self, step: ArrayLike) -> float | np.ndarray:
        """The Lyapunov exponent lim log|x_t| / t: the growth of log|x| per update.

        Almost all runs have it, also where the mean over runs behaves differently. For
        a constant staleness it is log(spectral_radius). The first tenth of the updates
        is left out.

        Args:
            step: a = eta lambda, non-negative, a number or any array.

        Returns:
            float64, shaped as `step`; below 0 where x decays. The rate in 1/seconds is
            its negative times `trace.num_updates / trace.seconds[-1]`. The error falls
            as 1/sqrt(T).

        Example:
            >>> grown = TraceDynamics([1] * 2000).growth([0.64, 1.44])  # always 1 late
            >>> np.exp(grown).round(2).tolist()
            [0.8, 1.2]

        References:
            Benettin et al., Meccanica 15, 1980, for the renormalization.
        """
        steps = checks.as_finite("step", step)
        growth = self._growth_by_parts(steps.ravel()).mean(axis=0).reshape(steps.shape)
        return growth if steps.ndim else float(growth)

    def step_limit(self) -> TraceLimit:
        """The smallest step at which single runs along the trace diverge: growth is 0.

        P memoryless workers have sqrt(pi/P) + 1/(2P), to 1 % from 8 workers on; the
        mean over runs has 2 (2P - 1). For 16 or more workers with a coefficient of
        variation up to 0.7 it is within 3 % of `Dynamics(law).step_limit("mean")`.

        Returns:
            float64, with a 95 % interval by the spread over ten parts of the trace; it
            held the limit in 88 to 97 % of simulations. It falls as 1/sqrt(T): for 16
            memoryless workers and 9,000 updates it is 6 % to each side.
        """
        late = 1 + self.ages[self.ages >= 0].mean()
        start = (1 - self.momentum) / (self.weights.mean() * late) / 4
        while True:
            steps = start * _RATIO ** np.arange(_STEPS)
            growth = self._growth_by_parts(steps).mean(axis=0)
            if above := int(np.argmax(growth >= 0)):
                break
            # try smaller steps that overlap these, or go on from the last step
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
        half = scipy.special.stdtrit(_PARTS - 1, 0.975) * error
        return TraceLimit(*map(float, (limit, max(limit - half, 0), limit + half)))

    def _growth_by_parts(self, steps: np.ndarray) -> np.ndarray:
        """The growth per update in each part of the trace, float64 [10, S]."""
        beta, c, e = self.momentum, self.compensation, self.extrapolation
        lead, carried = self.lead, self.carried
        weights = self.weights.tolist() if (self.weights != 1).any() else None
        single = self.ages.shape[1] == 1
        reads = self.ages[:, 0].tolist() if single else [a[a >= 0] for a in self.ages]
        window = int(self.ages.max()) + len(self.taken)  # versions that may be read
        block = self._block(steps)
        x = np.ones((window + block, len(steps)))
        rows = list(x)  # views
        seen = rows.__getitem__ if single else lambda read: x[read].mean(axis=0)
        m = np.zeros(len(steps))
        unit = np.maximum(np.sqrt(steps) * math.sqrt(self.weights.mean()), 1 - beta)
        updates = len(self.ages)
        edges = np.linspace(_LEFT_OUT * updates, updates, _PARTS + 1).astype(int)
        logs = np.zeros((_PARTS + 1, len(steps)))
        for part, (begin, end) in enumerate(itertools.pairwise([0, *edges.tolist()])):
            for first in range(begin, end, block):
                last = min(first + block, end)
                for now, late in enumerate(reads[first:last], window - 1):
                    y = seen(now - late)
                    if e:
                        y = y + e * (y - seen(now - late - 1))
                    if c:
                        y = (1 - c) * y + c * rows[now]
                    change = steps * (lead * y + carried * m) if beta else steps * y
                    if weights:
                        change *= weights[first + now - window + 1]
                    if beta:
                        m = beta * m + y
                    np.subtract(rows[now], change, out=rows[now + 1])
                kept = x[last - first : last - first + window]
                # the largest |x| that is often read, and m in units of x
                size = np.hypot(np.abs(kept[-self.recent :]).max(axis=0), unit * m)
                with np.errstate(divide="ignore"):
                    logs[part] += np.log(size)
                size = np.where(size > 0, size, 1.0)  # no division by 0
                # versions that are read after a long pause may be larger by any factor
                with np.errstate(over="ignore"):
                    x[:window] = np.clip(kept / size, -_LARGEST, _LARGEST)
                m = m / size
        return logs[1:] / np.diff(edges)[:, None]

    def _block(self, steps: np.ndarray) -> int:
        """The number of updates in a row without overflow or underflow."""
        heard = np.abs(self.taken).sum() + self.compensation
        # the growth of max(|x|, (1 - beta) |m|) in one update
        most = heard + steps.max(initial=0.0) * self.weights.max() * (
            self.lead * heard + self.carried / (1 - self.momentum)
        )
        safe = _LOG_RANGE / math.log(most) if most > 1 else math.inf
        return int(max(min(2 * max(self.recent, _SHORTEST), safe), 1))


def _table(staleness: ArrayLike) -> np.ndarray:
    """The staleness as a table, int64 [T, K]."""
    ages = checks.as_counts("staleness", staleness, least=-1)
    ages = ages.reshape(len(ages), math.prod(ages.shape[1:])).astype(np.int64)
    if (ages.max(axis=1, initial=-1) < 0).any():
        raise ValueError(
            "`staleness` must have a gradient in each update, got one with -1 alone:"
            " leave out updates without gradients."
        )
    return ages
