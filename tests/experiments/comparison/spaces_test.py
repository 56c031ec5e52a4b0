"""Ranges, and the points that a search tries in them."""

import numpy as np
import pytest

from experiments.comparison import cures, spaces
from experiments.comparison.spaces import LINEAR, Range

SPACE = {
    "learning_rate": Range(0.01, 1.0),
    "decay": Range(0.01, 1.0, off=1.0),
    "own": Range(0.0, 2.0, scale=LINEAR, off=0.0),
}


@pytest.mark.parametrize("own", SPACE.values())
def test_a_share_gives_back_its_value(own):
    for share in (0.0, 0.3, 1.0):
        assert own.share(float(own.at(np.array(share)))) == pytest.approx(share)


def test_no_dimension_is_tied_to_another():
    points = spaces.sobol(64, 5, seed=3)
    correlation = np.corrcoef(points.T) - np.eye(5)
    assert np.abs(correlation).max() < 0.3  # of 64 at random: 0.125, a deviation
    for dimension in points.T:  # and each fills its range: one point in each of 64
        assert (np.sort(np.floor(64 * dimension)) == np.arange(64)).all()


def test_who_shares_a_dimension_tries_the_same_values_of_it():
    few, many = (spaces.sobol(16, n, seed=7) for n in (2, 4))
    np.testing.assert_array_equal(few, many[:, :2])
    assert not np.array_equal(few, spaces.sobol(16, 2, seed=8))


def test_an_end_is_flagged_unless_it_switches_the_number_off():
    assert spaces.edges(SPACE, [0.01, 0.5, 0.5]) == ["learning_rate low"]
    assert spaces.edges(SPACE, [0.5, 0.0, 1.0]) == ["decay low", "own high"]
    assert spaces.edges(SPACE, [0.5, 1.0, 0.0]) == ["decay off", "own off"]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Range(1.0, 0.1), "the range of `own` must ascend, got 1.0 to 0.1"),
        (Range(0.0, 1.0), "the range of `own` must be positive, got 0.0 to 1.0"),
        (Range(0.1, 1.0, scale="cubic"), "the scale of `own` must be"),
        (Range(0.1, 1.0, off=0.5), "`off` of `own` must be an end of 0.1 to 1.0"),
    ],
)
def test_a_bad_range_is_named(own, message):
    with pytest.raises(ValueError, match=message):
        spaces.check({"own": own})


def test_every_row_searches_the_step_and_most_the_momentum():
    for cure in cures.CURES:
        for optimizer in cures.OPTIMIZERS.values():
            space = cure.whole_space(optimizer)
            spaces.check(space)
            assert next(iter(space)) == "learning_rate"
    sgd = cures.OPTIMIZERS["sgd"]
    rows = [own for own in cures.CURES if "decay" not in own.whole_space(sgd)]
    without = {own.name for own in rows if not own.name.endswith(cures.TWIN)}
    # those have no momentum, or tune it themselves
    assert without == {"no momentum", "AdaDelay", "DASGD", "YellowFin"}
