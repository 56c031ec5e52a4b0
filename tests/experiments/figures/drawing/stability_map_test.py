"""Maps of stability, beside functions that say what theory does."""

import math

import numpy as np
import pytest

from experiments import figures
from experiments.figures.drawing import stability_map
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import (
    DELAYS,
    OPTIMUM,
    RATES,
    limit,
    made,
    valley,
)

FACTS = {"programs": [{"name": "a", "updates": 1, "facts": {"optimum_loss": OPTIMUM}}]}


def test_black_cells_are_exactly_those_where_a_seed_diverged(tmp_path):
    def loss(learning_rate, delay, seed):
        gone = learning_rate > limit(delay) and seed == 1
        return math.nan if gone else OPTIMUM + learning_rate * (1 + seed)

    run = made(tmp_path, loss, info=FACTS)
    figure = figures.stability_map("delay", "learning_rate", limit=limit).draw(run)
    axis, bar = figure.axes
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


def test_cells_are_bounded_between_the_limit_and_divergence(tmp_path):
    def plateau(learning_rate, delay, seed):
        ratio = learning_rate / limit(delay)
        return OPTIMUM + (1e-7 if ratio <= 1 else 0.3 if ratio <= 3 else math.nan)

    run = made(tmp_path, plateau, info=FACTS)
    maps = stability_map.by_panel(run, "delay", "learning_rate", limit=limit)
    expected = [[1 < rate / limit(tau) <= 3 for rate in RATES] for tau in DELAYS]
    assert np.any(expected) and not np.all(expected)
    np.testing.assert_array_equal(stability_map.bounded(maps[""]), expected)
    figure = figures.stability_map("delay", "learning_rate", limit=limit).draw(run)
    assert "bounded, but never settles" in legend(figure)


def test_each_panel_has_the_limit_of_its_own_settings(tmp_path):
    laws = {"constant": 1.0, "wide": 0.5}
    grid = {"learning_rate": RATES, "law": tuple(laws), "delay": DELAYS}

    def by_law(delay, law):
        return laws[law] * limit(delay)

    run = made(tmp_path, valley, **grid)
    figure = figures.stability_map("delay", "learning_rate", limit=by_law).draw(run)
    panels = [axis for axis in figure.axes if axis.get_xlabel() == "step size"]
    assert [axis.get_title() for axis in panels] == list(laws)
    for axis, law in zip(panels, laws, strict=True):
        found = axis.lines[0].get_xdata()[::2]
        np.testing.assert_allclose(found, [by_law(delay, law) for delay in DELAYS])


def test_the_first_picture_answers_from_two_runs(tmp_path):
    from docs import how_late

    edge = made(tmp_path, info=FACTS)
    names = ("sgd", "adam")
    language = made(
        tmp_path, valley, learning_rate=RATES, optimizer=names, delay=DELAYS
    )
    figure = how_late.draw(edge, language, limit)
    _, cost = figure.axes[:2]
    for line in cost.lines:
        assert line.get_ydata()[0] == 0.0
    assert {"sgd", "adam", "computed limit"} <= set(texts(figure))
    check_legible(figure)
    with pytest.raises(ValueError, match="a delay of 0"):
        how_late.draw(edge, made(tmp_path, learning_rate=RATES, delay=(1, 4)), limit)


def test_the_title_says_the_largest_steps_that_train(tmp_path):
    run = made(tmp_path, info=FACTS)
    figure = figures.stability_map("delay", "learning_rate", limit=limit).draw(run)
    first, last = (
        max(rate for rate in RATES if rate < limit(delay))
        for delay in (DELAYS[0], DELAYS[-1])
    )
    text = f"The largest step size that trains: {first:g} at delay 0, {last:g} at 4"
    assert text in [" ".join(own.split()) for own in texts(figure)]
    question = "At which step size does training diverge?"
    stable = made(tmp_path, lambda learning_rate, delay, seed: 1.0)
    figure = figures.stability_map("delay", "learning_rate").draw(stable)
    assert question in texts(figure)
