"""The map: its cells, their colours, and the computed limit."""

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
    SHARPNESS,
    grid,
    limit,
    plateau,
    record,
    rows_of,
    valley,
    workdir,
)
from tests.figures.legible import check_legible, texts


def shaded(axis):
    """The coloured and the black mesh of a map."""
    return axis.collections[0], axis.collections[1]


def test_the_black_cells_are_exactly_those_where_a_seed_diverged(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if rate > limit(delay) and seed == 1 else 0.2 * rate

    rows = rows_of(tmp_path, grid(loss=loss))
    axis = stability_map.draw(rows, SHARPNESS, OPTIMUM).axes[0]
    colours, black = shaded(axis)
    painted = ~np.ma.getmaskarray(black.get_array())
    expected = [[rate > limit(delay) for rate in RATES] for delay in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(painted, expected)
    np.testing.assert_array_equal(np.ma.getmaskarray(colours.get_array()), expected)
    assert to_rgba(black.cmap(0.5)) == (0.0, 0.0, 0.0, 1.0)


def test_colours_are_the_excess_loss_averaged_over_seeds(tmp_path):
    def loss(rate, delay, seed):
        return OPTIMUM + rate * (1 + delay) * (1 + seed)

    colours, _ = shaded(
        stability_map.draw(
            rows_of(tmp_path, grid(loss=loss)), optimum_loss=OPTIMUM
        ).axes[0]
    )
    expected = [[math.log10(rate * (1 + tau) * 2) for rate in RATES] for tau in DELAYS]
    np.testing.assert_allclose(colours.get_array(), expected, rtol=1e-6)


def test_a_loss_at_the_optimum_has_a_colour(tmp_path):
    rows = rows_of(tmp_path, grid(loss=lambda rate, delay, seed: OPTIMUM - 1e-9))
    colours, _ = shaded(stability_map.draw(rows, optimum_loss=OPTIMUM).axes[0])
    assert np.isfinite(colours.get_array()).all()
    assert colours.get_array().count() == len(RATES) * len(DELAYS)


def test_cells_meet_at_geometric_midpoints(tmp_path):
    colours, _ = shaded(stability_map.draw(rows_of(tmp_path, grid())).axes[0])
    edges = colours.get_coordinates()[0, :, 0]
    np.testing.assert_allclose(
        edges[1:-1], [math.sqrt(a * b) for a, b in itertools.pairwise(RATES)]
    )
    outer = RATES[0] ** 2 / edges[1], RATES[-1] ** 2 / edges[-2]
    np.testing.assert_allclose(edges[[0, -1]], outer)


def test_the_line_is_the_closed_form_across_the_row_of_each_delay(tmp_path):
    axis = stability_map.draw(rows_of(tmp_path, grid()), SHARPNESS).axes[0]
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
    figure = stability_map.draw(rows, SHARPNESS)
    assert np.ma.getmaskarray(shaded(figure.axes[0])[0].get_array()).all()
    check_legible(figure)


def test_the_map_names_its_axes(tmp_path):
    figure = stability_map.draw(rows_of(tmp_path, grid()), SHARPNESS, OPTIMUM)
    axis, bar = figure.axes
    assert axis.get_xlabel() == "step size"
    assert axis.get_ylabel() == "staleness (updates)"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1", "4"]
    assert "excess training loss (nats)" in bar.get_ylabel()
    assert any("1.5 measured" in text for text in texts(figure))
    check_legible(figure)
    bar = stability_map.draw(rows_of(tmp_path, grid())).axes[1]
    assert "excess" not in bar.get_ylabel()


@pytest.mark.parametrize(
    ("records", "opt", "lines"),
    [
        (grid(), {}, 1),
        (grid("adam"), {}, 0),
        (grid(), {"sgd": {"momentum": 0.9}}, 0),
        (grid(), {"decay": "cosine"}, 0),
        (grid(), {"warmup_steps": 50}, 0),
        (grid(delay_law="geometric"), {}, 0),
        (grid(modulation="inverse"), {}, 0),
        (grid(compensation="dc", strength=0.04), {}, 0),
    ],
)
def test_the_limit_is_drawn_where_it_holds_alone(tmp_path, records, opt, lines):
    settings = {"decay": "constant", "warmup_steps": 0, "sgd": {"momentum": 0.0}}
    folder = workdir(tmp_path, records, opt=settings | opt)
    figure = figures._figure(load(folder), "stability_map")
    assert len(figure.axes[0].lines) == lines


def test_cells_are_bounded_between_the_limit_and_divergence(tmp_path):
    (delays,) = tuning.table(rows_of(tmp_path, grid(loss=plateau))).values()
    shown = stability_map.cells(delays, OPTIMUM)
    expected = [[1 < rate / limit(tau) <= 3 for rate in RATES] for tau in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(stability_map.bounded(shown, SHARPNESS), expected)


def test_the_legend_names_bounded_cells_in_the_colour_of_a_high_loss(tmp_path):
    rows = rows_of(tmp_path, grid(loss=plateau))
    figure = stability_map.draw(rows, SHARPNESS, OPTIMUM)
    colours, _ = shaded(figure.axes[0])
    (legend,) = figure.legends
    patches = {
        patch.get_label(): patch.get_facecolor() for patch in legend.get_patches()
    }
    assert patches == {
        "diverged: ends above where it began": (0.0, 0.0, 0.0, 1.0),
        "bounded, but never settles": colours.cmap(colours.norm(colours.get_clim()[1])),
    }
    check_legible(figure)


@pytest.mark.parametrize(
    ("loss", "sharpness", "optimum"),
    [
        (valley, SHARPNESS, OPTIMUM),  # all that is past the limit diverged
        (lambda rate, delay, seed: OPTIMUM + 1e-6, SHARPNESS, OPTIMUM),
        (plateau, None, OPTIMUM),
        (plateau, SHARPNESS, None),
    ],
)
def test_without_bounded_cells_none_are_promised(tmp_path, loss, sharpness, optimum):
    rows = rows_of(tmp_path, grid(loss=loss))
    shown = texts(stability_map.draw(rows, sharpness, optimum))
    assert "diverged: ends above where it began" in shown
    assert not any("bounded" in text for text in shown)
