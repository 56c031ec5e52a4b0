"""The site's first picture: both answers to its question."""

import numpy as np
import pytest

from experiments.figures import hero
from tests.figures.delay_run import (
    DELAYS,
    RATES,
    SEEDS,
    grid,
    limit,
    limits,
    plateau,
    two_runs,
    valley,
    workdir,
)
from tests.figures.legible import check_legible, texts


def test_the_hero_shows_the_map_and_the_excess_over_no_delay(tmp_path):
    edge, language = two_runs(tmp_path)
    figure = hero.draw(edge, language)
    assert "How late may a gradient be?" in texts(figure)
    left, right = figure.axes[:2]
    np.testing.assert_allclose(
        left.lines[0].get_xdata()[::2], [limit(delay) for delay in DELAYS]
    )
    assert right.get_ylabel() == "excess test loss (nats)"
    assert len(right.lines) == 3
    best = [
        min(
            sum(valley(rate, delay, seed) for seed in SEEDS) / 3 + 0.1
            for rate in RATES
            if rate <= limit(delay)
        )
        for delay in DELAYS
    ]
    for line in right.lines:
        np.testing.assert_allclose(
            line.get_ydata(), np.asarray(best) - best[0], atol=1e-12
        )
    check_legible(figure)


def test_the_hero_names_bounded_cells_where_there_are_some(tmp_path):
    edge, language = two_runs(tmp_path)
    assert "bounded,\nunsettled" not in texts(hero.draw(edge, language))
    edge = workdir(tmp_path / "bounded", grid(loss=plateau), limits=limits({}))
    figure = hero.draw(edge, language)
    assert {"diverged", "bounded,\nunsettled"} <= set(texts(figure))
    check_legible(figure)


def test_a_hero_without_its_runs_says_what_it_needs(tmp_path):
    edge, language = two_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere.*is missing"):
        hero.draw(edge, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"one optimizer .* config.advise"):
        hero.draw(language, edge)
    late = workdir(tmp_path / "late", [row for row in grid() if row["delay"]])
    with pytest.raises(ValueError, match="a delay of 0"):
        hero.draw(edge, late)
