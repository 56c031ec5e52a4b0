"""The result of `advise`: a row for each protocol, a verdict, and a table as text."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from delayjax._src.advice.islands import Islands

_WORTH = 1.1  # late gradients must be this many times as fast
_EQUAL = 1.15  # another model or batch size may change a ratio by this factor
_COVERS = (
    " Intervals are of the simulated times: another model changes a ratio by"
    f" {_EQUAL - 1:.0%} or more."
)
_UNSEEN = 0.1  # of an equal share of the gradients
_HEAD = ("protocol", "s/update", "s/gradient", "idle", "used", "staleness", "largest")
_HEAD += ("step limit", "s to target", "times as fast")


def digits(value: float) -> str:
    """A number with three digits, or rounded to an integer from 1000 on."""
    return f"{value:.0f}" if 1000 <= value < math.inf else f"{value:.3g}"


class Mean(NamedTuple):
    """A mean over the seeds, and its 95 % t interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        mean, low, high = map(digits, self)
        return f"{mean} ({low} to {high})"

    @classmethod
    def from_values(cls, values: Sequence[float] | np.ndarray) -> "Mean":
        """The mean of values; all three are inf or nan where a value is."""
        mean = float(np.mean(values))
        if not math.isfinite(mean):
            return cls(mean, mean, mean)
        half = scipy.special.stdtrit(len(values) - 1, 0.975) * scipy.stats.sem(values)
        return cls(mean, float(mean - half), float(mean + half))

    @classmethod
    def of_times(cls, seconds: Sequence[float] | np.ndarray) -> "Mean":
        """The mean of times, and the interval of its logarithm: a time is positive."""
        mean, _, high = cls.from_values(seconds)
        if not math.isfinite(mean):
            return cls(mean, mean, mean)
        with np.errstate(over="ignore"):
            factor = float(np.exp((high - mean) / mean))
        return cls(mean, mean / factor, mean * factor)

    @classmethod
    def of_ratios(cls, above: np.ndarray, below: np.ndarray) -> "Mean":
        """The geometric mean of ratios, and the interval of their logarithms."""
        with np.errstate(invalid="ignore"):  # inf / inf is nan
            ratios = above / below
        return cls(*np.exp(cls.from_values(np.log(ratios))).tolist())


class Choice(NamedTuple):
    """A protocol on a cluster, in a few numbers."""

    protocol: str
    seconds_per_update: Mean
    seconds_per_gradient: Mean
    idle_share: Mean  # of the workers' time: without computation
    idle_by_worker: np.ndarray  # the same for each worker, float64 [P]
    used_share: Mean  # of the workers' time: computing gradients that were applied
    gradient_shares: np.ndarray  # of the applied gradients, by worker, float64 [P]
    mean_staleness: Mean  # updates
    max_staleness: int  # updates
    staleness: np.ndarray  # probabilities of 0, 1, ... updates, float64
    step_limit: Mean  # the largest stable step over the synchronous one
    seconds_by_seed: np.ndarray  # to the target, float64 [seeds]; see below

    @property
    def seconds_to_target(self) -> Mean:
        """The seconds to the target, at the best step; inf beyond 64,000 updates."""
        return Mean.of_times(self.seconds_by_seed)

    def times_as_fast_as(self, other: "Choice") -> Mean:
        """The other protocol's seconds to the target over this one's, seed by seed."""
        return Mean.of_ratios(other.seconds_by_seed, self.seconds_by_seed)

    @property
    def hangs(self) -> bool:
        """Whether the protocol waits forever; then the other fields mean nothing."""
        return math.isinf(self.seconds_per_update.mean)

    @property
    def reaches(self) -> bool:
        """Whether the protocol reaches the target."""
        return math.isfinite(self.seconds_to_target.mean)

    @property
    def unseen(self) -> list[int]:
        """The workers with less than a tenth of an equal share of the gradients."""
        shares = self.gradient_shares
        return np.flatnonzero(shares < _UNSEEN / len(shares)).tolist()


class Advice(NamedTuple):
    """The result of `advise`. `str(advice)` is the verdict and a table.

    Attributes:
        choices: a row for each protocol; the others are compared with `first`.
        assumptions: sentences that state the assumptions.
        islands: how often workers with their own models exchange them; None if messages
            take no time, or a slowdown begins or ends.
        dead: the workers that never revive.
    """

    choices: tuple[Choice, ...]
    assumptions: tuple[str, ...]
    islands: Islands | None = None
    dead: tuple[int, ...] = ()

    @property
    def first(self) -> Choice:
        """The first protocol that reaches the target; if none does, the first one."""
        return next((one for one in self.choices if one.reaches), self.choices[0])

    @property
    def fastest(self) -> Choice:
        """The protocol with the shortest mean time to the target."""
        return _fastest(self.choices)

    @property
    def fresh(self) -> Choice | None:
        """The fastest protocol without late gradients, if one reaches the target."""
        fresh = [one for one in self.choices if one.reaches and not one.max_staleness]
        return _fastest(fresh) if fresh else None

    @property
    def late(self) -> Choice | None:
        """The fastest protocol with late gradients, if one reaches the target."""
        late = [one for one in self.choices if one.reaches and one.max_staleness]
        return _fastest(late) if late else None

    @property
    def best(self) -> Choice:
        """The fastest protocol; a late one must be significantly over 10 % faster."""
        fastest, fresh = self.fastest, self.fresh
        if fresh and not fastest.times_as_fast_as(fresh).low > _WORTH:
            return fresh
        return fastest

    @property
    def verdict(self) -> str:
        """Whether late gradients pay, the best protocol, its cost, and which hang."""
        hang = [one.protocol for one in self.choices if one.hangs]
        short = [one.protocol for one in self.choices if not (one.hangs or one.reaches)]
        who = _workers(self.dead) if self.dead else "tasks that never end"
        if len(hang) == len(self.choices):
            them = "it" if len(self.dead) == 1 else "them"
            return f"Every protocol waits forever for {who}: remove {them}."
        said = "No protocol reaches the target: take a higher target."
        if self.first.reaches:
            said = self._comparison()
            if short:
                said += f" {_all(short, 'never reaches', 'never reach')} the target."
        if hang:
            said += f" {_all(hang, 'waits', 'wait')} forever for {who}."
        return said

    def _comparison(self) -> str:
        """The best protocol, its gain, and its cost."""
        best, fastest, fresh, late = self.best, self.fastest, self.fresh, self.late
        if fresh and late and self._about_equal(late, fresh):
            return (
                f"About equal: {fresh.protocol} without late gradients reaches the"
                f" target in {fresh.seconds_to_target} s, {late.protocol} with late"
                f" gradients in {late.seconds_to_target} s, {_precise(late, fresh)}"
                " times as fast. Train both: the interval is of the simulated times,"
                f" and another model changes the ratio by {_EQUAL - 1:.0%} or more."
                f"{_without(best)}"
            )
        reached = f"{best.protocol} reaches the target in {best.seconds_to_target} s"
        if best is not self.first:
            gain = best.times_as_fast_as(self.first)
            reached += f", {gain} times as fast as {self.first.protocol}"
        if not fresh:
            tried = all(one.max_staleness for one in self.choices)
            said = f"{reached}. No protocol without late gradients "
            said += "was tried." if tried else "reaches the target."
        elif best is not fresh:
            said = (
                f"Late gradients pay: {reached}. Without late gradients"
                f" {fresh.protocol} takes {fresh.seconds_to_target} s,"
                f" {_precise(best, fresh)} times as long as {best.protocol}."
                f"{_without(fresh)}"
            )
        elif best is fastest:
            said = f"Stay synchronous: {reached}."
        else:
            said = (
                f"Stay synchronous: {reached}. {fastest.protocol} with late gradients"
                f" takes {fastest.seconds_to_target} s. It is"
                f" {_precise(fastest, fresh)} times as fast, which is not significantly"
                f" more than {_WORTH} times."
            )
        return said + _COVERS + _without(best)

    def _about_equal(self, late: Choice, fresh: Choice) -> bool:
        """Whether the mean ratio of the two times is too close to 1 for a decision."""
        return 1 / _EQUAL < late.times_as_fast_as(fresh).mean < _EQUAL

    def rows(self) -> list[tuple[str, ...]]:
        """The table as text: a row of names, and a row for each protocol."""
        return [_HEAD, *(_row(one, self.first) for one in self.choices)]

    def table(self) -> str:
        """The rows as lines of text."""
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
        )

    def __str__(self) -> str:
        often = [str(self.islands)] if self.islands else []
        return "\n".join(
            [self.verdict, "", self.table(), "", *often, *self.assumptions]
        )


def _fastest(choices: Sequence[Choice]) -> Choice:
    return min(choices, key=lambda one: one.seconds_to_target.mean)


def _precise(choice: Choice, other: Choice) -> str:
    """How many times as fast `choice` is, with four digits, for the verdict."""
    return "{:.4g} ({:.4g} to {:.4g})".format(*choice.times_as_fast_as(other))


def _without(choice: Choice) -> str:
    """A sentence that names the workers with (almost) no applied gradient, if any."""
    if not choice.unseen:
        return ""
    return (
        f" {choice.protocol} applies (almost) no gradients of"
        f" {_workers(choice.unseen)}: data that no other worker has are not learned."
    )


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' * (len(numbers) > 1)} {_list(map(str, numbers))}"


def _all(protocols: Sequence[str], one: str, several: str) -> str:
    """The protocols, and the verb in the right number."""
    return f"{_list(protocols)} {several if len(protocols) > 1 else one}"


def _list(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _row(choice: Choice, first: Choice) -> tuple[str, ...]:
    if choice.hangs:
        return choice.protocol, *["-"] * (len(_HEAD) - 3), "never", "-"
    to_target = "never", "-"
    if choice.reaches:
        to_target = str(choice.seconds_to_target), str(choice.times_as_fast_as(first))
    return (
        choice.protocol,
        digits(choice.seconds_per_update.mean),
        digits(choice.seconds_per_gradient.mean),
        f"{max(choice.idle_share.mean, 0):.0%}",
        f"{choice.used_share.mean:.0%}",
        f"{choice.mean_staleness.mean:.3g}",
        str(choice.max_staleness),
        f"{choice.step_limit.mean:.3g}",
        *to_target,
    )
