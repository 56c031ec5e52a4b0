"""The training loss over a run."""

import math

import numpy as np
import pytest

from experiments.figures import loss_curves
from tests.figures.delay_run import progress
from tests.figures.legible import check_legible, texts


def test_loss_curves_have_a_line_for_each_program_and_a_gap_without_live_cells():
    figure = loss_curves.draw(progress(), unit="")
    (axis,) = figure.axes
    assert len(axis.lines) == 2
    for offset, line in enumerate(axis.lines):
        assert list(line.get_xdata()) == [10, 20, 30, 40]
        expected = [5.0 / 10 + offset, 5.0 / 20 + offset, math.nan, 5.0 / 40 + offset]
        np.testing.assert_array_equal(line.get_ydata(), expected)
    assert axis.get_xlabel() == "step (updates)"
    assert axis.get_ylabel() == "training loss\nmedian of live cells"
    names = {"sgd, after (4 cells not finite)", "sgd, before (4 cells not finite)"}
    assert names <= set(texts(figure))
    check_legible(figure)


@pytest.mark.parametrize(("ratio", "scale"), [(9, "linear"), (11, "log")])
def test_loss_curves_of_very_different_lengths_have_a_logarithmic_axis(ratio, scale):
    rows = [
        {"program": name, "step": step, "train_loss": 1.0, "not_finite": 0}
        for name, steps in (("sgd-none-after-a", 1), ("sgd-none-after-b", ratio))
        for step in (steps, 10 * steps)
    ]
    figure = loss_curves.draw(rows)
    assert figure.axes[0].get_xscale() == scale
    check_legible(figure)
