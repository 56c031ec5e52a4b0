"""The steps at which roots leave or enter a circle."""

import functools
import math

import numpy as np

from delayjax._src.stability.recursion import Recursion
from delayjax._src.stability.root_finding import minimum_between, sign_change

_FINE = 16  # grid points for each turn of the fastest term
_NOTHING = 1e-13  # relative size of a sum that counts as 0


def crossings(
    recursion: Recursion, *, radius: float = 1.0, below: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which a root of D has the modulus r.

    A root z = r e^{iw} is on the circle where the curve

        a(w) = -M(z) / N(z),    M(z) = (z - 1)(1 - beta/z),

    is real. There roots leave the disc as the step grows if Im a(w) grows with w, and
    enter it if Im a(w) falls. -M conj(N) is a trigonometric polynomial: a grid that
    resolves its fastest term shows all changes of its sign.

    Returns:
        The positive steps, at most `below`, ascending, float64 [n], and the change of
        the number of roots outside of the circle at each, int64 [n]. Without `below`
        only the smallest step is certain to be found.
    """
    curve = _Curve(recursion, radius)
    w, turned, steps = curve.grid()
    angles = []
    for angle, side in ((0.0, 1), (math.pi, -1)):  # a real root, at r or -r
        if 0 < (step := curve.step(angle)) < math.inf:
            angles.append((step, 1 if side * curve.turned(angle) > 0 else -1))
    outward = turned > 0
    cells = np.flatnonzero(outward[1:] != outward[:-1])
    low = np.minimum(steps[cells], steps[cells + 1])
    high = np.maximum(steps[cells], steps[cells + 1])
    bound = below
    if bound is None:
        bound = min([*high[low >= 0], *(step for step, _ in angles)], default=math.inf)
    # within a cell the curve may exceed its ends by a little
    for cell in cells[(high > 0) & (low <= 1.5 * bound)]:
        step = curve.step(sign_change(curve.turned, float(w[cell]), float(w[cell + 1])))
        if 0 < step < math.inf:
            angles.append((step, 2 if outward[cell + 1] else -2))  # a pair
    angles = sorted(item for item in angles if below is None or item[0] <= below)
    steps, changes = zip(*angles, strict=True) if angles else ((), ())
    return np.array(steps), np.array(changes, np.int64)


class _Curve:
    """-M(z) / N(z) on the circle of radius r, as a function of the angle of z."""

    def __init__(self, recursion: Recursion, radius: float):
        self.radius, self.momentum = radius, recursion.momentum
        self.powers = np.flatnonzero(recursion.response)
        # r^-j may exceed float64: scale the largest term to 1
        response = recursion.response[self.powers]
        logs = np.log(np.abs(response)) - self.powers * math.log(radius)
        self.terms = np.sign(response) * np.exp(logs - logs.max())
        with np.errstate(over="ignore"):
            self.scale = float(np.exp(-logs.max()))

    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Angles from 0 to pi, `turned` up to a positive factor, and Re -M/N."""
        last = int(self.powers[-1])
        points = 2 ** math.ceil(math.log2(_FINE * (last + 3)))
        w, circle = _half_circle(points)
        dense = np.zeros(last + 1)
        dense[self.powers] = self.terms
        response = np.fft.rfft(dense, points)
        still = self.radius * circle - (1 + self.momentum)
        still += self.momentum / self.radius * circle.conj()
        product = -still * response.conj()
        turned = np.imag(product)
        turned[1:-1] /= np.imag(circle)[1:-1]
        turned[0], turned[-1] = self.turned(0.0), self.turned(math.pi)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            steps = self.scale * product.real / np.abs(response) ** 2
        steps[np.isnan(steps)] = math.inf  # N is 0 there
        near = []  # angles at which `turned` is closest to 0, or past it
        for i in near_misses(turned):
            size = functools.partial(lambda side, w: side * self.turned(w), turned[i])
            near.append(minimum_between(size, float(w[i - 1]), float(w[i + 1])))
        where = np.searchsorted(w, near := sorted(near))
        w = np.insert(w, where, near)
        turned = np.insert(turned, where, [self.turned(x) for x in near])
        return w, turned, np.insert(steps, where, [self.step(x) for x in near])

    def step(self, w: float) -> float:
        """Re -M/N; infinite where N is 0 to rounding and has no phase."""
        still, response = self._parts(w)
        if abs(response) <= _NOTHING * np.abs(self.terms).sum():
            return math.inf
        return -self.scale * (still / response).real

    def turned(self, w: float) -> float:
        """Im(-M conj(N)) / sin(w), and its limits at w = 0 and pi."""
        still, response = self._parts(w)
        if w in (0.0, math.pi):
            side = 1 if w == 0.0 else -1
            z, beta = side * self.radius, self.momentum
            slope = self.powers @ (self.terms * np.where(self.powers % 2, side, 1))
            return -side * ((z - beta / z) * response.real + still.real * slope)
        return -(still * response.conjugate()).imag / math.sin(w)

    def _parts(self, w: float) -> tuple[complex, complex]:
        """M, and N divided by the scale."""
        r, beta = self.radius, self.momentum
        less = 2 * math.sin(w / 2) ** 2  # 1 - cos(w) cancels near 0
        still = complex(r - 1 - r * less, r * math.sin(w))
        still *= complex(1 - beta / r + beta / r * less, beta / r * math.sin(w))
        return still, complex(self.terms @ np.exp(-1j * w * self.powers))


def near_misses(values: np.ndarray) -> np.ndarray:
    """The points where a parabola through neighbors nearly reaches 0, int64 [n]."""
    before, here, after = values[:-2], values[1:-1], values[2:]
    bend = before - 2 * here + after
    towards_zero = (here * bend > 0) & (here * before > 0) & (here * after > 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shift = (before - after) / (2 * bend)
        least = here - (after - before) ** 2 / (8 * bend)
        close = (least / here < 0) | (np.abs(least) < 0.05 * np.abs(bend))
    return 1 + np.flatnonzero(close & towards_zero & (np.abs(shift) < 1))


@functools.lru_cache(maxsize=8)
def _half_circle(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles from 0 to pi in steps of 2 pi / points, and e^{iw}."""
    w = np.linspace(0, np.pi, points // 2 + 1)
    return w, np.exp(1j * w)
