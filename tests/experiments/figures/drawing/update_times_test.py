"""Times between updates, and the means that theory gives."""

import numpy as np
import pytest

from delayjax import cluster
from experiments import figures
from experiments.figures.drawing import update_times
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import traced


def at(seconds):
    """A trace of updates at these times."""
    count = len(seconds)
    steps = np.arange(count, dtype=np.int32)
    every = np.asarray(seconds, float)
    return cluster.Trace(
        num_workers=1,
        seconds=every,
        update=steps,
        worker=np.zeros(count, np.int32),
        read_version=steps,
        begun=every,
        arrived=every,
        divisor=np.ones(count),
        busy_seconds=np.zeros(1),
    )


def marked(axis, marker):
    """The marks of each row."""
    return {
        line.get_ydata()[0]: line.get_xdata()[0]
        for line in axis.lines
        if line.get_marker() == marker
    }


def test_the_mean_and_most_of_the_times_are_shown():
    gaps = np.arange(1.0, 22.0)  # quantiles of 5 and 95 % are 2 and 20
    (axis,) = update_times.of_traces({"a()": at(np.cumsum(gaps))}).axes
    bar = next(line for line in axis.lines if line.get_linewidth() == 6)
    np.testing.assert_allclose(bar.get_xdata(), [2.0, 20.0])
    assert marked(axis, "o") == {0: 11.0}


def test_theory_is_marked_and_written_where_there_is_one(tmp_path):
    def theory(protocol):
        return 1.5 if protocol == "hardsync" else None

    run = traced(tmp_path)
    figure = figures.update_times(theory=theory).draw(run)
    (axis,) = figure.axes
    assert marked(axis, "D") == {0: 1.5}
    means = [trace.seconds[-1] / trace.num_updates for trace in run.traces.values()]
    assert list(marked(axis, "o").values()) == pytest.approx(means)
    first, second = (f"{mean:.3g}" for mean in means)
    assert {f"{first} (1.5)", second, "mean (theory)"} <= set(texts(figure))
    assert legend(figure) == ["9 of 10 updates", "mean", "theory"]
    check_legible(figure)
    figure = figures.update_times().draw(run)
    assert legend(figure) == ["9 of 10 updates", "mean"]


@pytest.mark.parametrize(("longer", "scale"), [(99.0, "linear"), (101.0, "log")])
def test_times_that_are_far_apart_take_a_logarithmic_axis(longer, scale):
    traces = {"a()": at([1.0, 2.0]), "b()": at([longer, 2 * longer])}
    (axis,) = update_times.of_traces(traces).axes
    assert axis.get_xscale() == scale
    assert scale == "log" or axis.get_xlim()[0] == 0.0


def test_a_trace_without_updates_has_an_empty_row():
    figure = update_times.of_traces({"mindflayer": at([]), "hardsync()": at([1.0])})
    assert "none" in texts(figure)
    check_legible(figure)


def test_many_arms_with_long_names_are_legible():
    trace = at(np.arange(1.0, 30.0))
    traces = {
        f"ringmaster({k}, stop=True) workers={8 * k}": trace for k in range(1, 19)
    }
    check_legible(update_times.of_traces(traces, dict.fromkeys(traces, 254.0)))
