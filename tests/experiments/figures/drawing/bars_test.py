"""Rows: how each label ends, how stale gradients were, and how long updates took."""

import numpy as np
import pytest

from experiments import figures
from experiments.figures.drawing import bars
from experiments.results import analysis
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import DELAYS, RATES, made, timed, traced

# which mean each marks, and what its legend begins with
KINDS = {
    "staleness": (lambda trace: trace.summary().mean, "share of its gradients"),
    "update_times": (
        lambda trace: trace.seconds[-1] / trace.num_updates,
        "9 of 10 updates",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_mean_and_where_there_is_one_the_theory_are_marked_and_written(
    name, tmp_path
):
    def theory(protocol, workers):
        return None if protocol == "ssp" else workers / 2

    run, (mean_of, shown) = traced(tmp_path), KINDS[name]
    figure = getattr(figures, name)(theory=theory).draw(run)
    (axis,) = figure.axes
    means = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
    assert means == pytest.approx([mean_of(trace) for trace in run.traces.values()])
    diamonds = [line for line in axis.lines if line.get_marker() == "D"]
    (diamond,) = (own for own in diamonds if np.isfinite(own.get_xdata()[0]))
    assert (*diamond.get_xdata(), *diamond.get_ydata()) == (1.5, 0)
    first, second = (f"{mean:.3g}" for mean in means)
    assert {f"{first} (1.5)", second, "mean (theory)"} <= set(texts(figure))
    assert legend(figure) == [shown, "mean", "theory"]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == ["hardsync", "ssp"]
    bottom, top = axis.get_ylim()
    assert bottom > top
    check_legible(figure)
    # without theory none is promised
    figure = getattr(figures, name)().draw(run)
    assert legend(figure) == [shown, "mean"]
    assert not any("theory" in text for text in texts(figure))


@pytest.mark.parametrize("name", [*KINDS, "gantt"])
def test_a_run_without_traces_says_so(name, tmp_path):
    with pytest.raises(ValueError, match="no traces"):
        getattr(figures, name)().draw(made(tmp_path))


@pytest.mark.parametrize("draw", [bars.staleness_of, bars.times_of])
def test_a_trace_without_updates_has_an_empty_row(draw):
    figure = draw({"mindflayer": timed([]), "hardsync()": timed([1.0])})
    assert "none" in texts(figure)
    check_legible(figure)


@pytest.mark.parametrize("draw", [bars.staleness_of, bars.times_of])
def test_many_arms_with_long_names_are_legible(draw):
    trace = timed(np.arange(1.0, 361.0), [0] * 300 + [0, 5, 300] * 20)
    names = [f"ringmaster({k}, stop=True) workers={8 * k}" for k in range(1, 19)]
    traces = dict.fromkeys(names, trace)
    check_legible(draw(traces, 254.0))


def step_at(run, delay):
    rows = analysis.where(run.results, delay=delay)
    losses = rows.train_loss.where(rows.diverged == 0, np.inf)
    return losses.groupby(rows.learning_rate).mean().idxmin()


def test_a_row_of_bars_is_a_label_and_its_mean(tmp_path):
    run = made(tmp_path, learning_rate=RATES[:3], delay=DELAYS)
    figure = figures.bars("test_error").draw(run)
    (axis,) = figure.axes
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names == [f"delay={delay}" for delay in DELAYS]
    expected = [
        analysis.where(
            run.results, delay=d, learning_rate=step_at(run, d)
        ).test_error.mean()
        for d in DELAYS
    ]
    dots = {
        round(line.get_ydata()[0]): line.get_xdata()[0]
        for line in axis.lines
        if line.get_marker() == "o"
    }
    np.testing.assert_allclose([dots[i] for i in range(3)], expected)
    assert axis.get_xlabel() == "test error (share)"
    check_legible(figure)


def test_what_diverged_stands_right_of_the_scale_of_bars(tmp_path):
    def loss(learning_rate, delay, seed):
        return 0.1 if delay else float("nan")

    figure = figures.bars("train_loss").draw(made(tmp_path, loss))
    (axis,) = figure.axes
    ((place, row),) = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axis.lines
        if line.get_marker() == "x"
    ]
    assert place > 1.0 and round(row) == 0
    assert "diverged" in texts(figure)


def test_a_diamond_is_what_a_formula_or_a_table_says_of_a_row(tmp_path):
    run = made(tmp_path, learning_rate=RATES[:3], delay=DELAYS)
    said = {f"delay={delay}": 0.1 + delay for delay in DELAYS}
    for theory in (lambda delay: 0.1 + delay, said):
        (axis,) = figures.bars("test_error", theory=theory).draw(run).axes
        diamonds = {
            line.get_ydata()[0]: line.get_xdata()[0]
            for line in axis.lines
            if line.get_marker() == "D"
        }
        assert diamonds == dict(enumerate(said.values()))


def stale(ages):
    """A trace of these staleness values, after fresh ones, so that versions are."""
    every = np.concatenate([np.zeros(max(ages), int), ages])
    return timed(np.arange(len(every)), every)


def test_the_mean_and_most_of_the_times_are_shown():
    gaps = np.arange(1.0, 22.0)  # quantiles of 5 and 95 % are 2 and 20
    (axis,) = bars.times_of({"a()": timed(np.cumsum(gaps))}).axes
    bar = next(line for line in axis.lines if line.get_linewidth() == 4)
    np.testing.assert_allclose(bar.get_xdata(), [2.0, 20.0])
    (mean,) = (line for line in axis.lines if line.get_marker() == "o")
    assert (*mean.get_xdata(), *mean.get_ydata()) == (11.0, 0)


@pytest.mark.parametrize(("longer", "scale"), [(99.0, "linear"), (101.0, "log")])
def test_times_that_are_far_apart_take_a_logarithmic_axis(longer, scale):
    traces = {"a()": timed([1.0, 2.0]), "b()": timed([longer, 2 * longer])}
    (axis,) = bars.times_of(traces).axes
    assert axis.get_xscale() == scale
    assert scale == "log" or axis.get_xlim()[0] == 0.0


def heights(axis):
    """Of the bars of each row, from its base line."""
    return [
        patch.get_data().baseline - np.asarray(patch.get_data().values)
        for patch in axis.patches
    ]


def test_bars_are_as_high_as_their_shares():
    (axis,) = bars.staleness_of({"trace": stale([3, 3, 3, 1, 1, 2])}).axes
    (own,) = heights(axis)
    counts = np.asarray([3, 2, 1, 3])  # three fresh ones precede
    np.testing.assert_allclose(own[:4] / own.max(), counts / counts.max())


def test_bars_of_a_wide_axis_have_areas_as_their_shares():
    trace = stale([0] * 4 + [128] * 4 + [200] * 8)
    (axis,) = bars.staleness_of({"trace": trace}).axes
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
    edges = bars.bins(last, wide=wide)
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
        (axis,) = bars.staleness_of({"a()": stale(ages)}).axes
        told = "staleness (updates)" + ", at most 1 % beyond" * more
        assert axis.get_xlabel() == told
