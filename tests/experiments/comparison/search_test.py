"""A search finds the optimum of what it is given, on seeds of its own."""

import itertools
import math

import numpy as np
import pytest

from experiments.comparison import search, spaces
from experiments.comparison.search import Effort, Round

SPACE = {"learning_rate": spaces.Range(0.001, 1.0), "decay": spaces.Range(0.01, 1.0)}
OPTIMUM = np.array([0.55, 0.4])
EFFORT = Effort(
    rounds=(Round(16, 2), Round(16, 3, 0.3), Round(16, 4, 0.2)),
    finalists=3,
    confirming=5,
)


class Bowl:
    """Losses exp(curved bowl + noise of the seed and the point), and what was asked."""

    def __init__(self, noise=0.0):
        self.noise, self.asked = noise, []

    def __call__(self, points, seeds):
        self.asked.append((points, list(seeds)))
        x, y = (points - OPTIMUM).T
        heights = 20 * x**2 + 10 * y**2 + 8 * x * y
        noise = [
            [np.random.default_rng([seed, i]).normal() for seed in seeds]
            for i in range(len(points))
        ]
        return np.exp(heights[:, None] + self.noise * np.array(noise))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_fit_finds_the_optimum_of_a_bowl(number):
    found = search.search(Bowl(), SPACE, EFFORT, number=number)
    assert found.fitted
    np.testing.assert_allclose(found.point, OPTIMUM, atol=1e-3)
    assert found.loss == pytest.approx(1.0, abs=1e-4)


def test_with_noise_the_answer_is_nearer_than_the_best_of_the_first_round():
    ours, firsts = [], []
    for number in range(20):
        bowl = Bowl(noise=0.1)
        found = search.search(bowl, SPACE, EFFORT, number=number)
        points, _ = bowl.asked[0]
        ours.append(float(Bowl()(found.point[None], [0])[0, 0]))
        firsts.append(float(Bowl()(points[[np.argmin(found.first)]], [0])[0, 0]))
    assert np.mean(ours) - 1 < 0.4 * (np.mean(firsts) - 1)


def test_no_two_parts_of_searches_share_a_seed():
    seeds = []
    for number in (0, 1, 2):
        bowl = Bowl()
        search.search(bowl, SPACE, EFFORT, number=number)
        seeds += itertools.chain(*(own for _, own in bowl.asked))
    assert len(seeds) == len(set(seeds)) == 3 * EFFORT.seeds
    assert EFFORT.seeds == 2 + 3 + 4 + 5


def test_rounds_lie_around_the_best_so_far():
    bowl = Bowl()
    found = search.search(bowl, SPACE, EFFORT, number=4)
    (first, _), (second, _), (third, _), (last, _) = bowl.asked
    best = first[np.argmin(Bowl()(first, [0]))]
    # 0.3 decades to each side, of 3 and of 2 decades
    low, high = search.box(SPACE, best, 0.3)
    np.testing.assert_allclose(best - low, [0.1, 0.15])
    assert ((second >= low) & (second <= high)).all()
    assert np.ptp(third, axis=0) == pytest.approx([0.4 / 3, 0.2], rel=0.2)
    assert len(last) == EFFORT.finalists + 1
    assert len(found.first) == 16


def test_a_known_point_is_tried_and_confirmed():
    bowl = Bowl()
    found = search.search(bowl, SPACE, EFFORT, number=0, known=OPTIMUM)
    np.testing.assert_array_equal(bowl.asked[0][0][-1], OPTIMUM)
    np.testing.assert_array_equal(bowl.asked[-1][0][-1], OPTIMUM)
    assert found.loss == pytest.approx(1.0, abs=1e-6)


def test_a_saddle_ends_on_the_edge_of_the_box():
    low, high = np.array([0.2, 0.3]), np.array([0.6, 0.5])
    points = low + (high - low) * spaces.sobol(32, 2, seed=0)
    heights = -((points[:, 0] - 0.3) ** 2) + (points[:, 1] - 0.45) ** 2
    end = search.fitted_optimum(points, heights, low, high)
    np.testing.assert_allclose(end, [0.6, 0.45], atol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_expected_best_is_a_mean_over_all_subsets(count):
    losses = np.random.default_rng(0).permutation(7) ** 2.0
    every = [min(own) for own in itertools.combinations(losses, count)]
    assert len(every) == math.comb(7, count)
    assert search.expected_best(losses, count) == pytest.approx(np.mean(every))
