"""A search finds known optima under noise, and reports if it does not."""

import functools
import itertools
import math
import re
import zlib
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from experiments.running import searching
from experiments.running.search_scores import Table, Trial
from experiments.running.searching import find, together
from experiments.training.ranges import NEAR, Range, Search
from tests.support.cases import shortened

pytestmark = pytest.mark.runs

STREAM = 100_000  # seeds of a search, as the docstring of `find` says
FIRST = 1_000_000_000
TOLERANCE = Search().tolerance
RATE, DECAY, STRENGTH = (
    Range(1e-3, 3.0),
    Range(0.01, 1.0, off=1.0),
    Range(1e-3, 1e3, off=0.0),
)


class Noise(NamedTuple):
    """Standard deviations."""

    pairs: float  # of the difference of two points with the same seed
    common: float = 0.3  # of the noise that all points with one seed have in common


class Ended(NamedTuple):
    """A search that has ended."""

    outcome: searching.Outcome
    answers: dict[Trial, float]
    rounds: list[list[Trial]]

    @property
    def seeds(self):
        """{number of the search: its seeds}; number 0 compares the optima."""
        seeds = {}
        for trial in self.answers:
            seeds.setdefault((trial.seed - FIRST) // STREAM, set()).add(trial.seed)
        return seeds


def noisy(function, noise, name=""):
    """The answer of a trial: the same noise, whenever it is asked."""
    spread = noise.pairs / math.sqrt(2)  # of each of the two points

    def answer(trial):
        rng = np.random.default_rng(zlib.crc32(f"{name}{trial}".encode()))
        common = np.random.default_rng((zlib.crc32(name.encode()), trial.seed))
        value = function(*trial.point) + spread * rng.normal()
        return value + noise.common * common.normal()

    return answer


def ended(answer, space, name="a series", search=None, **arguments):
    """Answers a search until it ends; no trial is asked twice."""
    search = search or Search()
    asking: Any = find(space, search, name, first_seed=FIRST, **arguments)
    answers, rounds, scores = {}, [], None
    while True:
        try:
            trials = asking.send(scores)
        except StopIteration as end:
            assert len(answers) == end.value.trainings <= search.most
            return Ended(end.value, answers, rounds)
        assert trials
        assert not answers.keys() & set(trials)
        assert len(set(trials)) == len(trials)
        rounds.append(trials)
        scores = [answer(trial) for trial in trials]
        answers.update(zip(trials, scores, strict=True))


def searched(function, space, noise, name="a series", **arguments):
    return ended(noisy(function, noise, name), space, name, **arguments)


def bowl(*places, bend=0.5):
    """A sum of `bend` (decades from a place)^2; the value 0 is as bad as 0.001."""
    return lambda *point: sum(
        bend * math.log10((value or 0.001) / place) ** 2
        for value, place in zip(point, places, strict=True)
    )


def lost(bend):
    """The largest loss, if no neighbor is better by more than the tolerance.

    At a distance e of the optimum of bend x^2 the neighbor at h is better by
    bend (2 e h - h^2); so e is at most (tolerance + bend h^2) / (2 bend h).
    """
    both = (bend * h**2 for h in (NEAR, math.log10(2.0)))
    return min((TOLERANCE + drop) ** 2 / (4 * drop) for drop in both)


def nearly_all(number, wrong=0.1):
    """How many of a number must be right, if each is wrong with a probability.

    An interval of 95 % that is checked several times is wrong in at most 10 % of the
    searches here. Fewer are right in one of a thousand runs of the test.
    """
    return number - stats.binom.ppf(0.999, number, wrong)


def sides(space, point):
    """The (number, side) of each active number; a limit has no outer side."""
    for i, (value, one) in enumerate(zip(point, space.values(), strict=True)):
        if value != one.off:
            for side, limit in zip((-1, 1), one.limits, strict=True):
                if value != limit:
                    yield i, side


def compared(result, space, number):
    """How much worse the points around the optimum are.

    They are at a factor of 1.25, or at a limit if that is nearer.

    Returns:
        {(number, side): [(mean, half of its interval of 95 %)]}, over the seeds of one
        search.
    """
    scores, ranges = {}, list(space.values())
    for (point, seed), score in result.answers.items():
        if (seed - FIRST) // STREAM == number:
            scores.setdefault(point, {})[seed] = score
    center, worse = result.outcome.point, {}
    for i, side in sides(space, center):
        for point, values in scores.items():
            moved = [j for j in range(len(center)) if point[j] != center[j]]
            if moved != [i] or point[i] == 0.0 or center not in scores:
                continue
            gap = ranges[i].coordinate(point[i]) - ranges[i].coordinate(center[i])
            seeds = values.keys() & scores[center].keys()
            last = point[i] in ranges[i].limits and 0 < side * gap < NEAR
            # values are printed with four digits
            if (last or abs(side * gap - NEAR) < 0.001) and len(seeds) > 1:
                gaps = np.array([values[s] - scores[center][s] for s in seeds])
                half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
                worse.setdefault((i, side), []).append((gaps.mean(), half))
    return worse


CASES = {
    "one": (bowl(0.03), dict(a=RATE)),
    "two": (bowl(0.03, 0.1), dict(a=RATE, b=Range(0.01, 1.0))),
    "three": (bowl(0.03, 0.1, 2.0), dict(a=RATE, b=Range(0.01, 1.0), c=STRENGTH)),
    "at off": (bowl(0.03, 1.0), dict(a=RATE, b=DECAY)),
    "near off": (bowl(0.03, 0.93), dict(a=RATE, b=DECAY)),
    "beyond off": (bowl(0.03, 3.0), dict(a=RATE, b=DECAY)),
    "outside": (bowl(30.0), dict(a=RATE)),
    "hard": (bowl(30.0), dict(a=Range(1e-3, 3.0, hard=True))),
}
BEST = {"beyond off": 0.5 * math.log10(3.0) ** 2, "hard": 0.5}


@functools.cache
def searched_case(case, pairs, number):
    """A search of the series of this number, for several tests."""
    return searched(*CASES[case], Noise(pairs), f"{case} {number}")


PAIRS = [*itertools.product(CASES, (0.005, 0.03))]
READ = [("outside", 0.005), ("hard", 0.005)]  # by other tests, too


@pytest.mark.parametrize(
    ("case", "pairs"),
    shortened(PAIRS, *READ, *[pair for pair in PAIRS if pair[1] == 0.03]),
)
def test_no_tried_neighbor_of_a_found_point_is_better_by_the_tolerance(case, pairs):
    _, space = CASES[case]
    for number in range(2):
        result = searched_case(case, pairs, number)
        assert result.outcome.found
        assert result.outcome.why == "at the limit of a" * (case == "hard")
        results = [compared(result, space, i) for i in range(1, Search().repeats + 1)]
        wanted = set(sides(space, result.outcome.point))
        # one of the searches has ended at the limit
        (worse,) = [one for one in results if one.keys() == wanted][:1]
        for mean, half in itertools.chain(*worse.values()):
            assert mean >= -TOLERANCE
            assert mean - half >= -TOLERANCE or half <= TOLERANCE


@pytest.mark.parametrize("case", shortened(CASES, "three", "near off", "hard"))
def test_nearly_all_found_points_lose_no_more_than_their_neighbors_allow(case):
    function, space = CASES[case]
    results = [searched_case(case, 0.03, number).outcome for number in range(12)]
    assert all(one.found for one in results)
    best = BEST.get(case, 0.0)
    right = [
        function(*one.point) - best <= len(space) * lost(bend=0.5) for one in results
    ]
    assert sum(right) >= nearly_all(len(right))


def test_the_search_follows_an_optimum_out_of_its_range_and_not_out_of_a_hard_one():
    point = searched_case("outside", 0.005, 0).outcome.point
    assert math.isclose(point[0], 30.0, rel_tol=0.25)
    assert searched_case("hard", 0.005, 0).outcome.point == (3.0,)
    low = Range(0.0, 0.9, scale="linear")
    outcome = searched(lambda a: a, dict(a=low), Noise(0.005)).outcome
    assert outcome.point == (0.0,)
    assert outcome.found and outcome.why == "at the limit of a"


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_slope_without_end_has_no_optimum(sign):
    """The search ends at the last value of float32."""
    space = dict(a=Range(0.1, 1.0), b=Range(0.1, 1.0, hard=True))
    search = Search(repeats=1, tolerance=0.05)
    outcome = searched(
        lambda a, b: -sign * math.log10(a) - math.log10(b),
        space,
        Noise(0.005),
        search=search,
    ).outcome
    assert outcome.point == (10.0 ** (30 * sign), 1.0)
    assert not outcome.found and outcome.why == "the scores fall without end along a"


@pytest.mark.parametrize("off", [0.1, 1.0])
def test_off_is_no_limit(off):
    space = dict(a=Range(0.1, 1.0, off=off, hard=True))
    sign = 1 if off == 0.1 else -1
    outcome = searched(lambda a: sign * a, space, Noise(0.005)).outcome
    assert outcome.point == (off,) and outcome.found and not outcome.why


def test_four_numbers_in_a_bowl_are_found():
    space = {name: Range(1e-2, 1.0) for name in "abcd"}
    function = bowl(0.03, 0.1, 0.5, 0.2)
    result = searched(function, space, Noise(0.01))
    assert result.outcome.found
    assert function(*result.outcome.point) <= 4 * lost(bend=0.5)


def valley(a, b):
    """A function of rate and decay, infinite above 10^0.9 times the best rate."""
    ridge = math.log10(a) - 0.9 * math.log10(b)
    bend = 0.15 * (math.log10(b) + 1) ** 2
    return math.inf if ridge > 0.9 else 0.6 * ridge**2 + bend


@functools.cache
def in_valley(pairs, number):
    space = dict(a=RATE, b=DECAY)
    return searched(valley, space, Noise(pairs), f"valley {number}").outcome


@pytest.mark.parametrize("pairs", [0.005, 0.03])
def test_a_curved_valley_with_a_diverging_side_is_followed_to_its_end(pairs):
    results = [in_valley(pairs, number) for number in range(12)]
    assert all(one.found for one in results)
    right = [valley(*one.point) <= 2 * TOLERANCE for one in results]
    assert sum(right) >= nearly_all(len(right))


def bump(a, b):
    """b > 0 is better by 0.03, but only in a few of the six decades."""
    height = 0.0 if b == 0 else math.exp(-((math.log10(b) - 0.5) ** 2) / 0.8)
    return 0.6 * math.log10(2 * a) ** 2 - 0.03 * height


def step(a, b):
    """b = 0 is better by 0.03."""
    return 0.6 * math.log10(2 * a) ** 2 + 0.03 * (b != 0)


@pytest.mark.parametrize(("function", "is_on"), [(bump, True), (step, False)])
@pytest.mark.parametrize("pairs", shortened((0.005, 0.03), 0.03))
def test_on_and_off_are_told_apart_where_they_differ_by_three_tolerances(
    function, is_on, pairs
):
    space = dict(a=RATE, b=STRENGTH)
    points = [
        searched(function, space, Noise(pairs), f"{i}").outcome.point for i in range(12)
    ]
    assert all((point[1] == 0.0) == (point[1] < 1e-30) for point in points)
    right = [(b != 0.0) == is_on for _, b in points]
    assert sum(right) >= nearly_all(len(right))


@pytest.mark.parametrize("number", shortened((20, 40), 20))
def test_on_is_found_though_it_is_better_in_one_decade_of_six(number):
    def narrow(a, b):
        height = 0.0 if b == 0 else math.exp(-((math.log10(b) - 0.5) ** 2) / 0.1)
        return 2 * math.log10(2 * a) ** 2 - 0.1 * height

    space, search = dict(a=RATE, b=STRENGTH), Search(repeats=1)
    points = [
        searched(narrow, space, Noise(0.01), f"{i}", search=search).outcome.point
        for i in range(number)
    ]
    right = [narrow(*point) <= -0.1 + 2 * TOLERANCE for point in points]
    assert sum(right) >= nearly_all(number)


@pytest.mark.parametrize(("gap", "worse"), [(0.05, [1]), (0.0, []), (0.005, [])])
def test_searches_agree_if_their_ends_differ_by_no_more_than_the_tolerance(gap, worse):
    answer = noisy(lambda a: gap * (a == 2.0), Noise(0.02))
    table = Table(10_000)
    asking: Any = table.filled(
        searching._agreement(table, Search(), [(1.0,), (2.0,)], [], list(range(6)))
    )
    trials = next(asking)
    with pytest.raises(StopIteration) as end:
        while True:
            trials = asking.send([answer(trial) for trial in trials])
    assert end.value.value[0] == worse


@pytest.mark.parametrize(("mean", "worse"), [(0.0185, [1]), (0.0095, [])])
def test_an_interval_as_short_as_the_tolerance_lets_the_mean_decide(mean, worse):
    """0.0185 +- 0.0098 is not surely above the tolerance of 0.01; its mean is."""
    spread = 0.0098 / 2.5706 * np.sqrt(6 * 5 / 6)  # +-1 under six seeds: t of 5
    scores = {1.0: np.zeros(6), 2.0: mean + spread * np.array([1, -1] * 3)}
    table = Table(10_000)
    asking = table.filled(
        searching._agreement(table, Search(), [(1.0,), (2.0,)], [], list(range(6)))
    )
    trials = next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send([scores[trial.point[0]][trial.seed] for trial in trials])
    assert end.value.value == (worse, list(range(6)))
    assert table.difference((2.0,), (1.0,), 0).half == pytest.approx(0.0098, rel=1e-3)


def test_off_is_the_exact_value_wherever_it_is():
    for off, best in [(0.0, 0.1), (1.0, 0.1), (0.01, 0.1), (123456.0, 0.1)]:
        space = dict(a=Range(0.01, 1.0, off=off))
        result = searched(lambda a, off=off: 0.1 * (a != off), space, Noise(0.005))
        assert result.outcome.point == (off,)
        function = bowl(best) if off > 0 else lambda a: abs(a - 0.1)
        result = searched(function, space, Noise(0.005))
        assert math.isclose(result.outcome.point[0], best, rel_tol=0.3)


def two_basins(a, b):
    """A wide basin, and a narrow one that is 0.1 lower."""
    wide = 0.5 * math.log10(a / 1.0) ** 2 + 0.1
    narrow = 2.0 * math.log10(a / 0.004) ** 2
    return min(wide, narrow) + 0.5 * math.log10(b / 0.1) ** 2


def test_the_deeper_one_of_two_basins_is_found():
    space = dict(a=RATE, b=Range(0.01, 1.0))
    points = [
        searched(two_basins, space, Noise(0.02), f"{i}").outcome.point
        for i in range(12)
    ]
    assert sum(a < 0.03 for a, _ in points) >= nearly_all(12)


def test_losses_of_different_scale_are_found_by_their_logarithms():
    search = Search(relative=True)
    value = noisy(bowl(0.03, bend=1.0), Noise(0.02))
    results = [
        ended(lambda t, k=k: float(search.score(k * math.exp(value(t)))), dict(a=RATE))
        for k in (1e-6, 1e6)
    ]
    assert results[0].outcome.point == results[1].outcome.point


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_what_diverges_is_never_found(diverged):
    def cliff(a):
        return diverged if a > 0.1 else math.log10(a / 0.1) ** 2 - a

    for name in "abcdefgh":
        result = searched(cliff, dict(a=RATE), Noise(0.005), name)
        assert result.outcome.found
        assert result.outcome.point[0] <= 0.1
    search = searched(lambda a: diverged, dict(a=RATE), Noise(0.0))
    assert not search.outcome.found
    assert "diverge" in search.outcome.why


def test_a_point_that_diverges_under_fewer_seeds_is_better():
    def answer(trial):
        a, seed = trial
        often = seed % 2 if a[0] > 0.1 else seed % 7 == 3
        return math.nan if often else noisy(bowl(1.0), Noise(0.005))(trial)

    result = ended(answer, dict(a=RATE))
    assert result.outcome.point[0] <= 0.1
    assert result.outcome.trainings <= Search().most


@pytest.mark.parametrize("name", ["b", "f", "j"])
def test_what_never_decides_ends_at_most_and_says_what_it_could_reach(name):
    given = bowl(0.03), dict(a=RATE), Noise(5.0), name
    result = searched(*given, search=Search(most=2000))
    assert not result.outcome.found
    why = r"not found within 2,000 trainings.*, or `tolerance` to ([\d.]+)"
    reached = float(re.match(why, result.outcome.why)[1])
    assert 1000 < result.outcome.trainings <= 2000
    assert result.outcome.point in {trial.point for trial in result.answers}
    # 3 searches x 3 points share the trainings: 2 sqrt(2) 5 / sqrt(2000 / 9) = 0.95
    assert 0.5 < reached < 4.0
    assert searched(*given, search=Search(most=2000, tolerance=reached)).outcome.found


@pytest.mark.parametrize("most", [1, 30, 100])
def test_too_few_trainings_to_begin_with_are_said_too(most):
    given = bowl(0.03), dict(a=RATE), Noise(0.02)
    result = searched(*given, search=Search(most=most))
    assert not result.outcome.found
    why = rf"not found within {most} trainings: raise `most` to at least (\d+), which"
    needed = int(re.match(why, result.outcome.why)[1])
    assert 1e-3 <= result.outcome.point[0] <= 3.0
    # the first round: 3 searches x 8 starts x 2 seeds
    assert (needed == 48) == (result.outcome.trainings == 0)
    again = searched(*given, search=Search(most=needed))
    assert again.outcome.trainings == needed


def test_a_constant_function_is_found_at_once():
    result = searched(lambda a, b: 1.0, dict(a=RATE, b=STRENGTH), Noise(0.0, 0.0))
    assert result.outcome.found
    assert result.outcome.trainings < 1000


@pytest.mark.parametrize("number", shortened((8, 24), 8))
def test_searches_of_off_and_on_that_meet_train_a_point_once(number):
    def meeting(a, b):
        return 0.6 * (math.log10(a) - 0.9 * math.log10(b)) ** 2 + 0.03 * (b != 1.0)

    for i in range(number):  # `ended` checks each trial
        result = searched(meeting, dict(a=RATE, b=DECAY), Noise(0.005), f"{i}")
        assert result.outcome.point[1] == 1.0


def test_noise_that_all_points_of_a_seed_share_changes_nothing():
    points = [
        searched(bowl(0.03), dict(a=RATE), Noise(0.02, common)).outcome.point
        for common in (0.0, 100.0)
    ]
    assert points[0] == points[1]


def test_a_series_ends_no_worse_than_an_optimum_that_it_contains():
    """The optimum lies in a narrow basin that no start of the search is in."""

    def narrow(a, b):
        far = math.hypot(math.log10(a / 0.002), math.log10(b / 0.012))
        return 1.0 + 0.02 * far - 0.5 * math.exp(-((far / 0.05) ** 2))

    space, known = dict(a=RATE, b=Range(0.01, 1.0)), (0.002, 0.012)
    for i in range(4):
        result = searched(narrow, space, Noise(0.02), f"{i}", nested=[known])
        assert result.outcome.found
        assert narrow(*result.outcome.point) <= narrow(*known) + 2 * TOLERANCE


def test_a_series_ends_no_worse_than_an_optimum_of_a_relative():
    """Two narrow valleys; every search ends in the wider one, which is higher."""

    def two(a, b):
        wide = math.hypot(math.log10(a / 0.1), math.log10(b / 0.1))
        deep = math.hypot(math.log10(a / 0.002), math.log10(b / 0.9))
        return wide - 2.5 * math.exp(-((deep / 0.05) ** 2))

    space, rival = dict(a=RATE, b=Range(0.01, 1.0)), (0.002, 0.9)
    alone = searched(two, space, Noise(0.02))
    assert alone.outcome.found and two(*alone.outcome.point) > two(*rival) + 0.5
    search = searched(two, space, Noise(0.02), rivals=[rival])
    assert search.outcome.found
    assert two(*search.outcome.point) <= two(*rival) + 2 * TOLERANCE

    # the first climbs, before their ends are compared, do not know the rival
    def is_climb(trials):
        return all(one.seed >= FIRST + STREAM for one in trials)

    climbs = [
        list(itertools.takewhile(is_climb, one.rounds)) for one in (alone, search)
    ]
    assert climbs[0] and climbs[0] == climbs[1]


def test_a_relative_that_is_no_better_changes_no_optimum():
    alone = searched(bowl(0.03), dict(a=RATE), Noise(0.02))
    rivals = [(alone.outcome.point[0] * 3,), (alone.outcome.point[0] / 3,)]
    search = searched(bowl(0.03), dict(a=RATE), Noise(0.02), rivals=rivals)
    assert search.outcome[:-2] == alone.outcome[:-2]
    others = set(search.answers) - set(alone.answers)
    assert {trial.point for trial in others} == set(rivals)


def test_a_rival_that_is_clearly_worse_gets_no_more_seeds():
    """Seeds are added until the ends of two searches are compared; it has the first."""
    space, rivals = dict(a=RATE), [(1e-4,)]
    search = searched(bowl(0.001), space, Noise(0.1), rivals=rivals)
    of_rival = [trial for trial in search.answers if trial.point == rivals[0]]
    of_best = [t for t in search.answers if t.point == search.outcome.point]
    common = [trial for trial in of_best if trial.seed < FIRST + STREAM]
    assert len(of_rival) == Search().seeds < len(common)


def disasters(name, share=0.02):
    """0.02 + 0.03 log(0.5/x)^2 with little noise; in a few trainings 2 more.

    The share of these is `share` at x = 0.24, and grows as x^8.
    """

    def answer(trial):
        rng = np.random.default_rng(zlib.crc32(f"{name}{trial.seed}".encode()))
        noise, chance, (x,) = rng.normal(), rng.uniform(), trial.point
        is_bad = chance < share * (x / 0.24) ** 8
        loss = 0.02 + 0.03 * max(math.log(0.5 / x), 0.0) ** 2
        return loss + 0.003 * noise + 2.0 * is_bad

    return answer


@pytest.mark.parametrize("number", [0, 2])
def test_a_search_whose_seeds_lack_a_rare_bad_score_gets_more_seeds(number):
    """The common seeds know that its end is worse, and no seed of the search does."""
    space, rival = dict(a=Range(0.003, 3.0)), (1.9,)
    search = Search(repeats=2, tolerance=0.005)
    name = f"s{number}"
    result = ended(disasters(number), space, name, search=search, rivals=[rival])
    assert result.outcome.found
    common = [t for t in result.answers if t.seed < FIRST + STREAM]
    # a rival that is clearly worse has the first common seeds, also in a repetition
    assert sum(trial.point == rival for trial in common) == Search().seeds
    assert len({trial.seed for trial in common}) > Search().seeds


def test_a_search_that_was_killed_asks_for_exactly_the_rest():
    """The same answers lead to the same trials, in each round."""
    whole = searched(valley, dict(a=RATE, b=DECAY), Noise(0.03))
    trials = list(itertools.chain(*whole.rounds))
    kept = dict(list(whole.answers.items())[: len(trials) // 2])
    trained = []

    def answer(trial):
        if trial not in kept:
            trained.append(trial)
        return whole.answers[trial]

    second = ended(answer, dict(a=RATE, b=DECAY))
    assert trained == trials[len(kept) :]
    assert second.rounds == whole.rounds
    assert second.outcome == whole.outcome


@pytest.mark.parametrize("repeats", [1, 3, 5])
def test_searches_share_no_seed_and_stay_within_their_interval(repeats):
    search = Search(repeats=repeats)
    result = searched(bowl(0.03), dict(a=RATE), Noise(0.05), search=search)
    assert set(result.seeds) == set(range(repeats + 1))
    seeds = list(itertools.chain(*result.seeds.values()))
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= FIRST
    assert max(seeds) < FIRST + STREAM * (repeats + 1)


def test_the_score_is_a_mean_over_seeds_that_no_search_used():
    result = searched(bowl(0.03), dict(a=RATE), Noise(0.02))
    fresh = [
        score
        for (point, seed), score in result.answers.items()
        if point == result.outcome.point and seed < FIRST + STREAM
    ]
    assert len(fresh) >= Search().seeds
    assert math.isclose(result.outcome.score, np.mean(fresh), rel_tol=1e-12)


def firsts(space, name="a series"):
    """The points of the first round."""
    asking = find(space, Search(repeats=1), name, first_seed=0)
    return list(dict.fromkeys(trial.point for trial in next(asking)))


def test_starts_grow_with_the_numbers_and_have_each_optional_one_on_and_off():
    counts = [
        len(firsts({f"{i}": Range(0.01, 1.0) for i in range(number)}))
        for number in (1, 2, 3, 4)
    ]
    assert counts == sorted(set(counts))
    space = dict(a=RATE, b=DECAY, c=STRENGTH)
    branches = Counter((b == 1.0, c == 0.0) for _, b, c in firsts(space))
    assert len(branches) == 4
    assert branches[False, False] == max(branches.values())


def test_series_of_other_names_begin_at_other_points_inside_of_the_range():
    one, two = firsts(dict(a=RATE), "one"), firsts(dict(a=RATE), "two")
    assert not set(one) & set(two)
    assert all(RATE.low <= a <= RATE.high for (a,) in one + two)
    # no gap is larger than half of the range
    places = sorted(RATE.coordinate(a) for (a,) in one)
    assert max(np.diff([RATE.ends[0], *places, RATE.ends[1]])) <= np.ptp(RATE.ends) / 2


def test_searches_of_one_series_begin_at_other_points():
    asking = find(dict(a=RATE), Search(), "a series", first_seed=0)
    starts = {}
    for point, seed in next(asking):
        starts.setdefault(seed // STREAM, set()).add(point)
    assert len(set.union(*starts.values())) == sum(map(len, starts.values()))


@pytest.mark.parametrize("pairs", [0.005, 0.02])
def test_a_repeat_of_two_numbers_needs_fewer_than_393_trainings(pairs):
    """A search of the comparison took as many before."""
    each = [in_valley(pairs, number).trainings for number in range(8)]
    assert max(each) / Search().repeats < 393


def test_searches_that_run_together_get_their_own_answers():
    def asks(name, rounds):
        answers = []
        for i in range(rounds):
            answers += yield [Trial((name,), 10 * i + j) for j in range(i + 1)]
        return answers

    asking = together([asks(1.0, 3), asks(2.0, 0), asks(3.0, 1)])
    trials, returned = next(asking), None
    lengths = [len(trials)]
    while returned is None:
        try:
            trials = asking.send([trial.point[0] + trial.seed for trial in trials])
            lengths.append(len(trials))
        except StopIteration as end:
            returned = end.value
    assert lengths == [2, 2, 3]
    assert returned == [[1.0, 11.0, 12.0, 21.0, 22.0, 23.0], [], [3.0]]
