"""The first picture: a map of where descent diverges, and what lateness costs."""

import math

import numpy as np
import pytest

from docs import how_late
from tests.experiments.figures.legible import check_legible, texts
from tests.experiments.figures.runs import (
    DELAYS,
    OPTIMUM,
    RATES,
    limit,
    made,
    valley,
)

FACTS = {"programs": [{"name": "a", "updates": 1, "facts": {"optimum_loss": OPTIMUM}}]}


@pytest.fixture
def language(tmp_path):
    """A run of two optimizers."""
    grid = {"learning_rate": RATES, "optimizer": ("sgd", "adam"), "delay": DELAYS}
    return made(tmp_path, valley, **grid)


def test_black_cells_are_exactly_those_where_a_seed_diverged(language, tmp_path):
    def loss(learning_rate, delay, seed):
        gone = learning_rate > limit(delay) and seed == 1
        return math.nan if gone else OPTIMUM + learning_rate * (1 + seed)

    edge = made(tmp_path, loss, info=FACTS)
    figure = how_late.draw(edge, language, limit)
    axis, _, bar = figure.axes
    colors, black = axis.collections[:2]
    expected = [[rate > limit(delay) for rate in RATES] for delay in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(~np.ma.getmaskarray(black.get_array()), expected)
    excess = np.ma.masked_array([[math.log10(2 * r) for r in RATES]] * 3, expected)
    np.testing.assert_allclose(colors.get_array().filled(0), excess.filled(0))
    (line,) = axis.lines
    np.testing.assert_allclose(line.get_xdata()[::2], [limit(d) for d in DELAYS])
    assert axis.get_xlabel() == "step size"
    assert axis.get_ylabel() == "delay (updates)"
    assert "excess training loss (nats)" in bar.get_ylabel()
    check_legible(figure)


def test_cells_are_bounded_between_the_limit_and_divergence(language, tmp_path):
    def plateau(learning_rate, delay, seed):
        ratio = learning_rate / limit(delay)
        return OPTIMUM + (1e-7 if ratio <= 1 else 0.3 if ratio <= 3 else math.nan)

    edge = made(tmp_path, plateau, info=FACTS)
    expected = [[1 < rate / limit(tau) <= 3 for rate in RATES] for tau in DELAYS]
    assert np.any(expected) and not np.all(expected)
    cells = how_late.cells_of(edge, limit)
    np.testing.assert_array_equal(cells.bounded, expected)
    assert "bounded,\nunsettled" in texts(how_late.draw(edge, language, limit))


def test_the_right_panel_counts_from_the_loss_without_delay(language, tmp_path):
    edge = made(tmp_path, info=FACTS)
    figure = how_late.draw(edge, language, limit)
    _, cost = figure.axes[:2]
    for line in cost.lines:
        assert line.get_ydata()[0] == 0.0
    assert {"sgd", "adam", "computed limit"} <= set(texts(figure))
    check_legible(figure)
    with pytest.raises(ValueError, match="a delay of 0"):
        how_late.draw(edge, made(tmp_path, learning_rate=RATES, delay=(1, 4)), limit)


def test_a_run_with_more_settings_or_without_an_optimum_is_refused(language, tmp_path):
    for edge in (language, made(tmp_path)):
        with pytest.raises(ValueError, match=r"stability_edge\.py makes one"):
            how_late.draw(edge, language, limit)
