"""Curves are of the best cell of each series."""

import numpy as np
import pytest

from experiments import figures
from experiments.results import analysis
from tests.experiments.figures.legible import check_legible, legend
from tests.experiments.figures.runs import DELAYS, SEEDS, made, step_at, valley


def chosen(run, delay):
    """The curves at the step size with the least mean loss."""
    return analysis.where(run.curves, delay=delay, learning_rate=step_at(run, delay))


@pytest.mark.parametrize("against", ["update", "examples", "seconds"])
def test_a_line_is_the_best_cell_of_its_series(against, tmp_path):
    run = made(tmp_path)
    figure = figures.curves("train_loss", against=against).draw(run)
    (axis,) = figure.axes
    for line, delay in zip(axis.lines, DELAYS, strict=True):
        rows = chosen(run, delay).groupby("update")
        assert len(rows.get_group(0)) == len(SEEDS)
        np.testing.assert_allclose(line.get_ydata(), rows.train_loss.mean())
        np.testing.assert_allclose(line.get_xdata(), rows[against].mean())
    assert len({line.get_linestyle() for line in axis.lines}) == len(DELAYS)
    assert {line.get_marker() for line in axis.lines} == {""}
    names = [f"delay={delay}" for delay in DELAYS]
    assert legend(figure) == [*names, "95 % interval of the mean"]
    check_legible(figure)


def test_series_stand_in_the_order_of_the_run(tmp_path):
    methods = tuple("zyxwvutsrq")

    def loss(method, seed):
        return 1.0

    figure = figures.curves("train_loss").draw(made(tmp_path, loss, method=methods))
    assert legend(figure)[: len(methods)] == list(methods)


def test_the_lines_of_one_value_of_color_share_it_and_differ_in_dashes(tmp_path):
    def loss(rule, delay, seed):
        return 1.0

    run = made(tmp_path, loss, delay=(0, 4), rule=("a", "b"))
    figure = figures.curves("train_loss", color="rule").draw(run)
    names = ["a, delay=0", "a, delay=4", "b, delay=0", "b, delay=4"]
    assert legend(figure)[:4] == names
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
    (a0, a4, b0, b4) = looks
    assert a0[0] == a4[0] != b0[0] == b4[0]
    assert a0[1] == b0[1] != a4[1] == b4[1]
    check_legible(figure)
    # with one line for each value all lines differ in both
    alone = figures.curves("train_loss", color="rule", only={"delay": (0,)}).draw(run)
    colors = {line.get_color() for line in alone.axes[0].lines}
    dashes = {line.get_linestyle() for line in alone.axes[0].lines}
    assert len(colors) == len(dashes) == 2


def test_a_series_that_diverged_is_named_and_not_drawn(tmp_path):
    def loss(learning_rate, delay, seed):
        return valley(learning_rate, delay, seed) if delay else float("nan")

    figure = figures.curves("train_loss").draw(made(tmp_path, loss))
    assert "delay=0 (diverged)" in legend(figure)
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    assert len(drawn) == len(DELAYS) - 1


def test_theory_is_a_dotted_line_along_the_curve(tmp_path):
    run = made(tmp_path)
    for theory in (lambda update: 3.0 * update, {0: 0.0, 10: 30.0, 20: 60.0}):
        (axis,) = figures.curves("train_loss", theory=theory).draw(run).axes
        dotted = [line for line in axis.lines if line.get_linewidth() == 1.2]
        assert len(dotted) == len(DELAYS)
        for line in dotted:
            x, losses = (np.asarray(values)[:3] for values in line.get_data())
            np.testing.assert_allclose(losses, 3.0 * x)
