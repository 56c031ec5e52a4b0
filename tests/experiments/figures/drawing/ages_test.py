"""How many gradients are older than so many updates."""

import numpy as np
import pytest

import delayjax as dj
from experiments import figures
from experiments.advise import pictures
from experiments.figures.drawing import ages
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import timed, traced


def stale(staleness):
    """A trace of these staleness values, after fresh ones, so that versions are."""
    every = np.concatenate([np.zeros(max(staleness), int), staleness])
    return timed(np.arange(len(every)), every)


def lines(axis):
    return [line for line in axis.lines if line.get_drawstyle() == "steps-post"]


def markers(axis, diamond=False):
    """(x, y) of the means of the traces, or of those of theory."""
    return [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axis.lines
        if line.get_linestyle() == "None"
        and (line.get_markerfacecolor() == "none") == diamond
    ]


@pytest.mark.parametrize(
    "staleness", [[3, 3, 3, 1, 1, 2], [0], [0] * 4 + [128] * 4 + [200] * 8]
)
def test_a_line_at_an_age_is_the_share_of_gradients_that_are_older(staleness):
    trace = stale(staleness)
    (axis,) = ages.of_traces({"trace": trace}).axes
    (line,) = lines(axis)
    every = trace.update - trace.read_version
    older = [100 * np.mean(every > age) for age in line.get_xdata()]
    np.testing.assert_allclose(line.get_ydata(), older, atol=1e-9)
    ((at, height),) = markers(axis)
    assert at == pytest.approx(trace.summary().mean)
    assert height == pytest.approx(100 * np.mean(every > at))
    assert axis.get_xscale() == ("symlog" if max(staleness) > 5 else "linear")


def test_the_axis_ends_where_one_in_two_hundred_gradients_is_older():
    (axis,) = ages.of_traces({"a()": stale([1] * 300 + [9])}).axes
    assert axis.get_xlim()[1] == 2
    (axis,) = ages.of_traces({"a()": stale([1] * 300 + [9] * 3)}).axes
    assert axis.get_xlim()[1] == 10


def test_the_mean_and_where_there_is_one_the_theory_are_marked_and_written(tmp_path):
    def theory(protocol, workers):
        return None if protocol == "ssp" else workers / 2

    run = traced(tmp_path)
    first, second = (trace.summary().mean for trace in run.traces.values())
    figure = figures.staleness(theory=theory).draw(run)
    (axis,) = figure.axes
    assert [at for at, _ in markers(axis)] == pytest.approx([first, second])
    assert [at for at, _ in markers(axis, diamond=True)] == [1.5]
    names = [f"hardsync (mean {first:.3g}, theory 1.5)", f"ssp (mean {second:.3g})"]
    assert legend(figure) == [*names, "theory"]
    check_legible(figure)
    # without theory none is promised
    figure = figures.staleness().draw(run)
    assert not any("theory" in text for text in texts(figure))


def test_a_trace_without_updates_says_none():
    figure = ages.of_traces({"mindflayer": timed([]), "hardsync()": timed([1.0])})
    assert legend(figure) == ["mindflayer (none)", "hardsync() (mean 0)"]
    assert len(lines(figure.axes[0])[0].get_xdata()) == 0
    check_legible(figure)


def test_many_arms_with_long_names_are_legible():
    trace = timed(np.arange(1.0, 361.0), [0] * 300 + [0, 5, 300] * 20)
    names = [f"ringmaster({k}, stop=True) workers={8 * k}" for k in range(1, 19)]
    check_legible(ages.of_traces(dict.fromkeys(names, trace), 254.0))


def test_advice_shows_the_protocols_that_use_late_gradients():
    cluster = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    choices = dj.cluster.advise(cluster, target=0.3, seeds=2).choices
    late = [one for one in choices if one.max_staleness]
    assert 0 < len(late) < len(choices)
    (axis,) = pictures.staleness(choices).axes
    for one, line in zip(late, lines(axis), strict=True):
        older = 100 * (1 - one.staleness.cumsum())
        np.testing.assert_allclose(line.get_ydata(), older, atol=1e-9)
    means = [one.mean_staleness.mean for one in late]
    assert [at for at, _ in markers(axis)] == pytest.approx(means)
