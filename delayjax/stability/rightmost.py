"""The zeros of s + a phi(s) that decay most slowly, counted and found."""

import math

import numpy as np

from delayjax.stability.crossings import brent
from delayjax.stability.delay_laws import DelayLaw

_WIDER = 1.2  # how much farther to the left each look goes
_AT_THE_TAIL = 1 - 1e-3  # of the tail's rate, where phi is still moderate
_FARTHEST = 300.0  # times as large as on the first line may phi be on the last one
_FINE = 0.25  # r between two points of a line
_MOST = 2**21  # points of a line: beyond, a search would take half a minute
_CRITICAL = 1e-12  # of a: nearer to it two zeros cannot be told apart
_SAME = 3e-7  # r between two values of one zero
_EXACT = 1e-10  # of |s| + a |phi(s)|, what rounding may leave of their sum


def rightmost_roots(damping: float, law: DelayLaw, *, number: int) -> np.ndarray:
    """The zeros of f(s) = s + a phi(s) of the largest real parts.

    For Re s >= c no zero is beyond |s| = a phi(c), since |phi(s)| <= phi(Re s). So all
    zeros to the right of c are in half a disc, and as many as f turns about 0 along its
    edge. The line c goes to the left until there are enough; Newton's method, started
    where |f| is small, has to find each of them.

    Args:
        damping: a, positive.
        law: with its phi.
        number: how many are wanted.

    Returns:
        complex128 [n], in no order, with conjugates. n is at least `number`; less where
        there are no more to the right of -`law.tail_rate`, or they are so far to the
        left that phi is a few hundred times as large as for the first ones. Costs in
        proportion to a times the longest delay, for there are as many zeros between
        the axis and the last line; 8 s if that is 10^5 means.

    Raises:
        ValueError: if a times the longest delay is above some hundred thousand.
    """
    # the scale of phi on the lines of interest: 1/r is the mean of e^{rT} T
    unit = meeting_rate(law)
    for lines in (2, 3, 5, 9, 17, 33):
        # another line each time, lest a zero be on it
        low, total = _line_with(damping, law, number, unit, (1 + 0.03 * lines) * unit)
        high = _line_without(damping, law, low, unit)
        starts = _starts(damping, law, (low, high), unit, lines)
        found = _newton(starts, damping, law)
        found = _distinct(found[np.real(found) > low], unit)
        if abs(damping * float(law.transform(-unit)) / unit - 1) < _CRITICAL:
            found = found[np.abs(found + unit) > 1e-3 * unit]
            found = np.append(found, [-unit, -unit])
        if len(found) == total:
            return found
    raise RuntimeError(
        f"{len(found)} of {total} roots are found at `damping` {damping}: please"
        " report, with the law."
    )


def meeting_rate(law: DelayLaw) -> float:
    """The r of the largest r / phi(-r), in 1/seconds: two real zeros meet at -r."""

    def ahead(rate):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = float(1 - rate * law.slope(-rate) / law.transform(-rate))
        return value if math.isfinite(value) else -1.0

    # e^{rT} gives the mean of T more weight, so r is at most 1/mean
    high = min(1 / law.mean, law.tail_rate * (1 - 1e-12))
    if ahead(high) >= 0:
        return high
    return brent(ahead, 0.0, high)


def number_right_of(low: float, damping: float, law: DelayLaw, *, unit: float) -> int:
    """How many zeros are to the right of Re s = low; `unit` is the `meeting_rate`."""
    line = low + 1j * _heights(damping, law, low, _FINE * unit)
    values = line + damping * law.transform(line)
    while True:
        turns = np.angle(values[1:] / values[:-1])
        coarse = np.flatnonzero(np.abs(turns) > 0.7)
        fine = np.abs(np.diff(line)) > 1e-9 * unit  # at a zero on the line it ends
        coarse = coarse[fine[coarse]]
        if not coarse.size:
            break
        between = (line[coarse] + line[coarse + 1]) / 2
        line = np.insert(line, coarse + 1, between)
        seen = between + damping * law.transform(between)
        values = np.insert(values, coarse + 1, seen)
    # along the arc to the top f is s, turned by less than a quarter
    top = line[-1]
    arc = np.angle(top) + np.angle(values[-1] / top)
    return round((arc - turns.sum()) / math.pi)


def residual(s: np.ndarray, damping: float, law: DelayLaw) -> np.ndarray:
    """|s + a phi(s)|, by the size of its terms."""
    late = damping * law.transform(s)
    return np.abs(s + late) / (np.abs(s) + np.abs(late))


def _line_with(
    damping: float, law: DelayLaw, number: int, unit: float, first: float
) -> tuple[float, int]:
    """A line with `number` zeros or little more to its right, and how many."""
    left_end = -law.tail_rate * _AT_THE_TAIL
    farthest = _FARTHEST * float(law.transform(-unit))
    low, high = max(-first, left_end), 1.01 * _right_end(damping, law)
    total = number_right_of(low, damping, law, unit=unit)
    while total < number and low > left_end:
        high, low = low, max(_WIDER * low, left_end)
        if float(law.transform(low)) > farthest:
            return high, total
        total = number_right_of(low, damping, law, unit=unit)
    while total > 2 * number + 4 and high - low > 1e-3 * unit:
        middle = (low + high) / 2
        count = number_right_of(middle, damping, law, unit=unit)
        if count >= number:
            low, total = middle, count
        else:
            high = middle
    return low, total


def _line_without(damping: float, law: DelayLaw, low: float, unit: float) -> float:
    """A line to the right of `low` that has no zero to its right, but soon has."""
    high = 1.01 * _right_end(damping, law)
    while high - low > 0.5 * unit:
        middle = (low + high) / 2
        if number_right_of(middle, damping, law, unit=unit):
            break
        high = middle
    return high


def _right_end(damping: float, law: DelayLaw) -> float:
    """The largest real part that |s| = a |phi(s)| allows: x = a phi(x)."""

    def beyond(x):
        return x - damping * float(law.transform(x))

    return brent(beyond, 0.0, damping)


def _heights(damping: float, law: DelayLaw, low: float, spacing: float) -> np.ndarray:
    """Im s of a line from 0 to where |s| is twice a |phi(s)| or more."""
    radius = 2 * damping * float(law.transform(low)) + 2 * abs(low)
    top = math.sqrt(radius**2 - low**2)
    if top > _MOST * spacing:
        raise ValueError(
            f"`damping` {damping:.4g} by the longest delays of `law` leaves too many"
            " roots to count, some hundred thousand: leave out the longest delays, or"
            " measure with `sdde_paths`."
        )
    return np.linspace(0, top, math.ceil(top / spacing) + 2)


def _starts(
    damping: float,
    law: DelayLaw,
    strip: tuple[float, float],
    unit: float,
    lines: int,
) -> np.ndarray:
    """Points of some lines in a strip of real parts where |f| is smallest."""
    low, high = strip
    heights = _heights(damping, law, low, 2 * _FINE * unit / lines)
    starts = []
    for share in (np.arange(lines) + 0.5) / lines:
        line = low + share * (high - low) + 1j * heights
        size = np.abs(line + damping * law.transform(line))
        walled = np.concatenate([[np.inf], size, [np.inf]])
        least = (size <= walled[:-2]) & (size <= walled[2:])
        starts.append(line[least])
    axis = low + (np.arange(8 * lines) + 0.5) / (8 * lines) * (high - low)
    starts = np.concatenate([*starts, axis])
    # from the axis Newton's method would not find a pair that is close to it
    starts = np.where(np.imag(starts) == 0, starts + 0.03j * unit, starts)
    return np.append(starts, _next_to_the_tail(damping, law, low, unit))


def _next_to_the_tail(
    damping: float, law: DelayLaw, low: float, unit: float
) -> np.ndarray:
    """The second real zero, where phi may be too steep for Newton's method."""

    def ahead(s):
        return s + damping * float(law.transform(s))

    if low >= -unit or ahead(-unit) >= 0 or ahead(low) <= 0:
        return np.zeros(0)
    return np.array([brent(ahead, low, -unit)])


def _newton(s: np.ndarray, damping: float, law: DelayLaw) -> np.ndarray:
    """Zeros with Im s >= 0 and their conjugates, complex128, perhaps several times."""
    moving = np.arange(len(s))
    with np.errstate(all="ignore"):
        for _ in range(60):
            here = s[moving]
            slope = 1 - damping * law.slope(here)
            step = (here + damping * law.transform(here)) / slope
            s[moving] -= step
            moving = moving[np.abs(step) > 1e-15 * np.abs(here)]
        kept = s[np.isfinite(s) & (residual(s, damping, law) < _EXACT)]
    # rounding leaves real zeros a little above or below the axis
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
