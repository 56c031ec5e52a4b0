"""Maps, noise floors and rates of decay, beside functions that say what theory does."""

import math

import numpy as np
import pytest

from experiments import figures
from experiments.figures.drawing import decay_rate, stability_map
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import (
    DELAYS,
    OPTIMUM,
    RATES,
    SEEDS,
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
    maps = stability_map.by_panel(run, x="delay", axis="learning_rate", limit=limit)
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


def test_noise_floors_are_means_beside_theory(tmp_path):
    def floor(learning_rate, delay):
        stable = learning_rate < limit(delay)
        return learning_rate * (1 + delay) if stable else math.inf

    def loss(learning_rate, delay, seed):
        found = floor(learning_rate, delay)
        return found * (1 + 0.1 * seed) if math.isfinite(found) else math.nan

    run = made(tmp_path, loss)
    figure = figures.noise_floor(
        "delay", "learning_rate", theory=floor, limit=limit
    ).draw(run)
    floors, ratios = figure.axes
    points = [own for own in floors.lines if own.get_marker() != "None"]
    theories = [own for own in floors.lines if own.get_marker() == "None"]
    for own, line, rate in zip(points, theories, RATES, strict=True):
        there = [delay for delay in DELAYS if rate < limit(delay)]
        np.testing.assert_array_equal(own.get_xdata(), there)
        expected = [floor(rate, delay) * 1.1 for delay in there]
        np.testing.assert_allclose(own.get_ydata(), expected)
        whole = range(DELAYS[-1] + 1)
        finite = [floor(rate, d) if rate < limit(d) else math.nan for d in whole]
        np.testing.assert_allclose(line.get_ydata(), finite)
    shares = np.concatenate([own.get_ydata() for own in ratios.lines[:-1]])
    np.testing.assert_allclose(shares, 1.1)
    assert legend(figure)[0] == f"step={RATES[0]}"
    check_legible(figure)


WORKERS = (1, 2, 4, 8, 16)


def decaying(tmp_path, rate):
    def curve(update, cell, seed):
        return math.exp(-2 * rate(cell["workers"]) * (1 + 0.1 * seed) * update / 2)

    return made(tmp_path, lambda workers, seed: 0.1, curve=curve, workers=WORKERS)


def rate(workers):
    """Fastest at 4."""
    return 0.01 * workers * math.exp(-workers / 4)


def test_rates_are_slopes_of_the_curves_and_a_star_is_the_fastest(tmp_path):
    figure = figures.decay_rate(theory=rate).draw(decaying(tmp_path, rate))
    (axis,) = figure.axes
    line, points, star = axis.lines
    np.testing.assert_array_equal(points.get_xdata(), WORKERS)
    mean = np.mean([1 + 0.1 * seed for seed in SEEDS])
    expected = [rate(workers) * mean for workers in WORKERS]
    np.testing.assert_allclose(points.get_ydata(), expected, rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata(), [rate(w) for w in line.get_xdata()])
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (4, rate(4))
    assert axis.get_ylabel() == "rate of decay (1 / simulated s)"
    assert "the error grows" not in legend(figure)
    check_legible(figure)


def test_below_zero_the_error_grows_and_an_end_is_no_star(tmp_path):
    run = decaying(tmp_path, lambda workers: 0.05 - 0.01 * workers)
    figure = figures.decay_rate(theory=lambda workers: 1.0 / workers).draw(run)
    assert "the error grows" in legend(figure)
    assert "fastest in theory" not in legend(figure)


SECONDS = np.linspace(0.0, 30.0, 31)


def loss(*modes):
    """Of modes (size, rate), at SECONDS."""
    return sum(size * np.exp(-2 * rate * SECONDS) for size, rate in modes)


def test_a_rate_is_measured_once_the_fast_modes_are_gone():
    measured = decay_rate.measure(SECONDS, loss((1.0, 0.1), (100.0, 2.0)))
    assert measured == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("rate", [1.5, -1.5])
def test_what_float32_cannot_hold_is_left_out(rate):
    # of 30 s those are within float32 in which exp(3 t) is below 1e30
    end = math.ceil(30 * math.log(10) / 3)
    for first in (0.0, math.inf, math.nan, *loss((1.0, rate))[end:]):
        path = loss((1.0, rate))
        path[end : end + 2], path[end + 2 :] = first, 0.3  # as if it had come back
        assert decay_rate.measure(SECONDS, path) == pytest.approx(rate)
    path = loss((1.0, rate))
    path[20:] = path[20]  # of the order of 1e26, or 1 / 1e26: that is held
    assert abs(decay_rate.measure(SECONDS, path)) < 0.9 * abs(rate)


def test_a_rate_needs_three_points():
    path = loss((1.0, 0.1))
    # the first third is none of them
    assert math.isnan(decay_rate.measure(SECONDS[:3], path[:3]))
    assert decay_rate.measure(SECONDS[:4], path[:4]) == pytest.approx(0.1)


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
