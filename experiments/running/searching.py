"""Searches the optimum of a series: chooses the points and seeds to train next.

It needs only NumPy and SciPy. A search is a generator: it yields the trials that it
needs, is sent their scores, and returns an `Outcome`. It depends on nothing else: the
same scores lead to the same trials, so that a killed search can be resumed.
"""

import itertools
import math
import statistics
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize
from scipy.stats import qmc

from experiments.running.search_scores import (
    STREAM,
    Asking,
    Difference,
    Point,
    SpentError,
    Table,
    Trial,
)
from experiments.training.ranges import AT_LIMIT, NEAR, Range, Search


class Outcome(NamedTuple):
    """The result of a search.

    Attributes:
        point: the best point.
        score: the mean of its scores, the lower the better. If the point is found, the
            mean is over seeds that chose no point before; nan if nothing was trained.
        found: whether the point is an optimum, as `Search` defines it.
        why: the reason if no optimum is found; the numbers that are at a limit of a
            hard range; or "".
        trainings: the number of trainings of the search.
        tried: all points of the search.
    """

    point: Point
    score: float
    found: bool
    why: str
    trainings: int
    tried: tuple[Point, ...]


# decades between a point and its neighbors: first, and last, before they are `NEAR`
_COARSE, _LAST = 0.5, math.log10(2.0)
_FIRST_SEEDS = 2  # for the starts and the moves down; `Search.seeds` are for the end
# factors by which seeds are added until an interval decides: the least, and the most
_LEAST_GROWTH, _GROWTH = 1.1, 1.5


def find(
    space: Mapping[str, Range],
    search: Search,
    name: str,
    *,
    first_seed: int,
    nested: Sequence[Point] = (),
    rivals: Sequence[Point] = (),
) -> Asking:
    """Searches the optimum of one series.

    Args:
        space: the searched numbers and their ranges.
        search: the effort of the search.
        name: the name of the series: searches of another name begin at other points.
        first_seed: the first seed of the search. All of its seeds are less than
            first_seed + 100,000 (repeats + 1).
        nested: optima of series that this series contains, as points of `space`; each
            search begins at them too.
        rivals: optima of related series, as points of `space`. No point is found that
            a rival beats by more than the tolerance: the searches begin again there.

    Returns:
        A generator that returns an `Outcome`.
    """
    table = Table(search.most)
    climbs = [
        _Climb(space, search, table, f"{name}, search {i}", first_seed + i * STREAM)
        for i in range(1, search.repeats + 1)
    ]
    agreed = _agreed(space, table, search, climbs, first_seed, nested, rivals)
    return table.filled(agreed)


def untried(
    space: Mapping[str, Range], points: Iterable[Point], tried: Sequence[Point]
) -> list[Point]:
    """The points from which each point that was tried differs by more than a factor 2.

    Two points differ if one of their numbers does. A number that is off differs from
    each value that is on.

    Example:
        >>> space = {"step": Range(0.01, 1.0), "decay": Range(0.1, 1.0, off=1.0)}
        >>> untried(space, [(0.1, 0.2), (0.19, 1.0)], [(0.19, 0.11), (0.1, 1.0)])
        []
        >>> untried(space, [(0.1, 0.2), (0.19, 1.0)], [(0.21, 0.2), (0.4, 1.0)])
        [(0.1, 0.2), (0.19, 1.0)]
    """

    def place(point):
        both = zip(space.values(), point, strict=True)
        return [np.nan if x == one.off else one.coordinate(x) for one, x in both]

    there = np.array([place(point) for point in tried]).reshape(-1, len(space))

    def is_near(point):
        here = np.array(place(point))
        are_off = np.isnan(there) & np.isnan(here)
        return (are_off | (np.abs(there - here) <= _LAST)).all(axis=1).any()

    return [point for point in points if not is_near(point)]


def _agreed(
    space: Mapping[str, Range],
    table: "Table",
    search: Search,
    climbs: Sequence["_Climb"],
    first_seed: int,
    nested: Sequence[Point],
    rivals: Sequence[Point],
) -> Asking:
    """Runs all searches, and repeats those that end at a worse point than the best."""
    centers: list[Point] = []
    common, attempt = _seeds(first_seed, search.seeds), 0
    try:
        centers = yield from together([one.run(nested, search.seeds) for one in climbs])
        while True:
            apart, common = yield from _agreement(
                table, search, centers, rivals, common
            )
            ends = centers if not apart else [*centers, *rivals]
            best = min(ends, key=lambda point: table.mean(point, common))
            if not apart:
                score = table.mean(best, common)
                is_found, why = _is_optimum(space, best, score)
                return Outcome(best, score, is_found, why, len(table), table.points)
            attempt += 1
            # a repeated search has other starts. It begins at the best point too if it
            # is repeated for the second time, or if the best point is a rival
            at_best = attempt > 1 or best not in centers
            known = [*nested, best] if at_best else nested
            # the few seeds of a search may lack a rare bad score that the common seeds
            # have: each further repetition begins with more seeds
            seeds = math.ceil(search.seeds * _GROWTH ** (attempt - 1))
            again = yield from together(
                [climbs[i].run([*known, centers[i]], seeds, attempt) for i in apart]
            )
            if attempt > 1 and again == [centers[i] for i in apart]:
                # under the seeds of these searches the best point is no better, so more
                # common seeds must decide too
                common = _seeds(first_seed, math.ceil(_GROWTH * len(common)))
            for i, center in zip(apart, again, strict=True):
                centers[i] = center
    except SpentError as spent:
        why = f"not found within {search.most:,} trainings"
        if attempt:
            why += f", and {search.repeats} searches do not agree"
        why += ": raise `most`"
        if table.undecided:
            # of all searches: some have new points, of few seeds
            reached = _rounded_up(statistics.median_high(table.undecided.values()))
            why += f", or `tolerance` to {reached:.2g}, which as many may reach"
        else:  # no comparison is open, so that no tolerance can be named
            why += f" to at least {spent.needed:,}, which the next round needs"
        best, score = climbs[0].first, math.nan
        if len(table):
            best, score = table.best(centers)
        return Outcome(best, score, False, why, len(table), table.points)


def _rounded_up(number: float) -> float:
    """The number, with two digits.

    Example:
        >>> _rounded_up(0.02301), _rounded_up(1.0)
        (0.024, 1.0)
    """
    digit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / digit) * digit:.2g}")


def _is_optimum(
    space: Mapping[str, Range], point: Point, score: float
) -> tuple[bool, str]:
    """Whether a point on which the searches agree is an optimum; and `why` it is not.

    A point at a limit of a hard range is an optimum; `why` names the numbers there.
    """
    if not math.isfinite(score):
        return False, "the best point diverges under some seeds"
    at_limits = [
        name
        for (name, one), value in zip(space.items(), point, strict=True)
        if value != one.off and not one.limits[0] < value < one.limits[1]
    ]
    endless = [name for name in at_limits if not space[name].is_hard]
    if endless:
        return False, f"the scores fall without end along {', '.join(endless)}"
    return True, AT_LIMIT * bool(at_limits) + ", ".join(at_limits)


def together(askings: Sequence[Asking]) -> Asking:
    """Runs several generators at once: a round has the trials of all of them.

    Args:
        askings: the generators.

    Returns:
        A generator that returns the list of their results.
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
            proceed(i, list(itertools.islice(answers, len(trials))))
    return [returned[i] for i in range(len(askings))]


def _agreement(
    table: Table,
    search: Search,
    centers: Sequence[Point],
    rivals: Sequence[Point],
    seeds: list[int],
) -> Generator[list[Trial], Sequence[float], tuple[list[int], list[int]]]:
    """Compares the last points of the searches, under seeds that no search has used.

    Returns:
        The numbers of the points that are worse than the best, or than a rival, by more
        than the tolerance; and the seeds, which grow until each interval is short
        enough.
    """
    every, few = [*centers, *rivals], seeds[: search.seeds]
    yield from table.fill(every, few)
    best = min(every, key=lambda point: table.mean(point, few))
    # a rival that is clearly worse gets no more seeds
    every = [
        one
        for one in every
        if one in centers
        or table.difference(one, best, seeds[0]).low <= search.tolerance
    ]
    while True:
        yield from table.fill(every, seeds)
        best = min(every, key=lambda point: table.mean(point, seeds))
        worse = [table.difference(center, best, seeds[0]) for center in centers]
        apart = [
            i
            for i, one in enumerate(worse)
            # if the interval is short enough, the mean decides
            if search.tolerance
            < (one.mean if one.half <= search.tolerance else one.low)
        ]
        open_ = [
            one
            for one in worse
            if one.high > 2 * search.tolerance and one.half > search.tolerance
        ]
        if apart or not open_:
            table.undecided.pop(seeds[0], None)
            return apart, seeds
        table.undecided[seeds[0]] = max(one.half for one in open_)
        seeds = _more(seeds, open_, search.tolerance)


def _more(
    seeds: list[int], undecided: Iterable[Difference], tolerance: float
) -> list[int]:
    """More seeds: about as many as the first of the undecided pairs needs."""
    count = len(seeds)
    shares = [
        one.half / max(tolerance, tolerance + one.mean, -one.mean) for one in undecided
    ]
    needed = math.ceil(count * min(shares) ** 2)
    least, most = math.ceil(_LEAST_GROWTH * count), math.ceil(_GROWTH * count)
    return _seeds(seeds[0], min(max(needed, least), most))


def _seeds(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


class _Climb:
    """One search of a series, from its starts to a point that no neighbor beats."""

    def __init__(
        self,
        space: Mapping[str, Range],
        search: Search,
        table: Table,
        name: str,
        first_seed: int,
    ):
        self._ranges = list(space.values())
        self._search, self._table = search, table
        self._name, self._first_seed = name, first_seed
        optional = [
            (False, True) if one.off is not None else (True,) for one in self._ranges
        ]
        # each choice of the numbers that are on, which are those that are not `off`
        self._branches = list(itertools.product(*optional))
        self.first = self._starts(self._branches[-1], 0)[0]

    def run(self, known: Sequence[Point], seeds: int, attempt: int = 0) -> Asking:
        """Yields trials; returns a point that no neighbor beats.

        Args:
            known: further points to begin with.
            seeds: the first number of seeds under which neighbors are compared.
            attempt: a number; the starts of another attempt are other points.
        """
        starts = [
            [*self._starts(branch, attempt), *self._in(known, branch)]
            for branch in self._branches
        ]
        ends = yield from together([self._down(those) for those in starts])
        # `_lines` tries distant values of one number, and a number off or on
        lines = [point for end in ends for point in self._lines(end)]
        starts = [
            [end, *self._in(lines, self._branch(end))] for end in dict.fromkeys(ends)
        ]
        ends = yield from together([self._down(those) for those in starts])
        return (yield from self._settled([*ends, *known], self._seeds(seeds)))

    def _seeds(self, number: int) -> list[int]:
        return _seeds(self._first_seed, number)

    def _lines(self, center: Point) -> list[Point]:
        """Varies one number of a point over its whole range, or sets it off."""
        points = []
        for i, one in enumerate(self._ranges):
            values = [] if one.off is None else [one.off]
            others = sum(self._branch(center)) - (center[i] != one.off)
            if others:  # one number alone has starts in its whole range
                count = math.ceil(np.ptp(one.ends))
                values += [self._at(one, (k + 0.5) / count) for k in range(count)]
            points += [(*center[:i], value, *center[i + 1 :]) for value in values]
        return [point for point in points if point != center]

    def _in(self, points: Sequence[Point], branch: tuple[bool, ...]) -> list[Point]:
        return [point for point in points if self._branch(point) == branch]

    def _branch(self, point: Point) -> tuple[bool, ...]:
        both = zip(point, self._ranges, strict=True)
        return tuple(value != one.off for value, one in both)

    def _starts(self, branch: tuple[bool, ...], attempt: int) -> list[Point]:
        """Quasi-random points, more of them if more numbers are on."""
        dimensions = sum(branch)
        if not dimensions:
            return [tuple(one.off for one in self._ranges if one.off is not None)]
        seed = zlib.crc32(f"{self._name}, {branch}, {attempt}".encode())
        count = 4 + 2 ** (dimensions + 1)
        shares = qmc.Sobol(dimensions, rng=seed).random(2 ** math.ceil(np.log2(count)))
        points = []
        for row in shares[:count]:
            places = iter(row)
            points.append(
                tuple(
                    self._at(one, next(places)) if on or one.off is None else one.off
                    for one, on in zip(self._ranges, branch, strict=True)
                )
            )
        return points

    def _at(self, one: Range, share: float) -> float:
        low, high = one.ends
        return one.value(low + share * (high - low))

    def _down(self, starts: list[Point]) -> Asking:
        """Moves from the best start until no neighbor at a factor of 2 is better."""
        table, step = self._table, _COARSE
        seeds, tried = self._seeds(_FIRST_SEEDS), list(dict.fromkeys(starts))

        def best():
            return min(tried, key=lambda point: table.mean(point, seeds))

        yield from table.fill(tried, seeds)
        center = best()
        while True:
            around = self._neighbors(center, step) + self._fitted(center, 2 * step)
            if not around:
                return center
            yield from table.fill(around, seeds)
            tried = list(dict.fromkeys([*tried, *around]))
            before, center = center, best()
            if center == before:
                if step <= _LAST:
                    return center
                step = max(step / 2, _LAST)

    def _settled(self, candidates: Sequence[Point], seeds: list[int]) -> Asking:
        """Moves from the best candidate until no neighbor is better."""
        table = self._table
        candidates = list(dict.fromkeys(candidates))
        yield from table.fill(candidates, seeds)
        center = min(candidates, key=lambda point: table.mean(point, seeds))
        # a candidate may be best by chance; a fit to many points is less so
        center = (self._fitted(center, _COARSE) or [center])[0]
        yield from table.fill([center], seeds)
        centers = []
        while True:
            if center in centers:
                # a cycle: each pair of points was compared under other seeds
                seeds = self._seeds(math.ceil(_GROWTH * len(seeds)))
            centers.append(center)
            others = [*self._neighbors(center, NEAR), *self._neighbors(center, _LAST)]
            others += self._fitted(center, _COARSE)
            every = dict.fromkeys([*others, *candidates, *centers])
            others = [other for other in every if other != center]
            better = yield from self._better(center, others, seeds)
            if better is None:
                return center
            center = better

    def _better(
        self, center: Point, others: Sequence[Point], seeds: list[int]
    ) -> Generator[list[Trial], Sequence[float], Point | None]:
        """The best of the points that are better than the center, or None.

        None means that no point is better by more than the tolerance. Undecided points
        get more seeds. Two points are compared under all seeds that both have.
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
                table.undecided.pop(self._first_seed, None)
                return min(better, key=lambda one: differences[one].mean)
            differences = {
                one: worse
                for one, worse in differences.items()
                if worse.low < -tolerance
                and not (worse.half <= tolerance and worse.mean >= -tolerance)
            }
            if not differences:
                table.undecided.pop(self._first_seed, None)
                return None
            undecided = list(differences)
            halves = [one.half for one in differences.values()]
            table.undecided[self._first_seed] = max(halves)
            seeds = _more(seeds, differences.values(), tolerance)

    def _neighbors(self, center: Point, step: float) -> list[Point]:
        """The neighbors of a point, one on each side of each number that is on."""
        points = []
        for i, (value, one) in enumerate(zip(center, self._ranges, strict=True)):
            if value == one.off:
                continue
            for sign in (-1, 1):
                moved = one.value(one.coordinate(value) + sign * step)
                if moved != value:  # a value at a limit, which may be `off`, stays
                    points.append((*center[:i], moved, *center[i + 1 :]))
        return points

    def _fitted(self, center: Point, within: float) -> list[Point]:
        """The minimum of a quadratic function fitted to the points nearby, if any.

        The heights are differences from the center, weighted by their number of seeds.
        """
        table, branch = self._table, self._branch(center)
        on = [i for i, is_on in enumerate(branch) if is_on]

        def place(point):
            return np.array([self._ranges[i].coordinate(point[i]) for i in on])

        middle = place(center)
        near, heights, weights = [], [], []
        for point in self._in(table.tried_by(self._first_seed), branch):
            away = place(point) - middle
            if np.abs(away).max(initial=0) <= 2 * within:
                worse = table.difference(point, center, self._first_seed)
                if worse.seeds:
                    near.append(away)
                    heights.append(worse.mean)
                    weights.append(worse.seeds)
        terms = (len(on) + 1) * (len(on) + 2) // 2
        if len(near) <= terms:
            return []
        lowest = _lowest(np.array(near), np.array(heights), within, np.array(weights))
        if np.abs(lowest).max() < NEAR / 2:
            return []
        moved = list(center)
        for i, away, where in zip(on, lowest, middle, strict=True):
            moved[i] = self._ranges[i].value(where + away)
        return [tuple(moved)]


def _lowest(
    points: np.ndarray, heights: np.ndarray, within: float, seeds: np.ndarray
) -> np.ndarray:
    """The lowest place of a quadratic function that is fitted to heights.

    Args:
        points: [n, dimensions].
        heights: [n], at the points.
        within: the largest absolute value of each coordinate.
        seeds: [n], the number of seeds of each height, which is its weight.

    Example:
        >>> points = np.random.default_rng(0).uniform(-1, 1, (16, 2))
        >>> heights = ((points - np.array([0.3, 0.6])) ** 2).sum(axis=1)
        >>> _lowest(points, heights, 1.0, np.ones(16)).round(4).tolist()
        [0.3, 0.6]
    """
    by = np.sqrt(seeds)
    terms, *_ = np.linalg.lstsq(
        by[:, None] * _quadratic(points), by * heights, rcond=None
    )

    dimensions = points.shape[1]
    slope, upper = terms[1 : 1 + dimensions], np.zeros((dimensions, dimensions))
    upper[np.triu_indices(dimensions)] = terms[1 + dimensions :]

    def height(point):
        bent = (upper + upper.T) @ point
        return slope @ point + bent @ point / 2, slope + bent

    begin = np.clip(points[np.argmin(heights)], -within, within)
    bounds = [(-within, within)] * dimensions
    ends = [
        optimize.minimize(height, start, jac=True, bounds=bounds)
        for start in (begin, np.zeros(dimensions))
    ]
    return np.clip(min(ends, key=lambda end: end.fun).x, -within, within)


def _quadratic(points: np.ndarray) -> np.ndarray:
    """1, all coordinates and all their products, [n, terms]."""
    count, dimensions = points.shape
    rows, columns = np.triu_indices(dimensions)
    products = points[:, rows] * points[:, columns]
    return np.concatenate([np.ones((count, 1)), points, products], axis=1)
