"""A range maps values to decades and back; no value leaves its limits."""

import math

import numpy as np
import pytest

from experiments.training.ranges import NEAR, Range, Search

RANGES = [
    Range(1e-3, 3.0),
    Range(0.01, 1.0, off=1.0),
    Range(1e-3, 1e3, off=0.0),
    Range(0.123456, 0.9, hard=True),
    Range(0.01, 0.5, off=0.999999),
    Range(2.0, 50.0, off=1.000001),
    Range(1.0, 10.0, off=math.inf),
    Range(-1.0, 3.0, scale="linear"),
    Range(0.0, 0.123456, off=0.0, scale="linear"),
    Range(0.0, 1.0, scale="linear", hard=False),
    Range(1000.0, 1001.0, scale="linear"),
    Range(20_000.0, 20_100.0, scale="linear"),
    Range(1e-30, 1e30),
]


def shown(one):
    return f"{one.low}-{one.high}-{one.off}-{one.scale}"


@pytest.mark.parametrize("one", RANGES, ids=shown)
def test_a_value_comes_back_from_its_place_in_four_digits(one):
    low, high = one.ends
    length = one.high - one.low
    digit = 10.0 ** (math.ceil(math.log10(length)) - 4)  # the fourth of the length
    for share in np.linspace(0.01, 0.99, 23):
        place = low + share * (high - low)
        value = one.value(place)
        if one.scale == "log":
            assert value == float(f"{value:.4g}")
            error = 5e-4 / math.log(10)
        else:
            assert math.isclose(value / digit, round(value / digit), rel_tol=1e-9)
            error = 2.0 * (digit / 2) / length
        assert math.isclose(one.coordinate(value), place, abs_tol=1.1 * error)


@pytest.mark.parametrize("one", RANGES, ids=shown)
def test_no_value_passes_a_limit_and_the_limits_are_exact(one):
    places = [-1e40, *np.linspace(-400, 400, 801), 1e40]
    values = [one.value(float(place)) for place in places]
    assert (min(values), max(values)) == one.limits
    assert np.isfinite(np.float32(values)).all()
    if one.scale == "log":
        assert (np.float32(values) >= np.finfo(np.float32).tiny).all()


def test_the_limits_are_the_ends_of_a_hard_range_and_otherwise_off():
    assert Range(0.1, 0.9, hard=True).limits == (0.1, 0.9)
    assert Range(0.1, 0.9, scale="linear").limits == (0.1, 0.9)
    assert Range(0.1, 0.9).limits == (1e-30, 1e30)
    assert Range(0.1, 0.9, off=1.0).limits == (1e-30, 1.0)
    assert Range(0.1, 0.9, off=0.1).limits == (0.1, 1e30)
    assert Range(0.1, 0.9, off=0.0).limits == (1e-30, 1e30)
    assert Range(0.1, 0.9, off=-1.0, scale="linear", hard=False).limits[0] == -1.0


def test_a_near_neighbor_is_a_factor_of_one_and_a_quarter_away():
    one = Range(1e-3, 1e3)
    assert one.value(one.coordinate(2.0) + NEAR) == 2.5
    assert one.value(one.coordinate(2.0) - NEAR) == 1.6


def test_a_linear_range_is_two_decades():
    assert Range(-3.0, 5.0, scale="linear").ends == (0.0, 2.0)
    assert Range(-3.0, 5.0, scale="linear").value(1.0) == 1.0


def test_integers_become_floats():
    assert type(Range(1, 2).low) is float
    assert type(Range(1, 2, off=0).off) is float


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (dict(low=1.0, high=1.0), "`low` must be less than `high`"),
        (dict(low=2.0, high=1.0), r"`low` .* than `high`, got Range\(2.0, 1.0\)\.$"),
        (dict(low=math.nan, high=1.0), "`low` must be less than `high`"),
        (dict(low=0.0, high=1.0), 'within 1e-30 .* 1.0.: use scale="linear" for 0'),
        (dict(low=-1.0, high=1.0), r"got Range\(-1.0, 1.0\): use scale="),
        (dict(low=1.0, high=math.inf), r"1e\+30, got Range\(1.0, inf\)"),
        (dict(low=1.0, high=1e60), r"within 1e-30 and 1e\+30, got Range\(1.0, 1e\+60"),
        (dict(low=1e-60, high=1.0), "within 1e-30 and .* got Range"),
        (dict(low=-1e60, high=1.0, scale="linear"), r"within -1e\+30 and 1e\+30, got"),
        (
            dict(low=0.1, high=1.0, off=math.nan),
            "`off` must not lie between .* got nan",
        ),
        (dict(low=0.1, high=1.0, off=0.5), "`off` must not lie between"),
        (dict(low=0.1, high=1.0, scale="cubic"), "`scale` must be"),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        Range(**wrong)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (dict(seeds=2), "`seeds` must be a whole number from 3 to .*, got 2"),
        (dict(seeds=6.0), "`seeds` must be a whole number"),
        (dict(repeats=0), "`repeats` must be a whole number from 1 to 40"),
        (dict(repeats=True), "`repeats` must be a whole number"),
        (dict(repeats=41), "`repeats` must be .* from 1 to 40, got 41"),
        (dict(most=0), "`most` must be a whole number"),
        (dict(most=200_001), "`most` must be .* from 1 to 200,000, got 200001"),
        (dict(tolerance=0.0), "`tolerance` must be positive"),
        (dict(tolerance=math.nan), "`tolerance` must be positive"),
        (dict(tolerance=math.inf), "`tolerance` must be positive"),
    ],
)
def test_a_search_that_cannot_end_is_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        Search(**wrong)


def test_relative_losses_are_compared_by_their_logarithms():
    losses = [0.5, 0.505, math.nan]
    np.testing.assert_array_equal(Search().score(losses), losses)
    one, second, diverged = Search(relative=True).score(losses)
    assert math.isclose(second - one, math.log(1.01), rel_tol=1e-9)  # one percent
    assert math.isnan(diverged)
    assert -math.inf < Search(relative=True).score([0.0])[0] < math.log(1e-300)


def test_logarithms_of_a_metric_below_zero_are_refused():
    search = Search(relative=True)
    np.testing.assert_allclose(search.score([1.0, np.nan]), [0.0, np.nan])
    with pytest.raises(ValueError, match=r"this search is -0\.5: use"):
        search.score([1.0, -0.5])
    assert Search().score([-0.5]) == [-0.5]
