"""Rates at which errors die out."""

import math

import numpy as np
import pytest

from experiments.results import decay

SECONDS = np.linspace(0.0, 30.0, 31)


def loss(*modes):
    """Of modes (size, rate), at SECONDS."""
    return sum(size * np.exp(-2 * rate * SECONDS) for size, rate in modes)


def test_a_rate_is_measured_once_the_fast_modes_are_gone():
    measured = decay.rate(SECONDS, loss((1.0, 0.1), (100.0, 2.0)))
    assert measured == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("rate", [1.5, -1.5])
def test_what_float32_cannot_hold_is_left_out(rate):
    # of 30 s those are within float32 in which exp(3 t) is below 1e30
    end = math.ceil(30 * math.log(10) / 3)
    for first in (0.0, math.inf, math.nan, *loss((1.0, rate))[end:]):
        path = loss((1.0, rate))
        path[end : end + 2], path[end + 2 :] = first, 0.3  # as if it had come back
        assert decay.rate(SECONDS, path) == pytest.approx(rate)
    path = loss((1.0, rate))
    path[20:] = path[20]  # of the order of 1e26, or 1 / 1e26: that is held
    assert abs(decay.rate(SECONDS, path)) < 0.9 * abs(rate)


def test_a_rate_needs_three_points():
    path = loss((1.0, 0.1))
    # the first third is none of them
    assert math.isnan(decay.rate(SECONDS[:3], path[:3]))
    assert decay.rate(SECONDS[:4], path[:4]) == pytest.approx(0.1)
