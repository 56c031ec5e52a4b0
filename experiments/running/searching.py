"""Where the optimum of a series is: points and seeds to train next, until it is found.

On NumPy alone. A search is a generator: it yields the trials that it needs, is sent
their losses, and returns an `Outcome`. It depends on nothing else, so that a search
that is given the losses of before goes the same way again.
"""

import itertools
import math
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats
from scipy.stats import qmc

from experiments.training.ranges import NEAR, Range, Search

Point = tuple[float, ...]
"""A value of each searched number, in the order of the space."""


class Trial(NamedTuple):
    """A training."""

    point: Point
    seed: int


class Outcome(NamedTuple):
    """What a search found.

    Attributes:
        point: the best one.
        score: its mean, on seeds that no single search used; lower is better.
        found: whether it is an optimum, as `Search` says.
        why: it is not, or "".
        trainings: that it took.
    """

    point: Point
    score: float
    found: bool
    why: str
    trainings: int


Asking = Generator[list[Trial], Sequence[float], Any]
"""Yields trials, is sent their scores."""

_STREAM = 100_000  # from the first seed of one search to the first of the next
_COARSE = 0.5  # decades between a point and its first neighbors
_LAST = math.log10(2.0)  # and its last ones, before they are `NEAR`
_FIRST_SEEDS = 2  # of the starts, and of the way down
_GROWTH = 1.5  # of the number of seeds, where an interval does not decide
_LEVEL = 0.95


def find(
    space: Mapping[str, Range],
    search: Search,
    name: str,
    *,
    first_seed: int,
    nested: Sequence[Point] = (),
) -> Asking:
    """Searches the optimum of one series.

    Args:
        space: of the numbers.
        search: how hard.
        name: of the series: others begin at other points.
        first_seed: the first seed that it may use; it uses
            first_seed .. first_seed + 100,000 (repeats + 1).
        nested: optima of series that this one contains, as points of `space`.

    Returns:
        A generator that returns an `Outcome`.
    """
    table = _Table(search.most)
    climbs = [
        _Climb(space, search, table, f"{name}, search {i}", first_seed + i * _STREAM)
        for i in range(1, search.repeats + 1)
    ]
    centers: list[Point] = []
    common, attempt = [first_seed + i for i in range(search.seeds)], 0
    try:
        centers = yield from together([one.run(nested) for one in climbs])
        while True:
            apart, common = yield from _agreement(table, search, centers, common)
            best = min(centers, key=lambda point: table.mean(point, common))
            if not apart:
                score = table.mean(best, common)
                return Outcome(best, score, True, "", len(table))
            attempt += 1
            # who lost looks elsewhere first, and then from where the others are
            known = [*nested, best] if attempt > 1 else nested
            again = yield from together(
                [climbs[i].run([*known, centers[i]], attempt) for i in apart]
            )
            for i, center in zip(apart, again, strict=True):
                centers[i] = center
    except _SpentError:
        best, seeds = table.best(centers)
        why = f"not found within {search.most:,} trainings"
        if attempt:
            why += f": {search.repeats} searches do not agree"
        return Outcome(best, table.mean(best, seeds), False, why, len(table))


def together(askings: Sequence[Asking]) -> Asking:
    """Several at once: each round has what all of them ask for.

    Returns:
        A generator that returns the list of what they return.
    """
    returned: dict[int, Any] = {}
    asked: dict[int, list[Trial]] = {}

    def proceed(i, answer):
        try:
            asked[i] = askings[i].send(answer)
        except StopIteration as end:
            returned[i] = end.value
            asked.pop(i, None)

    for i in range(len(askings)):
        proceed(i, None)
    while asked:
        answers = iter((yield list(itertools.chain(*asked.values()))))
        for i, trials in list(asked.items()):
            proceed(i, [next(answers) for _ in trials])
    return [returned[i] for i in range(len(askings))]


class _SpentError(Exception):
    """A search needs more trainings than it may have."""


class _Table:
    """The scores of trials so far, {point: {seed: score}}."""

    def __init__(self, most: int):
        self._scores: dict[Point, dict[int, float]] = {}
        self._most = most

    def __len__(self) -> int:
        return sum(map(len, self._scores.values()))

    def fill(self, points: Iterable[Point], seeds: Sequence[int]) -> Asking:
        """Asks for what is missing of these points under these seeds."""
        missing = [
            Trial(point, seed)
            for point, seed in itertools.product(dict.fromkeys(points), seeds)
            if seed not in self._scores.get(point, ())
        ]
        if len(self) + len(missing) > self._most:
            raise _SpentError
        if missing:
            scores = yield missing
            for (point, seed), score in zip(missing, scores, strict=True):
                score = math.inf if math.isnan(score) else float(score)
                self._scores.setdefault(point, {})[seed] = score

    def mean(self, point: Point, seeds: Sequence[int]) -> float:
        """The mean score of a point; inf where a seed is missing or diverged."""
        there = self._scores.get(point, {})
        return float(np.mean([there.get(seed, math.inf) for seed in seeds]))

    def difference(self, point: Point, other: Point, first_seed: int) -> "_Difference":
        """How much worse a point is than another, over all seeds of both.

        Args:
            point: any that was trained.
            other: likewise.
            first_seed: of the search; other searches' seeds do not count.
        """
        one, two = self._scores[point], self._scores[other]
        seeds = [s for s in one if s in two and 0 <= s - first_seed < _STREAM]
        with np.errstate(invalid="ignore"):
            values = np.array([one[seed] for seed in seeds])
            values -= np.array([two[seed] for seed in seeds])
        values[np.isnan(values)] = math.inf  # a seed under which both diverge
        if np.isinf(values).any():
            return _Difference(math.copysign(math.inf, values.sum()), 0.0)
        error = values.std(ddof=1) / math.sqrt(len(values))
        half = stats.t.ppf(0.5 + _LEVEL / 2, len(values) - 1) * error
        return _Difference(float(values.mean()), float(half))

    def best(self, points: Sequence[Point]) -> tuple[Point, list[int]]:
        """The best of some points, or of all, under the seeds that it was tried with.

        Points that were tried under more seeds come first.
        """
        among = [point for point in points if point in self._scores]
        among = among or list(self._scores)
        most = max(len(self._scores[point]) for point in among)
        tried = [point for point in among if 2 * len(self._scores[point]) > most]
        best = min(tried, key=lambda point: self.mean(point, [*self._scores[point]]))
        return best, list(self._scores[best])


class _Difference(NamedTuple):
    """How much worse a point is than another, over paired seeds."""

    mean: float
    half: float  # of its interval of 95 %

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def _agreement(
    table: _Table, search: Search, centers: Sequence[Point], seeds: list[int]
) -> Generator[list[Trial], Sequence[float], tuple[list[int], list[int]]]:
    """Which centers are worse than the best by more than the tolerance."""
    if len(set(centers)) == 1:
        yield from table.fill(centers, seeds)
        return [], seeds
    while True:
        yield from table.fill(centers, seeds)
        best = min(centers, key=lambda point: table.mean(point, seeds))
        apart, open_ = [], False
        for i, center in enumerate(centers):
            worse = table.difference(center, best, seeds[0])
            if worse.low > search.tolerance:
                apart.append(i)
            elif worse.high > 2 * search.tolerance:
                open_ = True
        if apart or not open_:
            return apart, seeds
        seeds = _more(seeds)


def _more(seeds: list[int]) -> list[int]:
    return [seeds[0] + i for i in range(math.ceil(_GROWTH * len(seeds)))]


class _Climb:
    """One search of a series: from its starts down to a point that is found."""

    def __init__(
        self,
        space: Mapping[str, Range],
        search: Search,
        table: _Table,
        name: str,
        first_seed: int,
    ):
        self._ranges = list(space.values())
        self._search, self._table = search, table
        self._name, self._first_seed = name, first_seed
        optional = [
            (False, True) if one.off is not None else (True,) for one in self._ranges
        ]
        # which numbers are on
        self._branches = list(itertools.product(*optional))

    def run(self, known: Sequence[Point], attempt: int = 0) -> Asking:
        """Yields trials; returns a point that no neighbor beats.

        Args:
            known: further starts.
            attempt: another one has other starts.
        """
        seeds = [self._first_seed + i for i in range(_FIRST_SEEDS)]
        ways = [
            self._down(
                [*self._starts(branch, attempt), *self._those(known, branch)], seeds
            )
            for branch in self._branches
        ]
        ends = yield from together(ways)
        return (yield from self._settled([*ends, *known]))

    def _those(self, points: Sequence[Point], branch: tuple[bool, ...]) -> list[Point]:
        return [point for point in points if self._branch(point) == branch]

    def _branch(self, point: Point) -> tuple[bool, ...]:
        both = zip(point, self._ranges, strict=True)
        return tuple(value != one.off for value, one in both)

    def _starts(self, branch: tuple[bool, ...], attempt: int) -> list[Point]:
        """Quasi-random points of the ranges that are on; more of more numbers."""
        dimensions = sum(branch)
        if not dimensions:
            return [tuple(one.off for one in self._ranges)]
        seed = zlib.crc32(f"{self._name}, {branch}, {attempt}".encode())
        count = 4 + 2 ** (dimensions + 1)
        shares = qmc.Sobol(dimensions, rng=seed).random(2 ** math.ceil(np.log2(count)))
        points = []
        for row in shares[:count]:
            places = iter(row)
            points.append(
                tuple(
                    self._at(one, next(places)) if on else one.off
                    for one, on in zip(self._ranges, branch, strict=True)
                )
            )
        return points

    def _at(self, one: Range, share: float) -> float:
        low, high = one.ends
        return one.value(low + share * (high - low))

    def _down(self, starts: list[Point], seeds: list[int]) -> Asking:
        """From the best start to a point without better neighbors at a factor of 2."""
        table, step = self._table, _COARSE
        yield from table.fill(starts, seeds)
        tried = list(dict.fromkeys(starts))

        def best():
            return min(tried, key=lambda point: table.mean(point, seeds))

        center = best()
        while True:
            around = self._star(center, step)
            around += self._fitted(center, tried, seeds, 2 * step)
            if not around:
                return center
            yield from table.fill(around, seeds)
            tried = list(dict.fromkeys([*tried, *around]))
            before, center = center, best()
            if center == before:
                if step <= _LAST:
                    return center
                step = max(step / 2, _LAST)

    def _settled(self, candidates: Sequence[Point]) -> Asking:
        """From the best candidate to a point that is found."""
        table = self._table
        candidates = list(dict.fromkeys(candidates))
        seeds = [self._first_seed + i for i in range(self._search.seeds)]
        yield from table.fill(candidates, seeds)
        center = min(candidates, key=lambda point: table.mean(point, seeds))
        tried = list(candidates)
        while True:
            others = [*self._star(center, NEAR), *self._star(center, _LAST)]
            others += self._fitted(center, tried, seeds, _COARSE)
            others = [o for o in dict.fromkeys([*others, *candidates]) if o != center]
            tried = list(dict.fromkeys([*tried, *others]))
            better = yield from self._better(center, others, seeds)
            if better is None:
                return center
            candidates = [*candidates, center]
            center = better

    def _better(
        self, center: Point, others: Sequence[Point], seeds: list[int]
    ) -> Generator[list[Trial], Sequence[float], Point | None]:
        """A point that is better than the center, or None: none is by the tolerance.

        Seeds are added for those that are not decided. A pair is compared under all
        seeds that both were trained with.
        """
        table, tolerance = self._table, self._search.tolerance
        undecided = list(others)
        while True:
            yield from table.fill([center, *undecided], seeds)
            differences = {
                one: table.difference(one, center, self._first_seed)
                for one in undecided
            }
            better = [
                one
                for one, worse in differences.items()
                if worse.high < 0 and worse.mean < -tolerance / 2
            ]
            if better:
                return min(better, key=lambda one: differences[one].mean)
            undecided = [
                one
                for one, worse in differences.items()
                if worse.low < -tolerance
                and not (worse.half <= tolerance and worse.mean >= -tolerance)
            ]
            if not undecided:
                return None
            seeds = _more(seeds)

    def _star(self, center: Point, step: float) -> list[Point]:
        """The neighbors of a point, one to each side of each number that is on."""
        points = []
        for i, (value, one) in enumerate(zip(center, self._ranges, strict=True)):
            if value == one.off:
                continue
            for sign in (-1, 1):
                moved = one.value(one.coordinate(value) + sign * step)
                if moved not in (value, one.off):
                    points.append((*center[:i], moved, *center[i + 1 :]))
        return points

    def _fitted(
        self,
        center: Point,
        tried: Sequence[Point],
        seeds: Sequence[int],
        within: float,
    ) -> list[Point]:
        """The minimum of a quadratic function fitted to the points nearby, if any."""
        on = [i for i, is_on in enumerate(self._branch(center)) if is_on]

        def place(point):
            return [self._ranges[i].coordinate(point[i]) for i in on]

        middle = np.array(place(center))
        near, heights = [], []
        for point in self._those(tried, self._branch(center)):
            away = np.array(place(point)) - middle
            height = self._table.mean(point, seeds)
            if np.abs(away).max(initial=0) <= 2 * within and math.isfinite(height):
                near.append(away)
                heights.append(height)
        terms = (len(on) + 1) * (len(on) + 2) // 2
        if len(near) <= terms:
            return []
        lowest = _lowest(np.array(near), np.array(heights), within)
        moved = list(center)
        for i, away, where in zip(on, lowest, middle, strict=True):
            moved[i] = self._ranges[i].value(where + away)
        return [tuple(moved)]


def _lowest(points: np.ndarray, heights: np.ndarray, within: float) -> np.ndarray:
    """The lowest place of a quadratic function fitted to heights [n], near 0.

    Args:
        points: [n, dimensions].
        heights: [n].
        within: of each coordinate.

    Example:
        >>> points = np.random.default_rng(0).uniform(-1, 1, (16, 2))
        >>> heights = ((points - np.array([0.3, 0.6])) ** 2).sum(axis=1)
        >>> _lowest(points, heights, 1.0).round(4).tolist()
        [0.3, 0.6]
    """
    weights, *_ = np.linalg.lstsq(_quadratic(points), heights, rcond=None)

    def height(point):
        return float((_quadratic(point[None]) @ weights)[0])

    dimensions = points.shape[1]
    begin = np.clip(points[np.argmin(heights)], -within, within)
    ends = [
        optimize.minimize(height, start, bounds=[(-within, within)] * dimensions)
        for start in (begin, np.zeros(dimensions))
    ]
    return np.clip(min(ends, key=lambda end: end.fun).x, -within, within)


def _quadratic(points: np.ndarray) -> np.ndarray:
    """1, all coordinates and all their products, [n, terms]."""
    count, dimensions = points.shape
    rows, columns = np.triu_indices(dimensions)
    products = points[:, rows] * points[:, columns]
    return np.concatenate([np.ones((count, 1)), points, products], axis=1)
