"""How many consecutive steps a resampled block should have."""

import math

import numpy as np


def block_length(series: np.ndarray) -> int:
    """Politis and White's choice for the moving blocks of `Recorded.service`.

    The length b minimizes the mean square error of the variance of a mean, summed over
    the rows of `series`, float64 [W, T].
    """
    size = series.shape[1]
    in_a_row = max(5, math.ceil(math.sqrt(math.log10(size))))
    lags = np.arange(min(math.ceil(math.sqrt(size)) + in_a_row, size - 1) + 1)
    centered = series - series.mean(axis=1, keepdims=True)
    covariances = np.stack(
        [(centered[:, lag:] * centered[:, : size - lag]).sum(axis=1) for lag in lags]
    )  # [lags, W], each times T
    together = covariances.sum(axis=1)
    if not together[0] > 0:  # constant times
        return 1
    bound = 2 * math.sqrt(math.log10(size) / size)
    last = _last_lag(abs(together[1:] / together[0]) > bound, in_a_row)
    weights = np.clip(2 * (1 - lags / max(2 * last, 1)), 0, 1)
    weights[1:] *= 2  # both signs
    slope, sums = (weights * lags) @ covariances, weights @ covariances
    cube = 1.5 * size * (slope**2).sum() / (sums**2).sum()
    most = math.ceil(min(3 * math.sqrt(size), size / 3))
    return max(min(round(cube ** (1 / 3)), most), 1)


def _last_lag(correlated: np.ndarray, in_a_row: int) -> int:
    """The last lag before that many lags in a row without a correlation."""
    for lag in range(len(correlated)):
        if not correlated[lag : lag + in_a_row].any():
            return lag
    return len(correlated)
