"""Histograms of staleness."""

import numpy as np
import pytest

from experiments.figures.drawing import staleness
from tests.experiments.figures.runs import timed


def stale(ages):
    """A trace of these staleness values, after fresh ones, so that versions are."""
    every = np.concatenate([np.zeros(max(ages), int), ages])
    return timed(np.arange(len(every)), every)


def heights(axis):
    """Of the bars of each row, from its base line."""
    return [
        patch.get_data().baseline - np.asarray(patch.get_data().values)
        for patch in axis.patches
    ]


def test_bars_are_as_high_as_their_shares():
    (axis,) = staleness.of_traces({"trace": stale([3, 3, 3, 1, 1, 2])}).axes
    (own,) = heights(axis)
    counts = np.asarray([3, 2, 1, 3])  # three fresh ones precede
    np.testing.assert_allclose(own[:4] / own.max(), counts / counts.max())


def test_bars_of_a_wide_axis_have_areas_as_their_shares():
    trace = stale([0] * 4 + [128] * 4 + [200] * 8)
    (axis,) = staleness.of_traces({"trace": trace}).axes
    assert axis.get_xscale() == "function"
    (patch,) = axis.patches
    edges = np.asarray(patch.get_data().edges)
    ages = trace.update - trace.read_version
    widths = np.diff(np.log2(1 + edges))
    areas = heights(axis)[0] * widths
    np.testing.assert_allclose(
        areas / areas.sum(), np.histogram(ages, edges)[0] / len(ages), atol=1e-12
    )


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("last", [1.0, 7.0, 90.5, 3000.0])
def test_bins_hold_whole_numbers_up_to_the_last(last, wide):
    edges = staleness.bins(last, wide=wide)
    assert edges[0] == -0.5 and edges[-2] < last <= edges[-1]
    np.testing.assert_array_equal(edges % 1.0, 0.5)
    widths = np.diff(edges)
    if wide:
        octaves = np.diff(np.log2(1 + edges))
        assert octaves.min() >= 0.25
        one_less = np.log2((edges[1:]) / (1 + edges[:-1]))
        assert (one_less[widths > 1] < 0.25).all()  # no wider than it need be
    else:
        np.testing.assert_array_equal(widths, 1.0)


def test_what_lies_beyond_the_axis_is_told():
    within = [1] * 19 + [2]  # beyond the percentile, not beyond its bin
    assert 1 < stale(within).summary().p99 < 2
    for ages, more in (([1] * 300, False), (within, False), ([1] * 300 + [9], True)):
        (axis,) = staleness.of_traces({"a()": stale(ages)}).axes
        told = "staleness (updates)" + ", at most 1 % beyond" * more
        assert axis.get_xlabel() == told
