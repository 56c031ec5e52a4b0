"""Bars, gaps, ticks and marks of the first seconds agree with the trace."""

import math

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from delayjax import cluster
from delayjax.cluster import protocols
from experiments.figures.drawing import gantt
from tests.experiments.figures.legible import check_legible, legend, texts


def simulated(rule, workers=3, updates=60, law=None, **options):
    machine = cluster.Cluster(workers, law or cluster.exponential(1.0), **options)
    return cluster.simulate(machine, rule, updates, seed=0)


def bars(axis, *, hatched=False):
    """(row, begin, end) of the bars of one kind."""
    return sorted(
        (
            round(bar.get_y() + bar.get_height() / 2),
            bar.get_x(),
            bar.get_x() + bar.get_width(),
        )
        for bar in axis.patches
        if bool(bar.get_hatch()) == hatched
    )


def ticks(axis):
    (lines,) = (c for c in axis.collections if isinstance(c, LineCollection))
    return [segment[0][0] for segment in lines.get_segments()]


def close(result, expected):
    np.testing.assert_allclose(result, sorted(expected), atol=1e-12)
    assert len(result) > 5


def tasks_of(gradients, end):
    """(worker, begin, end) of the gradients of a trace that have begun by `end`."""
    tasks = zip(gradients.worker, gradients.begun, gradients.arrived, strict=True)
    return [task for task in tasks if task[1] < end]


@pytest.mark.parametrize("rule", [protocols.hardsync(), protocols.ringmaster(1)])
def test_a_bar_is_a_gradient_from_its_read_to_its_arrival_hatched_if_dropped(rule):
    trace = simulated(rule)
    figure = gantt.of_traces({"a()": trace})
    (axis,) = figure.axes
    end = axis.get_xlim()[1]
    close(bars(axis), tasks_of(trace, end))
    names = ["update", "computing", "computing, then dropped", "idle, or canceled"]
    if len(trace.dropped.worker):
        close(bars(axis, hatched=True), tasks_of(trace.dropped, end))
    else:
        names.remove("computing, then dropped")
        assert bars(axis, hatched=True) == []
    assert legend(figure) == names


@pytest.mark.parametrize(
    ("rule", "workers"),
    [(protocols.n_softsync(1), 3), (protocols.mindflayer(1, 0.01), 1)],
)
def test_ticks_are_the_updates_those_without_gradients_too(rule, workers):
    trace = simulated(rule, workers, 20)
    assert (trace.counts == 0).any() == (workers == 1)
    (axis,) = gantt.of_traces({"a()": trace}).axes
    end = axis.get_xlim()[1]
    result = ticks(axis)
    np.testing.assert_array_equal(result, trace.seconds[trace.seconds <= end])
    assert len(result) > 5


def test_workers_are_rows_from_above():
    figure = gantt.of_traces({"hardsync()": simulated(protocols.hardsync())})
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1", "2"]
    bottom, top = axis.get_ylim()
    assert bottom > 2 and top < 0
    assert axis.get_xlabel() == "simulated time (s)" and axis.get_ylabel() == "worker"
    check_legible(figure)


def test_a_log_has_marks_where_a_worker_contributed(tmp_path):
    simulated(protocols.n_softsync(1)).save(tmp_path / "log.csv")
    trace = cluster.load_trace(tmp_path / "log.csv")
    figure = gantt.of_traces({"log": trace})
    (axis,) = figure.axes
    assert len(axis.patches) == 0
    (marks,) = (line for line in axis.lines if line.get_marker() == "|")
    end = axis.get_xlim()[1]
    times = trace.seconds[trace.update]
    close(
        sorted(zip(*marks.get_data(), strict=True)),
        zip(times[times < end], trace.worker[times < end], strict=True),
    )
    assert legend(figure) == ["update", "update with its gradient"]
    assert axis.get_xlabel() == "time (s)"
    check_legible(figure)


def test_of_many_workers_some_are_shown_the_first_and_the_last_among_them():
    trace = simulated(protocols.k_async(1), workers=100, updates=1000)
    shown = gantt.workers_shown(trace)
    assert len(shown) == 16 and (shown[0], shown[-1]) == (0, 99)
    assert len(set(np.diff(shown))) <= 2  # equal distances, up to rounding
    figure = gantt.of_traces({"k_async(1)": trace})
    (axis,) = figure.axes
    rows = {row for row, *_ in bars(axis)}
    assert rows == set(range(16))
    assert axis.get_ylabel() == "worker\n(16 of 100)"
    for tick, text in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True):
        assert text.get_text() == str(shown[int(tick)])
    check_legible(figure)


def test_bars_of_the_workers_shown_are_their_own():
    slow = np.linspace(1.0, 4.0, 40)
    trace = simulated(
        protocols.k_async(1), 40, 400, cluster.constant(1.0), slowdown=slow.tolist()
    )
    (axis,) = gantt.of_traces({"k_async(1)": trace}).axes
    shown = gantt.workers_shown(trace)
    for row, begin, end in bars(axis):
        assert end - begin == pytest.approx(slow[shown[row]])


def test_a_typical_worker_has_a_few_bars_and_none_has_very_many():
    even = simulated(protocols.k_async(1), 4, 100, cluster.constant(2.0))
    bars = gantt.bars(even, gantt.workers_shown(even))
    assert gantt.window(bars) == pytest.approx(6 * 2.0)
    uneven = simulated(
        protocols.k_async(1), 3, 300, cluster.constant(1.0), slowdown=[1.0, 9.0, 9.0]
    )
    bars = gantt.bars(uneven, gantt.workers_shown(uneven))
    assert gantt.window(bars) == pytest.approx(24 * 1.0)


def test_a_short_trace_is_shown_whole():
    trace = simulated(protocols.k_async(1), 2, 3, cluster.constant(1.0))
    (axis,) = gantt.of_traces({"k_async(1)": trace}).axes
    assert axis.get_xlim() == (0.0, trace.seconds[-1])


def test_the_first_four_arms_have_panels_on_one_clock():
    rules = {f"ssp({bound})": protocols.ssp(bound) for bound in (0, 1, 2, 3, math.inf)}
    traces = {name: simulated(rule) for name, rule in rules.items()}
    figure = gantt.of_traces(traces)
    assert [axis.get_title() for axis in figure.axes] == list(traces)[:4]
    assert len({axis.get_xlim() for axis in figure.axes}) == 1
    assert any("the first 4 of 5 arms" in text for text in texts(figure))
    check_legible(figure)
    assert not any(
        "first" in text
        for text in texts(gantt.of_traces(dict(list(traces.items())[:4])))
    )
