"""Crossings: where roots pass through a circle, one by one."""

import itertools

import numpy as np
import pytest

from delayjax import stability
from delayjax._src.stability.crossings import crossings
from tests.stability import updates

LARGEST = 20.0


def moduli(law, step, options):
    return np.abs(np.linalg.eigvals(updates.mean(step, law, **options)))


def crossings_of(law, options, radius, below=LARGEST):
    return crossings(stability.Dynamics(law, **options), radius=radius, below=below)


def check(law, options, radius):
    """Between two crossings as many roots are outside as the changes sum up to."""
    steps, changes = crossings_of(law, options, radius)
    assert (np.diff(steps) >= 0).all()
    assert (steps > 0).all()
    for step in steps:
        # a root that meets another there is exact to the root of rounding
        assert np.abs(moduli(law, step, options) - radius).min() < 1e-6
    outside = [int(radius < 1) + int(options.get("momentum", 0) > radius)]
    outside += [outside[0] + change for change in np.cumsum(changes)]
    borders = [0, *steps, LARGEST]
    for (low, high), expected in zip(itertools.pairwise(borders), outside, strict=True):
        if high - low > 1e-6 * high:
            seen = moduli(law, (low + high) / 2, options)
            assert np.count_nonzero(seen > radius) == expected


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_changes_count_the_roots_outside(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        law, options = updates.a_law(rng, 7), updates.options_of(rng, 7)
        check(law, options, rng.choice([1.0, rng.uniform(0.3, 1.0)]))


@pytest.mark.parametrize("tau", [0, 1, 2, 9])
def test_roots_of_a_fixed_delay_leave_in_pairs_but_those_on_the_axis(tau):
    # on the circle at w = (2 n + 1) pi / (2 tau + 1), the real one where w = pi
    angles = (2 * np.arange(tau + 1) + 1) * np.pi / (2 * tau + 1)
    signs = (-1.0) ** np.arange(tau + 1)
    expected = sorted((2 * np.sin(angles / 2) * signs)[signs > 0])
    steps, changes = crossings_of(tau, {}, 1.0)
    np.testing.assert_allclose(steps, expected, rtol=1e-12)
    assert (changes == 2 - (np.isclose(expected, 2) & (tau % 2 == 0))).all()


def test_poles_of_the_curve_are_no_crossings():
    # N is 0 on the circle: at z = -1 for one, and at w = pi/3 for another, where the
    # curve comes from infinity and goes there along a line of finite real part
    for law, options in (
        (5, {"compensation": 0.5}),
        ([0, 0.5, 0, 0, 0.5], {}),
        ([0.5, 0.5], {}),
        ([0, 0.5, 0, 0.5], {"momentum": 0.5}),
    ):
        check(law, options, 1.0)


def test_a_part_of_the_crossings_are_those_up_to_a_step():
    law, options = [0.1, 0, 0.4, 0, 0, 0.5], {"momentum": 0.5}
    steps, changes = crossings_of(law, options, 1.0)
    assert len(steps) > 2
    middle = (steps[1] + steps[2]) / 2
    some = crossings_of(law, options, 1.0, below=middle)
    np.testing.assert_allclose(some[0], steps[:2], rtol=1e-14)
    np.testing.assert_array_equal(some[1], changes[:2])
    first, _ = crossings_of(law, options, 1.0, below=None)
    assert first[0] == steps[0]
    assert crossings_of(law, options, 1.0, below=steps[0] / 2)[0].size == 0
