"""The search of a row's best point: three rounds, a fit, and a confirmation.

With few trials a search, more than a rule, decides what a row loses. So each row is
searched several times, independently, and each search is one of these.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from experiments.comparison import spaces

Losses = Callable[[np.ndarray, Sequence[int]], np.ndarray]
"""(points [n, dimensions] as shares, seeds) -> losses [n, seeds]."""


class Round(NamedTuple):
    """A round of a search.

    Attributes:
        points: how many are tried.
        seeds: of each.
        decades: how far from the best point so far; None: in the whole space.
    """

    points: int
    seeds: int
    decades: float | None = None


class Effort(NamedTuple):
    """How much a search does.

    Attributes:
        rounds: each around the best point of those before.
        finalists: the best points of all rounds that are confirmed, beside the fit's.
        confirming: fresh seeds of the confirmation.
    """

    rounds: Sequence[Round] = (Round(32, 2), Round(32, 3, 0.15), Round(32, 4, 0.1))
    finalists: int = 5
    confirming: int = 15

    @property
    def seeds(self) -> int:
        """How many seeds a search uses; no two of its parts share one."""
        return sum(one.seeds for one in self.rounds) + self.confirming


class Searched(NamedTuple):
    """What a search found."""

    point: np.ndarray  # shares [dimensions]
    loss: float  # mean over the seeds of the confirmation, which chose the point
    first: np.ndarray  # losses of the first round's points, means over its seeds
    fitted: bool  # whether the point is the optimum of the fit


def search(
    losses: Losses,
    space: spaces.Space,
    effort: Effort,
    *,
    number: int,
    known: Sequence[float] | None = None,
) -> Searched:
    """Searches the point of least loss, of a space.

    The first round tries quasi-random points of the whole space, each later one
    quasi-random points of a box around the best so far. A quadratic function is fitted
    to the logarithm of the losses in the last box. The best points of all rounds, the
    optimum of the fit and `known` are trained again on fresh seeds; the best of them
    is the answer.

    Args:
        losses: trains. All are positive, and finite where a run diverged too.
        space: of the points.
        effort: rounds and seeds.
        number: of this search; searches of different numbers share no seed and no
            points.
        known: a point that the first round tries as well.
    """
    dimensions = len(space)
    seeds = iter(range(number * effort.seeds, (number + 1) * effort.seeds))
    tried, found = np.empty((0, dimensions)), np.empty(0)
    first = found
    for i, one in enumerate(effort.rounds):
        points = spaces.sobol(one.points, dimensions, seed=1000 * number + i)
        low, high = np.zeros(dimensions), np.ones(dimensions)
        if one.decades is not None:
            best = tried[np.argmin(found)]
            low, high = box(space, best, one.decades)
        points = low + (high - low) * points
        if i == 0 and known is not None:
            points[-1] = known
        own = losses(points, _take(seeds, one.seeds)).mean(axis=1)
        tried, found = np.concatenate([tried, points]), np.concatenate([found, own])
        if i == 0:
            first = own
    order = np.argsort(found, kind="stable")[: effort.finalists]
    inside = ((tried >= low) & (tried <= high)).all(axis=1)
    fit = fitted_optimum(tried[inside], np.log(found[inside]), low, high)
    last = [*tried[order], fit, *([] if known is None else [np.asarray(known)])]
    finalists = np.stack(last)
    confirmed = losses(finalists, _take(seeds, effort.confirming)).mean(axis=1)
    chosen = int(np.argmin(confirmed))
    return Searched(
        point=finalists[chosen],
        loss=float(confirmed[chosen]),
        first=first,
        fitted=chosen == len(order),
    )


def box(
    space: spaces.Space, center: np.ndarray, decades: float
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of a box of `decades` to each side of a point, inside of the space."""
    half = np.array([own.decades(decades) for own in space.values()])
    return np.clip(center - half, 0, 1), np.clip(center + half, 0, 1)


def fitted_optimum(
    points: np.ndarray, heights: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The least point of a quadratic function fitted to heights, inside of a box.

    Args:
        points: [n, dimensions].
        heights: [n].
        low: the lower ends of the box.
        high: its upper ends.

    Example:
        >>> points = spaces.sobol(16, 2, seed=0)
        >>> heights = ((points - np.array([0.3, 0.6])) ** 2).sum(axis=1)
        >>> fitted_optimum(points, heights, np.zeros(2), np.ones(2)).round(4).tolist()
        [0.3, 0.6]
    """
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-9)
    scaled = (points - middle) / half
    weights, *_ = np.linalg.lstsq(_quadratic(scaled), heights, rcond=None)

    def height(point):
        return float((_quadratic(point[None]) @ weights)[0])

    dimensions = points.shape[1]
    starts = [scaled[np.argmin(heights)], np.zeros(dimensions)]
    ends = [
        optimize.minimize(height, start, bounds=[(-1, 1)] * dimensions)
        for start in starts
    ]
    return middle + half * np.clip(min(ends, key=lambda end: end.fun).x, -1, 1)


def expected_best(losses: np.ndarray, count: int) -> float:
    """The expected least of `count` of these losses, drawn without putting back.

    With losses l_1 <= ... <= l_n,

        E = sum_i l_i C(n - i, count - 1) / C(n, count)

    Example:
        >>> round(expected_best(np.array([3.0, 1.0, 2.0]), 2), 6)  # (1 + 1 + 2) / 3
        1.333333
    """
    ascending, left, total = np.sort(losses), 1.0, 0.0
    for i, loss in enumerate(ascending):
        # the chance that it is the least: in, and none of those before
        chance = count / (len(ascending) - i)
        total += left * min(chance, 1.0) * loss
        left *= max(1 - chance, 0.0)
    return float(total)


def _quadratic(points: np.ndarray) -> np.ndarray:
    """1, all coordinates and all their products, [n, terms]."""
    count, dimensions = points.shape
    rows, columns = np.triu_indices(dimensions)
    products = points[:, rows] * points[:, columns]
    return np.concatenate([np.ones((count, 1)), points, products], axis=1)


def _take(seeds: Iterator[int], count: int) -> list[int]:
    return [next(seeds) for _ in range(count)]
