"""The scores of a search's trials, and the interval of a difference of two points."""

import itertools
import math
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

Point = tuple[float, ...]
"""A value of each searched number, in the order of the space."""

STREAM = 100_000  # from the first seed of one search to the first of the next
_LEVEL = 0.95


class Trial(NamedTuple):
    """A training of a point under a seed."""

    point: Point
    seed: int


Asking = Generator[list[Trial], Sequence[float], Any]
"""A generator that yields trials and is sent their scores."""


class SpentError(Exception):
    """A search needs more trainings than its limit.

    Attributes:
        needed: the number of trainings of the search if the next round is included.
    """

    def __init__(self, needed: int):
        """Takes the number."""
        super().__init__(needed)
        self.needed = needed


class Table:
    """The scores of trials so far, {point: {seed: score}}.

    Attributes:
        undecided: {first seed of a comparison: half of the longest of its intervals
            that do not decide yet}.
    """

    def __init__(self, most: int):
        self.undecided: dict[int, float] = {}
        self._scores: dict[Point, dict[int, float]] = {}
        self._most = most

    def __len__(self) -> int:
        return sum(map(len, self._scores.values()))

    @property
    def points(self) -> tuple[Point, ...]:
        """All points with a score."""
        return tuple(self._scores)

    def filled(self, asking: Asking) -> Asking:
        """Yields the trials that a generator asks for, each only once.

        The table has all scores of a round before the generator is resumed, since two
        of its searches may wait for the same trial.
        """
        trials = next(asking)
        while True:
            new = list(dict.fromkeys(trials))
            try:
                needed = len(self) + len(new)
                if needed > self._most:
                    trials = asking.throw(SpentError(needed))
                    continue
                scores = (yield new) if new else []
                for (point, seed), score in zip(new, scores, strict=True):
                    score = math.inf if math.isnan(score) else float(score)
                    self._scores.setdefault(point, {})[seed] = score
                trials = asking.send([])
            except StopIteration as end:
                return end.value

    def has(self, trial: Trial) -> bool:
        """Whether a trial has a score."""
        return trial.seed in self._scores.get(trial.point, ())

    def fill(self, points: Iterable[Point], seeds: Sequence[int]) -> Asking:
        """Asks for the missing trials of these points under these seeds."""
        trials = [Trial(*one) for one in itertools.product(points, seeds)]
        missing = [trial for trial in trials if not self.has(trial)]
        if missing:
            yield missing

    def mean(self, point: Point, seeds: Sequence[int]) -> float:
        """The mean score of a point; inf if a seed is missing or diverged."""
        there = self._scores.get(point, {})
        return float(np.mean([there.get(seed, math.inf) for seed in seeds]))

    def difference(self, point: Point, other: Point, first_seed: int) -> "Difference":
        """The difference of a point's score from another's, over the seeds of both.

        Args:
            point: a trained point.
            other: another trained point.
            first_seed: the first seed of the search; seeds of other searches do not
                count.
        """
        one, two = self._scores[point], self._scores[other]
        seeds = [s for s in one if s in two and 0 <= s - first_seed < STREAM]
        ones, twos = np.array([[one[seed], two[seed]] for seed in seeds]).T
        if not np.isfinite([ones, twos]).all():
            # the point that diverges under fewer seeds is better
            more = (~np.isfinite(ones)).sum() - (~np.isfinite(twos)).sum()
            return Difference(float(more and more * math.inf), 0.0, 0)
        values = ones - twos
        error = values.std(ddof=1) / math.sqrt(len(values))
        half = special.stdtrit(len(values) - 1, 0.5 + _LEVEL / 2) * error
        return Difference(float(values.mean()), float(half), len(values))

    def tried_by(self, first_seed: int) -> list[Point]:
        """All points that the search with this first seed has tried."""
        return [
            point
            for point, there in self._scores.items()
            if any(0 <= seed - first_seed < STREAM for seed in there)
        ]

    def best(self, points: Sequence[Point]) -> tuple[Point, float]:
        """The best of some points, or of all points if none of them was trained.

        A point counts if it has more than half of the seeds of the point with the most.
        """
        among = [point for point in points if point in self._scores]
        among = among or list(self._scores)
        most = max(len(self._scores[point]) for point in among)
        tried = [point for point in among if 2 * len(self._scores[point]) > most]
        means = [self.mean(point, [*self._scores[point]]) for point in tried]
        return min(zip(tried, means, strict=True), key=lambda one: one[1])


class Difference(NamedTuple):
    """How much higher a point scores than another, in the mean over their seeds."""

    mean: float
    half: float  # half the length of its interval of 95 %
    seeds: int  # the number of seeds that both points have; 0 if a training diverged

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half
