"""The error table as a picture: each dot where its cell is."""

import math
import statistics

import numpy as np
import pytest
from matplotlib.colors import to_hex

from experiments import tuning
from experiments.figures import arms
from tests.figures import arm_run
from tests.figures.arm_run import ARMS, LAWS, SEEDS
from tests.figures.legible import check_legible, legend


def draw(rows=None, metric="train_loss", **options):
    rows = arm_run.rows() if rows is None else rows
    return arms.draw(tuning.curves(rows, metric, **options))


def dots(axis):
    """(row, x) of the marks, in the order in which they were drawn."""
    return [
        (line.get_ydata()[0], line.get_xdata()[0])
        for line in axis.lines
        if line.get_marker() not in ("None", "x")
    ]


def crosses(axis):
    return [line.get_ydata()[0] for line in axis.lines if line.get_marker() == "x"]


def bars(axis):
    return [
        tuple(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) == 2
    ]


def ends(arm, law, rate):
    return [arm_run.loss(arm, law, rate, seed) for seed in SEEDS]


def test_dots_are_means_at_the_first_arms_step_and_at_each_ones_best():
    fixed, tuned = draw().axes
    first = arm_run.best(ARMS[0], "none")
    for axis, rate in ((fixed, lambda *_: first), (tuned, arm_run.best)):
        expected = [
            statistics.fmean(ends(arm, law, rate(arm, law)))
            for arm in ARMS
            for law in LAWS
        ]
        np.testing.assert_allclose([x for _, x in dots(axis)], expected)
    assert fixed.get_title() == "best step of the first arm"
    assert tuned.get_title() == "best step of each"


def test_bars_are_the_range_of_the_seeds():
    tuned = draw().axes[1]
    expected = [
        (min(values), max(values))
        for arm in ARMS
        for law in LAWS
        for values in [ends(arm, law, arm_run.best(arm, law))]
    ]
    np.testing.assert_allclose(bars(tuned), expected)


def test_arms_are_rows_from_above_in_the_order_of_the_config():
    figure = draw()
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == list(ARMS)
    assert list(axis.get_yticks()) == [0, 1, 2]
    bottom, top = axis.get_ylim()
    assert bottom > top
    assert [round(row) for row, _ in dots(axis)] == [0, 0, 1, 1, 2, 2]
    check_legible(figure)


def test_laws_differ_in_color_marker_and_height():
    figure = draw()
    assert legend(figure) == ["plain", "inverse after", "range of seeds"]
    marks = [line for line in figure.axes[1].lines if len(line.get_xdata()) == 1]
    plain, inverse = marks[0::2], marks[1::2]
    for what in ("get_color", "get_marker"):
        of_plain = {getattr(line, what)() for line in plain}
        of_inverse = {getattr(line, what)() for line in inverse}
        assert len(of_plain) == len(of_inverse) == 1 and of_plain != of_inverse
    for first, second in zip(plain, inverse, strict=True):
        assert first.get_ydata()[0] < second.get_ydata()[0]


def test_an_accuracy_is_drawn_as_an_error():
    loss, error = draw().axes[1], draw(metric="test_accuracy").axes[1]
    np.testing.assert_allclose(
        [x for _, x in dots(error)], [x / 3 for _, x in dots(loss)]
    )
    np.testing.assert_allclose(bars(error), np.asarray(bars(loss)) / 3)
    assert error.get_xlabel() == "test error (share)"


def diverging(arm, law, rate, seed):
    """Plain steps of the last arm diverge where the first one's are best."""
    lost = arm == ARMS[2] and law == "none" and rate == arm_run.best(ARMS[0], "none")
    return math.nan if lost and seed else arm_run.loss(arm, law, rate, seed)


def test_what_diverged_is_a_cross_beside_all_values():
    figure = draw(arm_run.rows(diverging))
    fixed, tuned = figure.axes
    (row,) = crosses(fixed)
    assert round(row) == 2 and crosses(tuned) == []
    assert len(dots(fixed)) == len(dots(tuned)) - 1
    assert "diverged" in legend(figure)
    (cross,) = (line for line in fixed.lines if line.get_marker() == "x")
    figure.draw_without_rendering()
    ((at, _),) = fixed.transAxes.inverted().transform(
        cross.get_transform().transform(np.transpose(cross.get_data()))
    )
    to_axes = fixed.transData + fixed.transAxes.inverted()
    assert max(to_axes.transform((high, 0))[0] for _, high in bars(fixed)) < at < 1
    check_legible(figure)


def test_without_divergence_no_cross_is_promised():
    assert "diverged" not in legend(draw())


def test_a_time_that_was_not_reached_is_named_so():
    def reached(arm, law, rate, seed):
        return math.inf if arm == ARMS[1] and seed == 2 else 10.0 + seed

    figure = draw(arm_run.rows(seconds_to_target=reached), "seconds_to_target")
    assert "not reached" in legend(figure)
    assert [round(row) for row in crosses(figure.axes[1])] == [1, 1]
    assert figure.axes[1].get_xlabel() == "time to the target (simulated s)"


def test_both_panels_have_the_same_axis():
    def loss(arm, law, rate, seed):
        return arm_run.loss(arm, law, rate, seed) ** 4

    fixed, tuned = draw(arm_run.rows(loss)).axes
    assert fixed.get_xlim() == tuned.get_xlim()
    assert fixed.get_xscale() == tuned.get_xscale() == "log"
    low, high = fixed.get_xlim()
    assert all(low < a <= b < high for axis in (fixed, tuned) for a, b in bars(axis))
    assert max(map(max, bars(tuned))) != max(map(max, bars(fixed)))


def test_one_step_size_needs_one_panel():
    figure = draw(arm_run.rows(over=arm_run.cells(rates=(0.1,))))
    (axis,) = figure.axes
    assert len(dots(axis)) == len(ARMS) * len(LAWS)


@pytest.mark.parametrize("count", [1, 18])
def test_one_arm_or_many_with_long_names_are_legible(count):
    names = [f"ringmaster({k}, stop=True) workers={8 * k}" for k in range(1, count + 1)]

    def loss(arm, law, rate, seed):
        return 0.1 + 0.01 * names.index(arm) + rate

    over = arm_run.cells(names=names, laws=("none", "inverse", "hinge"))
    figure = draw(arm_run.rows(loss, over=over))
    check_legible(figure)
    rows = {round(row) for axis in figure.axes for row, _ in dots(axis)}
    assert rows == set(range(count))


def test_the_colors_are_told_apart_by_the_color_blind():
    okabe_and_ito = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
    axis = draw().axes[0]
    assert {to_hex(line.get_color()) for line in axis.lines} <= okabe_and_ito
