"""Rows of bars: the end of each label, and the times of updates."""

import numpy as np
import pytest

from experiments import figures
from experiments.figures.drawing import bars
from experiments.results import analysis
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import DELAYS, RATES, made, step_at, timed, traced


def test_the_mean_and_where_there_is_one_the_theory_are_marked_and_written(tmp_path):
    def theory(protocol, workers):
        return None if protocol == "ssp" else workers / 2

    run = traced(tmp_path)
    figure = figures.update_times(theory=theory).draw(run)
    (axis,) = figure.axes
    means = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
    expected = [trace.seconds[-1] / trace.num_updates for trace in run.traces.values()]
    assert means == pytest.approx(expected)
    diamonds = [line for line in axis.lines if line.get_marker() == "D"]
    (diamond,) = (line for line in diamonds if np.isfinite(line.get_xdata()[0]))
    assert (*diamond.get_xdata(), *diamond.get_ydata()) == (1.5, 0)
    first, second = (f"{mean:.3g}" for mean in means)
    assert {f"{first} (1.5)", second, "mean (theory)"} <= set(texts(figure))
    assert legend(figure) == ["9 of 10 updates", "mean", "theory"]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == ["hardsync", "ssp"]
    bottom, top = axis.get_ylim()
    assert bottom > top
    check_legible(figure)
    # without theory, the legend has none
    figure = figures.update_times().draw(run)
    assert legend(figure) == ["9 of 10 updates", "mean"]
    assert not any("theory" in text for text in texts(figure))


@pytest.mark.parametrize("name", ["staleness", "update_times", "gantt"])
def test_a_run_without_traces_says_so(name, tmp_path):
    with pytest.raises(ValueError, match="no traces"):
        getattr(figures, name)().draw(made(tmp_path))


def test_a_trace_without_updates_has_an_empty_row():
    figure = bars.times_of({"mindflayer": timed([]), "hardsync()": timed([1.0])})
    assert "none" in texts(figure)
    check_legible(figure)


def test_many_arms_with_long_names_are_legible():
    trace = timed(np.arange(1.0, 361.0), [0] * 300 + [0, 5, 300] * 20)
    names = [f"ringmaster({k}, stop=True) workers={8 * k}" for k in range(1, 19)]
    check_legible(bars.times_of(dict.fromkeys(names, trace), 254.0))


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
    table = {f"delay={delay}": 0.1 + delay for delay in DELAYS}
    for theory in (lambda delay: 0.1 + delay, table):
        (axis,) = figures.bars("test_error", theory=theory).draw(run).axes
        diamonds = {
            line.get_ydata()[0]: line.get_xdata()[0]
            for line in axis.lines
            if line.get_marker() == "D"
        }
        assert diamonds == dict(enumerate(table.values()))


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
