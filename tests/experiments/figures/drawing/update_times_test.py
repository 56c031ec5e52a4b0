"""Times between updates."""

import numpy as np
import pytest

from experiments.figures.drawing import update_times
from tests.experiments.figures.runs import timed


def test_the_mean_and_most_of_the_times_are_shown():
    gaps = np.arange(1.0, 22.0)  # quantiles of 5 and 95 % are 2 and 20
    (axis,) = update_times.of_traces({"a()": timed(np.cumsum(gaps))}).axes
    bar = next(line for line in axis.lines if line.get_linewidth() == 6)
    np.testing.assert_allclose(bar.get_xdata(), [2.0, 20.0])
    (mean,) = (line for line in axis.lines if line.get_marker() == "o")
    assert (*mean.get_xdata(), *mean.get_ydata()) == (11.0, 0)


@pytest.mark.parametrize(("longer", "scale"), [(99.0, "linear"), (101.0, "log")])
def test_times_that_are_far_apart_take_a_logarithmic_axis(longer, scale):
    traces = {"a()": timed([1.0, 2.0]), "b()": timed([longer, 2 * longer])}
    (axis,) = update_times.of_traces(traces).axes
    assert axis.get_xscale() == scale
    assert scale == "log" or axis.get_xlim()[0] == 0.0
