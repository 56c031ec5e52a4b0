"""Curves over staleness show what the records say."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

from experiments import tuning
from experiments.figures import over_delay
from tests.figures.delay_run import DELAYS, RATES, drawn_limits, grid, limit, rows_of
from tests.figures.legible import check_legible, texts


def crosses(axis):
    """Delays with a cross, by color."""
    return {
        to_hex(marks.get_facecolor()[0]): set(marks.get_offsets()[:, 0])
        for marks in axis.collections
        if marks.get_offset_transform() == axis.get_xaxis_transform()
        and len(marks.get_offsets())
    }


def test_over_delay_draws_the_fixed_step_dashed_and_the_best_one_solid(tmp_path):
    rows = rows_of(tmp_path, grid("sgd") + grid("adam"))
    curves = tuning.curves(rows, "test_loss")
    figure = over_delay.metric(curves)
    (axis,) = figure.axes
    assert axis.get_xlabel() == "staleness (updates)"
    assert axis.get_ylabel() == "test loss (nats)"
    assert len(axis.lines) == 2 * 2
    for line, curve in zip(axis.lines, curves, strict=True):
        assert line.get_linestyle() == ("-" if curve.retuned else "--")
        np.testing.assert_array_equal(line.get_xdata(), DELAYS)
        means = [point.mean for point in curve.points]
        np.testing.assert_array_equal(line.get_ydata(), means)
    assert {"sgd", "adam", "fixed step", "re-tuned step"} <= set(texts(figure))
    check_legible(figure)


def test_series_differ_in_color_and_in_marker(tmp_path):
    rows = rows_of(tmp_path, grid("sgd") + grid("adam") + grid("muon"))
    figure = over_delay.metric(tuning.curves(rows, "train_loss"))
    tuned = figure.axes[0].lines[1::2]
    assert len({line.get_color() for line in tuned}) == 3
    assert len({line.get_marker() for line in tuned}) == 3
    figure = over_delay.best_step(tuning.curves(rows, "train_loss"))
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
    assert len({line._dash_pattern[1] is None for line in lines}) == 2


def test_the_band_is_the_range_of_the_seeds(tmp_path):
    rows = rows_of(tmp_path, grid())
    fixed, tuned = tuning.curves(rows, "train_loss")
    (axis,) = over_delay.metric([fixed, tuned]).axes
    corners = axis.collections[1].get_paths()[0].vertices
    for point in tuned.points:
        at = corners[corners[:, 0] == point.delay, 1]
        assert (at.min(), at.max()) == pytest.approx(point.spread)
        assert point.spread == (min(point.values), max(point.values))


def test_a_diverged_point_is_a_gap_and_a_cross(tmp_path):
    rows = rows_of(tmp_path, grid())
    fixed, tuned = tuning.curves(rows, "train_loss")
    assert fixed.points[0].learning_rate == 1.0  # beyond the limit at 1 and 4
    figure = over_delay.metric([fixed, tuned])
    (axis,) = figure.axes
    np.testing.assert_array_equal(
        np.isnan(axis.lines[0].get_ydata()), [False, True, True]
    )
    assert not np.isnan(axis.lines[1].get_ydata()).any()
    assert crosses(axis) == {to_hex(axis.lines[0].get_color()): {1.0, 4.0}}
    assert "diverged" in texts(figure)


def test_without_divergence_no_cross_is_promised(tmp_path):
    rows = rows_of(tmp_path, grid(loss=lambda rate, delay, seed: 0.1 + rate))
    figure = over_delay.metric(tuning.curves(rows, "train_loss"))
    assert crosses(figure.axes[0]) == {}
    assert "diverged" not in texts(figure)


def test_warnings_are_written_in_the_figure(tmp_path):
    def loss(rate, delay, seed):
        return 1.0 / rate

    rows = rows_of(tmp_path, grid(loss=loss))
    for metric, draw in (
        ("train_loss", over_delay.metric),
        ("gap", over_delay.gap),
        ("train_loss", over_delay.best_step),
    ):
        curves = tuning.curves(rows, metric)
        (sentence,) = tuning.edge_warnings(curves)
        figure = draw(curves)
        shown = [" ".join(text.split()) for text in texts(figure)]
        assert sentence in shown
        check_legible(figure)


def test_many_warnings_are_counted(tmp_path):
    records = [
        row
        for name in ("sgd", "adam", "lion", "muon")
        for row in grid(name, loss=lambda rate, delay, seed: 1.0 / rate)
    ]
    figure = over_delay.metric(tuning.curves(rows_of(tmp_path, records), "gap"))
    assert any("1 more: see report.html." in text for text in texts(figure))
    check_legible(figure)


@pytest.mark.parametrize(
    ("variants", "titles"),
    [
        ([{}, {"modulation": "inverse"}], [""]),
        (
            [
                {"modulation": law, "placement": place}
                for law in ("none", "inverse", "hinge")
                for place in ("after", "before")
            ],
            ["adam", "sgd"],
        ),
        (
            [
                {"compensation": name, "strength": strength}
                for name in ("dc", "dc_adaptive")
                for strength in (0.0, 0.04, 0.4)
            ],
            ["adam, dc", "adam, dc_adaptive", "sgd, dc", "sgd, dc_adaptive"],
        ),
    ],
)
def test_many_series_are_spread_over_panels(tmp_path, variants, titles):
    records = [
        row
        for name in ("adam", "sgd")
        for variant in variants
        for row in grid(name, **variant)
    ]
    curves = tuning.curves(rows_of(tmp_path, records), "test_accuracy")
    figure = over_delay.metric(curves)
    assert [axis.get_title() for axis in figure.axes] == titles
    assert sum(len(axis.lines) for axis in figure.axes) == len(curves)
    assert figure.axes[0].get_ylabel() == "test accuracy (share)"
    assert all(0 <= tick <= 1 for tick in figure.axes[0].get_yticks())
    check_legible(figure)


def test_the_gap_is_test_minus_training_loss_at_both_steps(tmp_path):
    def loss(rate, delay, seed):
        return 0.1 + abs(math.log(rate * (1 + delay)))

    rows = rows_of(tmp_path, grid(loss=loss, test_loss=2.0))
    figure = over_delay.gap(tuning.curves(rows, "gap"))
    assert [axis.get_title() for axis in figure.axes] == ["fixed step", "re-tuned step"]
    fixed = min(RATES, key=lambda rate: loss(rate, 0, 0))
    (at_fixed,), (at_best,) = (axis.lines for axis in figure.axes)
    np.testing.assert_allclose(
        at_fixed.get_ydata(), [2.0 - loss(fixed, delay, 0) for delay in DELAYS]
    )
    np.testing.assert_allclose(
        at_best.get_ydata(),
        [2.0 - min(loss(rate, delay, 0) for rate in RATES) for delay in DELAYS],
    )
    assert figure.axes[0].get_ylabel() == "test loss - training loss (nats)"
    check_legible(figure)


def test_best_step_shows_the_choice_and_rings_the_edge(tmp_path):
    def loss(rate, delay, seed):
        return abs(math.log(rate * (1 + delay) ** 3))

    curves = tuning.curves(rows_of(tmp_path, grid(loss=loss)), "train_loss")
    figure = over_delay.best_step(curves)
    (axis,) = figure.axes
    line, ring = axis.lines
    best = [
        min(RATES, key=lambda rate, delay=delay: loss(rate, delay, 0))
        for delay in DELAYS
    ]
    assert list(line.get_ydata()) == best
    edge = [
        delay for delay, rate in zip(DELAYS, best, strict=True) if rate == min(RATES)
    ]
    assert edge == [4]
    assert list(ring.get_xdata()) == edge
    assert (axis.get_xscale(), axis.get_yscale()) == ("symlog", "log")
    assert axis.get_ylabel() == "best step size"
    assert "on the grid's edge" in texts(figure)
    check_legible(figure)


def test_without_an_edge_no_ring_is_promised(tmp_path):
    curves = tuning.curves(rows_of(tmp_path, grid()), "train_loss")
    figure = over_delay.best_step(curves)
    assert "on the grid's edge" not in texts(figure)
    assert not len(figure.axes[0].lines[1].get_xdata())


def test_a_computed_limit_is_dotted_beside_the_best_step(tmp_path):
    rows = rows_of(tmp_path, [*grid(), *grid("adam")])
    curves = tuning.curves(rows, "train_loss")
    figure = over_delay.best_step(curves, drawn_limits({}))
    (axis,) = figure.axes
    (dotted,) = [line for line in axis.lines if line.get_linestyle() == ":"]
    assert list(dotted.get_xdata()) == list(DELAYS)
    np.testing.assert_allclose(dotted.get_ydata(), [limit(tau) for tau in DELAYS])
    assert dotted.get_color() == axis.lines[1].get_color()  # of its series
    assert "computed limit" in texts(figure)
    check_legible(figure)
    assert "computed limit" not in texts(over_delay.best_step(curves))


def test_a_delay_without_a_best_step_is_a_cross(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if delay == 4 else abs(math.log(rate))

    curves = tuning.curves(rows_of(tmp_path, grid(loss=loss)), "train_loss")
    (axis,) = over_delay.best_step(curves).axes
    assert list(axis.lines[0].get_xdata()) == [0.0, 1.0]
    assert list(crosses(axis).values()) == [{4.0}]
