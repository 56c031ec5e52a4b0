"""Histograms of staleness, and the means that theory gives."""

import numpy as np
import pytest

from delayjax import cluster
from experiments import figures
from experiments.figures.drawing import staleness
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import made, traced


def stale(ages):
    """A trace of these staleness values, one gradient an update."""
    update = np.arange(len(ages), dtype=np.int32) + max(ages)
    first = np.arange(
        max(ages), dtype=np.int32
    )  # fresh ones, so that there are versions
    every = np.concatenate([first, update])
    return cluster.Trace(
        num_workers=1,
        seconds=every.astype(float),
        update=every,
        worker=np.zeros(len(every), np.int32),
        read_version=np.concatenate([first, update - np.asarray(ages, np.int32)]),
        begun=every.astype(float),
        arrived=every.astype(float),
        divisor=np.ones(len(every)),
        busy_seconds=np.zeros(1),
    )


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


def test_the_mean_and_the_theory_are_marked_and_written(tmp_path):
    def theory(protocol, workers):
        return None if protocol == "ssp" else workers / 2

    run = traced(tmp_path)
    figure = figures.staleness(theory=theory).draw(run)
    (axis,) = figure.axes
    means = [line.get_xdata()[0] for line in axis.lines if line.get_linewidth() == 2.2]
    assert means == [trace.summary().mean for trace in run.traces.values()]
    diamonds = [
        (line.get_ydata()[0], line.get_xdata()[0])
        for line in axis.lines
        if line.get_marker() == "D"
    ]
    assert diamonds == [(0, 1.5)]
    first, second = (f"{mean:.3g}" for mean in means)
    assert {f"{first} (1.5)", second, "mean (theory)"} <= set(texts(figure))
    assert legend(figure) == ["share of its gradients", "mean", "theory"]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == ["hardsync", "ssp"]
    bottom, top = axis.get_ylim()
    assert bottom > top
    check_legible(figure)


def test_without_theory_none_is_promised(tmp_path):
    figure = figures.staleness().draw(traced(tmp_path))
    assert legend(figure) == ["share of its gradients", "mean"]
    assert not any("theory" in text for text in texts(figure))


def test_a_run_without_traces_says_so(tmp_path):
    for figure in (figures.staleness(), figures.update_times(), figures.gantt()):
        with pytest.raises(ValueError, match="no traces"):
            figure.draw(made(tmp_path))


def test_what_lies_beyond_the_axis_is_told():
    usual = stale([1] * 300)
    (axis,) = staleness.of_traces({"a()": usual}).axes
    assert axis.get_xlabel() == "staleness (updates)"
    within = stale([1] * 19 + [2])  # beyond the percentile, not beyond its bin
    assert 1 < within.summary().p99 < 2
    (axis,) = staleness.of_traces({"a()": within}).axes
    assert axis.get_xlabel() == "staleness (updates)"
    (axis,) = staleness.of_traces({"a()": stale([1] * 300 + [9])}).axes
    assert axis.get_xlabel() == "staleness (updates), at most 1 % beyond"


def test_a_trace_without_gradients_has_an_empty_row():
    empty = stale([0])
    none = np.zeros(0, np.int32)
    fields = dict(update=none, worker=none, read_version=none)
    floats = dict(begun=np.zeros(0), arrived=np.zeros(0))
    empty = cluster.Trace(**{**vars(empty), **fields, **floats})
    figure = staleness.of_traces({"mindflayer": empty, "hardsync()": stale([0, 0])})
    assert "none" in texts(figure)
    check_legible(figure)


def test_many_arms_with_long_names_are_legible():
    trace = stale([0, 5, 300] * 20)
    traces = {
        f"ringmaster({k}, stop=True) workers={8 * k}": trace for k in range(1, 19)
    }
    check_legible(staleness.of_traces(traces, dict.fromkeys(traces, 254.0)))
