"""Second moments: the variance under gradient noise and random delays."""

import math

import numpy as np

from delayjax._src.stability.recursion import Recursion


def second_moments(
    recursion: Recursion, step: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The variance that the noise of one update adds to later updates.

    A random staleness k adds to each update the random pair

        e = (w_k (lead y_t + carried m_{t-1}), y_t) - its mean over k.

    The pairs have the covariances Q = (Q_11, Q_12, Q_22) and are uncorrelated in time.
    x and m are linear filters of e, with z-transforms over D(z), and make the next e.
    Without modulation e has one component, and Q <- Q J as in `Dynamics.step_limit`.

    Returns:
        The map from Q to the Q of the next updates, float64 [3, 3]; the map from Q to
        the variance of x, float64 [3]; the spectral radius J of the first, below 1
        where the variance is finite, and `inf` where the mean of x does not decay.
    """
    recursion.check_longest()
    lags = recursion.longest + len(recursion.taken) + 1
    covariances = autocovariances(recursion.polynomial(step), lags)
    if covariances is None:
        return np.zeros((3, 3)), np.zeros(3), math.inf
    # weights v_j with sum_j v_j f(e^{2 pi i j / n}) = the mean of f / |D|^2, exact for
    # every f with terms from z^-lags to z^lags
    points = 2 ** int(np.ceil(np.log2(2 * lags + 1)))
    around = np.zeros(points)
    around[: lags + 1] = covariances
    around[points - lags :] = covariances[:0:-1]
    spectrum = np.fft.fft(around).real / points
    u = np.exp(-2j * np.pi * np.arange(points) / points)  # 1/z
    beta, c, w = recursion.momentum, recursion.compensation, recursion.mean_weight
    taken = np.polyval(recursion.taken[::-1], u)
    lead, carried = recursion.lead, recursion.carried
    chances, weights = recursion.chances, recursion.weights
    law, weighed, twice = (
        np.fft.fft(recursion.dense(chances * weights**power), points)
        for power in range(3)
    )
    square = float(chances @ weights**2)
    spread = max(float(chances @ (weights - w) ** 2), 0.0)

    # x = (x_1 e_1 + x_2 e_2) / D, and the m of the update before likewise; the weight
    # multiplies the stale x and q
    x_1, x_2 = -step * u * (1 - beta * u), -step * carried * w * u**2
    m_1 = -step * u**2 * (taken * law + c)
    m_2 = u * (1 - u) + step * lead * u**2 * (taken * weighed + c * w)
    q_1, q_2 = lead * c * x_1 + carried * m_1, lead * c * x_2 + carried * m_2

    def products(a_1, a_2, b_1, b_2):
        """The spectrum of a conj(b), complex [3, n]: it multiplies Q."""
        mixed = a_1 * b_2.conj() + a_2 * b_1.conj()
        return np.stack([a_1 * b_1.conj(), mixed, a_2 * b_2.conj()])

    xx = products(x_1, x_2, x_1, x_2)
    qx = products(q_1, q_2, x_1, x_2)
    qq = products(q_1, q_2, q_1, q_2)

    # e_1 = lead d x + f q and e_2 = h x; d, h and f are the random parts of
    # taken w_k z^-k, taken z^-k and w_k
    size = np.abs(taken) ** 2
    dd = size * (square - np.abs(weighed) ** 2)
    dh = size * (w - weighed * law.conj())
    hh = size * (1 - np.abs(law) ** 2)
    df = taken * (twice - w * weighed)
    fh = (taken * (weighed - w * law)).conj()
    made = [
        lead**2 * dd * xx + 2 * lead * df * qx.conj() + spread * qq,
        lead * dh * xx + fh * qx,
        hh * xx,
    ]
    gain = np.real(np.array(made) @ spectrum)
    radius = float(np.abs(np.linalg.eigvals(gain)).max())
    return gain, np.real(xx @ spectrum), radius


def autocovariances(polynomial: np.ndarray, lags: int) -> np.ndarray | None:
    """The means of cos(jw) / |A(e^{iw})|^2 over the circle, j = 0 .. lags.

    Schur and Cohn's recursion takes A = 1 + a_1/z + ... + a_n/z^n down to order 0 with
    its known mean; Levinson and Durbin's recursion goes up again, in O((n + lags)^2):

        k_m = a_m of order m,    |k_m| < 1 for all m iff all zeros are inside, else None
    """
    left = polynomial
    reflections = np.zeros(max(len(polynomial) - 1, lags))
    for order in range(len(polynomial) - 1, 0, -1):
        k = reflections[order - 1] = left[order]
        if not abs(k) < 1:
            return None
        left = (left[:order] - k * left[order:0:-1]) / ((1 - k) * (1 + k))
    result = np.zeros(lags + 1)
    result[0] = np.prod(1 / ((1 - reflections) * (1 + reflections)))
    predictor = np.ones(1)
    for lag in range(1, lags + 1):
        k = reflections[lag - 1]
        predictor = np.append(predictor, 0) + k * np.append(0, predictor[::-1])
        result[lag] = -predictor[1:] @ result[lag - 1 :: -1]
    return result
