"""Counts and finds the zeros of s + a phi(s) whose modes decay most slowly."""

import dataclasses
import functools
import math

import numpy as np

from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.stability.root_finding import zero_between

_WIDER = 1.2  # the factor from one line to the next
_AT_THE_TAIL = 1 - 1e-3  # share of the tail's rate at which phi is still moderate
_FARTHEST = 300.0  # the largest phi of a line, over phi of the first line
_FINE = 0.25  # r between two points of a line
_MOST = 2**21  # points of a line; a search takes half a minute beyond
_CRITICAL = 1e-12  # relative distance to the gain at which two zeros meet
_SAME = 3e-7  # r between two values of one zero
_EXACT = 1e-10  # relative residual of a zero


def meeting_rate(time: ServiceTime) -> float:
    """The r of the largest r / phi(-r), in 1/seconds; two real zeros meet at -r."""

    def ahead(rate):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = float(1 - rate * time.slope(-rate) / time.transform(-rate))
        return value if math.isfinite(value) else -1.0

    # r is at most 1/mean, because e^{rT} gives long T more weight
    high = min(1 / time.mean, time.tail_rate * (1 - 1e-12))
    return high if ahead(high) >= 0 else zero_between(ahead, 0.0, high)


@dataclasses.dataclass(frozen=True)
class RightmostZeros:
    """The zeros of f(s) = s + a phi(s) with the largest real parts.

    For Re s >= c all zeros are in half a disc, |s| <= a phi(c). The number of turns of
    f about 0 along its edge is the number of zeros. The line Re s = c moves to the left
    until there are enough zeros. Newton's method, started where |f| is small, must find
    each of them.
    """

    gain: float  # a, positive
    time: ServiceTime  # T
    unit: float  # 1/seconds, the scale of phi: the `meeting_rate`

    def find(self, number: int) -> np.ndarray:
        """At least `number` zeros with their conjugates, complex128 [n], in no order.

        Fewer if no more are to the right of -`tail_rate`, or if phi is a few hundred
        times as large there as for the first ones.
        """
        unit = self.unit
        for lines in (2, 3, 5, 9, 17, 33):
            # another line each time, because a zero may be on a line
            low, total = self._line_with(number, (1 + 0.03 * lines) * unit)
            zeros = self._newton(self._starts(low, lines), low)
            if abs(self._f(-unit)) < _CRITICAL * unit:
                zeros = zeros[np.abs(zeros + unit) > 1e-3 * unit]
                zeros = np.append(zeros, [-unit, -unit])
            if len(zeros) == total:
                return zeros
        raise RuntimeError(f"{len(zeros)} of {total} roots are found: please report.")

    def number_right_of(self, low: float) -> int:
        """The number of zeros to the right of Re s = low."""
        line = low + 1j * self._heights(low, _FINE * self.unit)
        values = self._f(line)
        while True:
            turns = np.angle(values[1:] / values[:-1])
            # a zero on the line would be refined without end
            wide = np.abs(np.diff(line)) > 1e-9 * self.unit
            coarse = np.flatnonzero((np.abs(turns) > 0.7) & wide)
            if not coarse.size:
                break
            between = (line[coarse] + line[coarse + 1]) / 2
            line = np.insert(line, coarse + 1, between)
            values = np.insert(values, coarse + 1, self._f(between))
        # along the arc to the top f is s, turned by less than a quarter
        top = line[-1]
        arc = np.angle(top) + np.angle(values[-1] / top)
        return round((arc - turns.sum()) / math.pi)

    def _f(self, s):
        return s + self.gain * self.time.transform(s)

    def _line_with(self, number: int, first: float) -> tuple[float, int]:
        """A line with `number` zeros or a few more to its right, and their number."""
        left_end = -self.time.tail_rate * _AT_THE_TAIL
        farthest = _FARTHEST * float(self.time.transform(-self.unit))
        low, high = max(-first, left_end), self._right_end
        total = self.number_right_of(low)
        while total < number and low > left_end:
            high, low = low, max(_WIDER * low, left_end)
            if float(self.time.transform(low)) > farthest:
                return high, total
            total = self.number_right_of(low)
        while total > 2 * number + 4 and high - low > 1e-3 * self.unit:
            middle = (low + high) / 2
            count = self.number_right_of(middle)
            if count >= number:
                low, total = middle, count
            else:
                high = middle
        return low, total

    @functools.cached_property
    def _right_end(self) -> float:
        """A line to the right of all zeros: Re s <= x = a phi(x)."""

        def ahead(x):
            return x - self.gain * float(self.time.transform(x))

        return 1.01 * zero_between(ahead, 0.0, self.gain)

    def _heights(self, low: float, spacing: float) -> np.ndarray:
        """Im s of a line, from 0 to where |s| is at least twice a |phi(s)|."""
        radius = 2 * self.gain * float(self.time.transform(low)) + 2 * abs(low)
        top = math.sqrt(radius**2 - low**2)
        if top > _MOST * spacing:
            raise ValueError(
                f"`gain` {self.gain:.4g} is too large for the longest times of"
                " `service_time`: leave out the longest times, or measure with `paths`."
            )
        return np.linspace(0, top, math.ceil(top / spacing) + 2)

    def _starts(self, low: float, lines: int) -> np.ndarray:
        """The points of least |f| on some lines between `low` and all zeros."""
        high = self._right_end
        while high - low > 0.5 * self.unit:
            middle = (low + high) / 2
            if self.number_right_of(middle):
                break
            high = middle
        heights = self._heights(low, 2 * _FINE * self.unit / lines)
        starts = []
        for share in (np.arange(lines) + 0.5) / lines:
            line = low + share * (high - low) + 1j * heights
            walled = np.pad(np.abs(self._f(line)), 1, constant_values=np.inf)
            size = walled[1:-1]
            starts.append(line[(size <= walled[:-2]) & (size <= walled[2:])])
        axis = low + (np.arange(8 * lines) + 0.5) / (8 * lines) * (high - low)
        starts = np.concatenate([*starts, axis])
        # Newton's method stays on the axis and would miss a pair close to it
        starts = np.where(np.imag(starts) == 0, starts + 0.03j * self.unit, starts)
        # the second real zero: phi may be too steep there for Newton's method
        if low < -self.unit and self._f(-self.unit) < 0 < self._f(low):
            second = zero_between(lambda s: float(self._f(s)), low, -self.unit)
            starts = np.append(starts, second)
        return starts

    def _newton(self, s: np.ndarray, low: float) -> np.ndarray:
        """Zeros to the right of `low` and their conjugates, each once, complex128."""
        moving = np.arange(len(s))
        with np.errstate(all="ignore"):
            for _ in range(60):
                here = s[moving]
                step = self._f(here) / (1 - self.gain * self.time.slope(here))
                s[moving] -= step
                moving = moving[np.abs(step) > 1e-15 * np.abs(here)]
            size = np.abs(s) + np.abs(self.gain * self.time.transform(s))
            s = s[np.isfinite(s) & (np.abs(self._f(s)) < _EXACT * size)]
        # rounding moves real zeros off the axis
        real = np.abs(np.imag(s)) < 1e-7 * np.abs(s)
        s = np.where(real, np.real(s) + 0j, s)
        kept: list[complex] = []
        for zero in np.concatenate([s, s.conj()]):
            is_new = all(abs(zero - other) > _SAME * self.unit for other in kept)
            if zero.real > low and is_new:
                kept.append(complex(zero))
        return np.array(kept, complex)
