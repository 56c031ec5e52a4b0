"""The largest step of a pipeline on a quadratic, in which each stage has a delay."""

import functools
import math

import numpy as np
import scipy
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds
from delayjax._src.stability.crossings import near_misses
from delayjax._src.stability.root_finding import minimum_between, sign_change

_FINE = 64  # grid points for each turn of the fastest term
_BLOCK = 256  # angles at a time: their matrices need [n, d, r] numbers
_NOTHING = 1e-12  # relative size of an eigenvalue that counts as 0
_ROUNDING = 1e-6  # float32 leaves this error in a Hessian


@kinds.checked
def pipeline_step_limit(
    hessian: ArrayLike, delays: ArrayLike, *, momentum: kinds.ShareFloat = 0.0
) -> float:
    """The learning rate at which SGD begins to diverge in a pipeline without a flush.

    The loss is a quadratic with the Hessian H, as in least squares. The coordinates of
    stage s are late by tau_s, in one of two forms:

        mixed versions:  g_s(t) = sum_r H_sr x_r(t - tau_r)
        late gradients:  g_s(t) = sum_r H_sr x_r(t - tau_s)
        m(t)     = beta m(t - 1) + g(t)
        x(t + 1) = x(t) - eta m(t)

    PipeDream takes its gradients at mixed versions of the weights. `delayed` with a
    tree of delays has late gradients. Their modes z^t are the roots of

        mixed versions:  det((z - 1)(1 - beta/z) I + eta H D) = 0
        late gradients:  det((z - 1)(1 - beta/z) I + eta D H) = 0

    with D = diag(z^-tau). H D and D H have the same eigenvalues, so both forms have the
    same roots, and the same limit: the smallest positive

        eta(w) = -(z - 1)(1 - beta/z) / mu(w),    z = e^{iw}, where that is real,

    for the eigenvalues mu of H^{1/2} D H^{1/2}. Some larger steps may be stable again.
    With vertical sync all stages have the delay S - 1 of the first, and the result is
    the limit of `Dynamics(S - 1, momentum=beta)` over the largest eigenvalue of H.

    Args:
        hessian: H, [d, d], symmetric, without negative eigenvalues.
        delays: tau of each coordinate, the delay of its stage, in updates, [d].
        momentum: beta in [0, 1), of the heavy ball, as in `optax.sgd`.

    Returns:
        float64, eta. O(d^3 K) for delays of up to K: 2 s for d = 50 and K = 8.

    Raises:
        ValueError: if `hessian` is not symmetric, has a negative eigenvalue or none
            that is positive, or `delays` does not have one delay for each coordinate.

    Example:
        >>> hessian = [[1.0, 0.5], [0.5, 1.0]]           # largest eigenvalue 1.5
        >>> for delays in ([0, 0], [3, 3], [3, 0]):
        ...     print(round(1.5 * pipeline_step_limit(hessian, delays), 3))
        2.0
        0.445
        0.86

    References:
        Narayanan et al., PipeDream, arXiv:1806.03377, has mixed versions and vertical
        sync. The equations, and that both forms have one limit, are ours.
    """
    root = _root(hessian)
    taus = checks.as_counts("delays", delays, listed=True).astype(np.int64)
    if len(taus) != len(root):
        raise ValueError(f"`delays` must be {len(root)} numbers, got {len(taus)}.")
    momentum = float(momentum)
    return _Circle(root, taus, momentum).first_crossing()


class _Circle:
    """The eigenvalues mu and the steps eta at the angles w of the unit circle."""

    def __init__(self, root: np.ndarray, taus: np.ndarray, momentum: float):
        self.root, self.taus, self.momentum = root, taus, momentum

    def first_crossing(self) -> float:
        """The smallest step at which a root is on the circle."""
        ends = np.real(self.eigenvalues(np.array([math.pi]))).ravel()
        real = ends[ends > _NOTHING * np.abs(ends).max()]  # of roots at -1
        least = float(min(2 * (1 + self.momentum) / real, default=math.inf))
        w = self.grid()
        for mus in _followed(self.eigenvalues(w)).T:
            least = self.limit_of_branch(w, mus, least)
        return least

    def limit_of_branch(self, w: np.ndarray, mus: np.ndarray, most: float) -> float:
        """The smallest step of one eigenvalue, known at some angles; at most `most`."""

        def mu(angle: float) -> complex:
            eigenvalues = self.eigenvalues(np.array([angle]))[0]
            return eigenvalues[
                np.argmin(np.abs(eigenvalues - np.interp(angle, w, mus)))
            ]

        def step(angle: float) -> float:
            return float(self.step(angle, mu(angle)))

        def turned(angle: float) -> float:
            return float(self.turned(angle, mu(angle)))

        def away(side: float, angle: float) -> float:
            return side * turned(angle)

        sides, angles = self.turned(w, mus), w.tolist()
        steps = np.nan_to_num(self.step(w, mus), nan=math.inf)
        for i in near_misses(sides):  # between the angles it may be past 0
            if 0 < steps[i] < 2 * most:
                size = functools.partial(away, float(sides[i]))
                angles.append(minimum_between(size, angles[i - 1], angles[i + 1]))
        new = angles[len(w) :]
        where = np.searchsorted(w, new)
        steps = np.insert(steps, where, [step(angle) for angle in new])
        outward = np.insert(sides, where, [turned(angle) for angle in new]) > 0
        angles.sort()
        for i in np.flatnonzero(outward[1:] != outward[:-1]):
            # within a cell the step may exceed its ends by a little
            if max(steps[i : i + 2]) > 0 and min(steps[i : i + 2]) < 2 * most:
                limit = step(sign_change(turned, angles[i], angles[i + 1]))
                most = min(most, limit) if limit > 0 else most
        return most

    def eigenvalues(self, w: np.ndarray) -> np.ndarray:
        """The eigenvalues of H^{1/2} D H^{1/2}, complex128 [n, r]."""
        blocks = []
        for block in np.array_split(w, -(-len(w) // _BLOCK)):
            turns = np.exp(-1j * np.multiply.outer(block, self.taus))
            matrices = self.root.T @ (turns[:, :, None] * self.root)
            blocks.append(np.linalg.eigvals(matrices))
        return np.concatenate(blocks)

    def still(self, w: np.ndarray | float) -> np.ndarray:
        """M = (z - 1)(1 - beta/z), without cancellation near w = 0."""
        damped = 1 - self.momentum - self.momentum * np.expm1(-1j * w)
        return np.expm1(1j * w) * damped

    def step(self, w: np.ndarray | float, mu: np.ndarray | complex) -> np.ndarray:
        """Re eta; not finite where mu is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.real(-self.still(w) / mu)

    def turned(self, w: np.ndarray | float, mu: np.ndarray | complex) -> np.ndarray:
        """Im(-M conj(mu)) / sin(w), which has the sign of Im eta."""
        return np.imag(-self.still(w) * np.conj(mu)) / np.sin(w)

    def grid(self) -> np.ndarray:
        """Angles in (0, pi): even ones, and towards 0 as fine as momentum needs."""
        count = _FINE * (int(self.taus.max()) + 2) // 2
        even = np.pi * np.arange(1, count) / count
        fine = np.geomspace(1e-3 * (1 - self.momentum) * even[0], even[0], _FINE)
        # at pi all values are real: an angle on one side of it is enough
        return np.concatenate([fine[:-1], even, [math.pi * (1 - 1e-7)]])


def _followed(eigenvalues: np.ndarray) -> np.ndarray:
    """The eigenvalues [n, r] in such an order that each column changes little."""
    rows = [eigenvalues[0]]
    for row in eigenvalues[1:]:
        distances = np.abs(rows[-1][:, None] - row)
        rows.append(row[scipy.optimize.linear_sum_assignment(distances)[1]])
    return np.array(rows)


def _root(hessian: ArrayLike) -> np.ndarray:
    """R [d, r] with R R^T = H, without the eigenvalues that are 0."""
    matrix = checks.as_reals("hessian", hessian)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not square or not np.isfinite(matrix).all():
        raise ValueError(
            f"`hessian` must be a finite matrix [d, d], got shape {list(matrix.shape)}."
        )
    size, apart = np.abs(matrix).max(), np.abs(matrix - matrix.T).max()
    if apart > _ROUNDING * size:
        raise ValueError(
            f"`hessian` must be symmetric, got entries that differ by {apart:.3g}: hand"
            " on (H + H.T) / 2."
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] < -_ROUNDING * size or not values[-1] > 0:
        raise ValueError(
            "`hessian` must have a positive eigenvalue and no negative one, got"
            f" {values[0]:.3g} .. {values[-1]:.3g}."
        )
    kept = values > _NOTHING * values[-1]
    return vectors[:, kept] * np.sqrt(values[kept])
