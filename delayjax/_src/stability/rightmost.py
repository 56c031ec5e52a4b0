"""The zeros of s + a phi(s) that decay most slowly, counted and found."""

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


def rightmost_roots(gain: float, time: ServiceTime, *, number: int) -> np.ndarray:
    """The zeros of f(s) = s + a phi(s) with the largest real parts.

    For Re s >= c no zero is beyond |s| = a phi(c), since |phi(s)| <= phi(Re s). So all
    zeros to the right of the line Re s = c are in half a disc, and the turns of f about
    0 along its edge count them. The line moves to the left until there are enough.
    Newton's method, started where |f| is small, must find each of them.

    Returns:
        complex128 [n], in no order, with conjugates, n >= `number`. n is smaller if no
        more zeros are to the right of -`tail_rate`, or they are so far to the left that
        phi is a few hundred times as large as for the first ones. Costs in proportion
        to a times the longest delay: 8 s if that is 10^5.
    """
    # the scale of phi on the lines of interest: 1/r is the mean of e^{rT} T
    unit = meeting_rate(time)
    for lines in (2, 3, 5, 9, 17, 33):
        # each time another line, because a zero may be on one of them
        low, total = _line_with(gain, time, number, unit, (1 + 0.03 * lines) * unit)
        high = _line_without(gain, time, low, unit)
        starts = _starts(gain, time, (low, high), unit, lines)
        found = _newton(starts, gain, time)
        found = _distinct(found[np.real(found) > low], unit)
        if abs(gain * float(time.transform(-unit)) / unit - 1) < _CRITICAL:
            found = found[np.abs(found + unit) > 1e-3 * unit]
            found = np.append(found, [-unit, -unit])
        if len(found) == total:
            return found
    raise RuntimeError(
        f"{len(found)} of {total} roots are found at `gain` {gain}: please"
        " report this, with the times."
    )


def meeting_rate(time: ServiceTime) -> float:
    """The r of the largest r / phi(-r), in 1/seconds; two real zeros meet at -r."""

    def ahead(rate):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = float(1 - rate * time.slope(-rate) / time.transform(-rate))
        return value if math.isfinite(value) else -1.0

    # r is at most 1/mean, because e^{rT} gives long T more weight
    high = min(1 / time.mean, time.tail_rate * (1 - 1e-12))
    if ahead(high) >= 0:
        return high
    return zero_between(ahead, 0.0, high)


def number_right_of(low: float, gain: float, time: ServiceTime, *, unit: float) -> int:
    """The number of zeros to the right of Re s = low; `unit` is the `meeting_rate`."""
    line = low + 1j * _heights(gain, time, low, _FINE * unit)
    values = line + gain * time.transform(line)
    while True:
        turns = np.angle(values[1:] / values[:-1])
        coarse = np.flatnonzero(np.abs(turns) > 0.7)
        fine = np.abs(np.diff(line)) > 1e-9 * unit  # a zero on the line ends it
        coarse = coarse[fine[coarse]]
        if not coarse.size:
            break
        between = (line[coarse] + line[coarse + 1]) / 2
        line = np.insert(line, coarse + 1, between)
        seen = between + gain * time.transform(between)
        values = np.insert(values, coarse + 1, seen)
    # along the arc to the top f is s, turned by less than a quarter
    top = line[-1]
    arc = np.angle(top) + np.angle(values[-1] / top)
    return round((arc - turns.sum()) / math.pi)


def residual(s: np.ndarray, gain: float, time: ServiceTime) -> np.ndarray:
    """|s + a phi(s)|, divided by the size of its terms."""
    late = gain * time.transform(s)
    return np.abs(s + late) / (np.abs(s) + np.abs(late))


def _line_with(
    gain: float, time: ServiceTime, number: int, unit: float, first: float
) -> tuple[float, int]:
    """A line with `number` zeros or a few more to its right, and their number."""
    left_end = -time.tail_rate * _AT_THE_TAIL
    farthest = _FARTHEST * float(time.transform(-unit))
    low, high = max(-first, left_end), 1.01 * _right_end(gain, time)
    total = number_right_of(low, gain, time, unit=unit)
    while total < number and low > left_end:
        high, low = low, max(_WIDER * low, left_end)
        if float(time.transform(low)) > farthest:
            return high, total
        total = number_right_of(low, gain, time, unit=unit)
    while total > 2 * number + 4 and high - low > 1e-3 * unit:
        middle = (low + high) / 2
        count = number_right_of(middle, gain, time, unit=unit)
        if count >= number:
            low, total = middle, count
        else:
            high = middle
    return low, total


def _line_without(gain: float, time: ServiceTime, low: float, unit: float) -> float:
    """A line with no zero to its right, at most half a unit farther than needed."""
    high = 1.01 * _right_end(gain, time)
    while high - low > 0.5 * unit:
        middle = (low + high) / 2
        if number_right_of(middle, gain, time, unit=unit):
            break
        high = middle
    return high


def _right_end(gain: float, time: ServiceTime) -> float:
    """The largest possible real part of a zero: x = a phi(x)."""

    def beyond(x):
        return x - gain * float(time.transform(x))

    return zero_between(beyond, 0.0, gain)


def _heights(gain: float, time: ServiceTime, low: float, spacing: float) -> np.ndarray:
    """Im s of a line, from 0 to where |s| is at least twice a |phi(s)|."""
    radius = 2 * gain * float(time.transform(low)) + 2 * abs(low)
    top = math.sqrt(radius**2 - low**2)
    if top > _MOST * spacing:
        raise ValueError(
            f"`gain` {gain:.4g} times the longest times of `service_time` is too large:"
            " there are some hundred thousand roots. Leave out the longest times, or"
            " measure with `paths`."
        )
    return np.linspace(0, top, math.ceil(top / spacing) + 2)


def _starts(
    gain: float,
    time: ServiceTime,
    strip: tuple[float, float],
    unit: float,
    lines: int,
) -> np.ndarray:
    """The points of least |f| on some lines in a strip of real parts."""
    low, high = strip
    heights = _heights(gain, time, low, 2 * _FINE * unit / lines)
    starts = []
    for share in (np.arange(lines) + 0.5) / lines:
        line = low + share * (high - low) + 1j * heights
        size = np.abs(line + gain * time.transform(line))
        walled = np.concatenate([[np.inf], size, [np.inf]])
        least = (size <= walled[:-2]) & (size <= walled[2:])
        starts.append(line[least])
    axis = low + (np.arange(8 * lines) + 0.5) / (8 * lines) * (high - low)
    starts = np.concatenate([*starts, axis])
    # Newton's method stays on the axis and would miss a pair close to it
    starts = np.where(np.imag(starts) == 0, starts + 0.03j * unit, starts)
    return np.append(starts, _next_to_the_tail(gain, time, low, unit))


def _next_to_the_tail(
    gain: float, time: ServiceTime, low: float, unit: float
) -> np.ndarray:
    """The second real zero; phi may be too steep there for Newton's method."""

    def ahead(s):
        return s + gain * float(time.transform(s))

    if low >= -unit or ahead(-unit) >= 0 or ahead(low) <= 0:
        return np.zeros(0)
    return np.array([zero_between(ahead, low, -unit)])


def _newton(s: np.ndarray, gain: float, time: ServiceTime) -> np.ndarray:
    """Zeros and their conjugates, complex128; some may come several times."""
    moving = np.arange(len(s))
    with np.errstate(all="ignore"):
        for _ in range(60):
            here = s[moving]
            slope = 1 - gain * time.slope(here)
            step = (here + gain * time.transform(here)) / slope
            s[moving] -= step
            moving = moving[np.abs(step) > 1e-15 * np.abs(here)]
        kept = s[np.isfinite(s) & (residual(s, gain, time) < _EXACT)]
    # rounding moves real zeros off the axis
    real = np.abs(np.imag(kept)) < 1e-7 * np.abs(kept)
    kept = np.where(real, np.real(kept) + 0j, kept)
    return np.concatenate([kept, kept.conj()])


def _distinct(s: np.ndarray, unit: float) -> np.ndarray:
    """Each zero once."""
    kept: list[complex] = []
    for zero in s:
        if all(abs(zero - other) > _SAME * unit for other in kept):
            kept.append(complex(zero))
    return np.array(kept, complex)
