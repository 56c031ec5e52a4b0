"""The map: its cells, their colors, and the computed limit."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from experiments import figures, tuning
from experiments.figures import stability_map
from experiments.figures.run import load
from tests.figures.delay_run import (
    DELAYS,
    OPTIMUM,
    RATES,
    drawn_limits,
    grid,
    limit,
    limits,
    plateau,
    record,
    rows_of,
    valley,
    workdir,
)
from tests.figures.legible import check_legible, texts

LIMITS = drawn_limits({})
(SERIES,) = LIMITS


def shaded(axis):
    """The colored and the black mesh of a map."""
    return axis.collections[0], axis.collections[1]


def test_the_black_cells_are_exactly_those_where_a_seed_diverged(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if rate > limit(delay) and seed == 1 else 0.2 * rate

    rows = rows_of(tmp_path, grid(loss=loss))
    axis = stability_map.draw(rows, LIMITS, OPTIMUM).axes[0]
    colors, black = shaded(axis)
    painted = ~np.ma.getmaskarray(black.get_array())
    expected = [[rate > limit(delay) for rate in RATES] for delay in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(painted, expected)
    np.testing.assert_array_equal(np.ma.getmaskarray(colors.get_array()), expected)
    assert to_rgba(black.cmap(0.5)) == (0.0, 0.0, 0.0, 1.0)


def test_colors_are_the_excess_loss_averaged_over_seeds(tmp_path):
    def loss(rate, delay, seed):
        return OPTIMUM + rate * (1 + delay) * (1 + seed)

    colors, _ = shaded(
        stability_map.draw(
            rows_of(tmp_path, grid(loss=loss)), optimum_loss=OPTIMUM
        ).axes[0]
    )
    expected = [[math.log10(rate * (1 + tau) * 2) for rate in RATES] for tau in DELAYS]
    np.testing.assert_allclose(colors.get_array(), expected, rtol=1e-6)


def test_a_loss_at_the_optimum_has_a_color(tmp_path):
    rows = rows_of(tmp_path, grid(loss=lambda rate, delay, seed: OPTIMUM - 1e-9))
    colors, _ = shaded(stability_map.draw(rows, optimum_loss=OPTIMUM).axes[0])
    assert np.isfinite(colors.get_array()).all()
    assert colors.get_array().count() == len(RATES) * len(DELAYS)


def test_cells_meet_at_geometric_midpoints(tmp_path):
    colors, _ = shaded(stability_map.draw(rows_of(tmp_path, grid())).axes[0])
    edges = colors.get_coordinates()[0, :, 0]
    np.testing.assert_allclose(
        edges[1:-1], [math.sqrt(a * b) for a, b in itertools.pairwise(RATES)]
    )
    outer = RATES[0] ** 2 / edges[1], RATES[-1] ** 2 / edges[-2]
    np.testing.assert_allclose(edges[[0, -1]], outer)


def test_the_line_is_the_closed_form_across_the_row_of_each_delay(tmp_path):
    axis = stability_map.draw(rows_of(tmp_path, grid()), LIMITS).axes[0]
    (line,) = axis.lines
    x, y = line.get_data()
    corners = shaded(axis)[0].get_coordinates()[:, 0, 1]
    for row, delay in enumerate(DELAYS):
        own = (
            (y >= corners[row]) & (y <= corners[row + 1]) & np.isclose(x, limit(delay))
        )
        np.testing.assert_array_equal(y[own], corners[row : row + 2])
    assert len(x) == 2 * len(DELAYS)


def test_a_map_of_one_cell_can_be_drawn(tmp_path):
    rows = rows_of(tmp_path, [record("sgd", 0.1, 0, 0, math.nan)])
    figure = stability_map.draw(rows, LIMITS)
    assert np.ma.getmaskarray(shaded(figure.axes[0])[0].get_array()).all()
    check_legible(figure)


def test_the_map_names_its_axes(tmp_path):
    figure = stability_map.draw(rows_of(tmp_path, grid()), LIMITS, OPTIMUM)
    axis, bar = figure.axes
    assert axis.get_xlabel() == "step size"
    assert axis.get_ylabel() == "staleness (updates)"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1", "4"]
    assert "excess training loss (nats)" in bar.get_ylabel()
    assert any("$ = 1.5" in text for text in texts(figure))
    check_legible(figure)
    bar = stability_map.draw(rows_of(tmp_path, grid())).axes[1]
    assert "excess" not in bar.get_ylabel()


def test_each_series_has_the_limit_that_was_computed_for_it(tmp_path):
    records = [*grid(), *grid("adam"), *grid(modulation="inverse")]
    series = {}, {"modulation": "inverse"}
    folder = workdir(tmp_path, records, limits=limits(*series))
    figure = figures._figure(load(folder), "stability_map")
    panels = [axis for axis in figure.axes if axis.get_xlabel() == "step size"]
    assert [len(axis.lines) for axis in panels] == [1, 0, 1]
    without = figures._figure(load(workdir(tmp_path, records)), "stability_map")
    assert not any(axis.lines for axis in without.axes)


def test_where_limits_have_several_curvatures_none_is_named(tmp_path):
    adams = drawn_limits({"optimizer": "adam"})
    adams = {
        series: {tau: limit._replace(sharpness=9.0) for tau, limit in own.items()}
        for series, own in adams.items()
    }
    rows = rows_of(tmp_path, [*grid(), *grid("adam")])
    figure = stability_map.draw(rows, LIMITS | adams)
    assert "computed limit" in texts(figure)
    check_legible(figure)


def test_cells_are_bounded_between_the_limit_and_divergence(tmp_path):
    (delays,) = tuning.table(rows_of(tmp_path, grid(loss=plateau))).values()
    shown = stability_map.cells(delays, OPTIMUM, LIMITS[SERIES])
    expected = [[1 < rate / limit(tau) <= 3 for rate in RATES] for tau in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(stability_map.bounded(shown), expected)


def test_the_legend_names_bounded_cells_in_the_color_of_a_high_loss(tmp_path):
    rows = rows_of(tmp_path, grid(loss=plateau))
    figure = stability_map.draw(rows, LIMITS, OPTIMUM)
    colors, _ = shaded(figure.axes[0])
    (legend,) = figure.legends
    patches = {
        patch.get_label(): patch.get_facecolor() for patch in legend.get_patches()
    }
    assert patches == {
        "diverged: ends above where it began": (0.0, 0.0, 0.0, 1.0),
        "bounded, but never settles": colors.cmap(colors.norm(colors.get_clim()[1])),
    }
    check_legible(figure)


@pytest.mark.parametrize(
    ("loss", "known", "optimum"),
    [
        (valley, LIMITS, OPTIMUM),  # all that is past the limit diverged
        (lambda rate, delay, seed: OPTIMUM + 1e-6, LIMITS, OPTIMUM),
        (plateau, None, OPTIMUM),
        (plateau, LIMITS, None),
    ],
)
def test_without_bounded_cells_none_are_promised(tmp_path, loss, known, optimum):
    rows = rows_of(tmp_path, grid(loss=loss))
    shown = texts(stability_map.draw(rows, known, optimum))
    assert "diverged: ends above where it began" in shown
    assert not any("bounded" in text for text in shown)
