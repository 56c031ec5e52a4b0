"""Statements of papers and what a run shows of them; records of our numbers."""

import dataclasses
import enum
import hashlib
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.results.estimates import Estimate, Measure, estimate
from experiments.results.measures import Formed
from experiments.results.runs import Run
from experiments.results.watching import watched

REPRODUCED = "reproduced"
SAME_DIRECTION = "same direction"
UNDECIDED = "undecided"
NO_OPTIMUM = "no verdict"
NOT_REPRODUCED = "not reproduced"
NOT_TESTED = "not tested"
DEMONSTRATION = "demonstration"

LOOKS = (1, 2, 4)
"""The looks at a headline. Each number is a multiple of the seeds of the config.

A config is run with its seeds. Until its headline is decided, also among all headlines,
it is run with twice the seeds, then with four times, and then no more."""


class Chosen(enum.StrEnum):
    """Whether a statement was chosen before the results of its config were known."""

    FIRST = "first"  # before any result
    LATER = "later"  # when results were known
    UNSEEN = "unseen"  # results were known, but not to the author


CHOSEN_NOTES: dict[str, str] = {
    Chosen.LATER: "Chosen when results were known: an outside reader refused the"
    " earlier headline.",
    Chosen.UNSEEN: "Chosen when results were known, by one who had not read them: an"
    " outside reader refused the earlier headline.",
}
"""The sentences that a page shows of statements that were not chosen first."""

_NOT_FOUND = "no optimum is found"
_SPREADS = 4
_ROUNDING = 0.001


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A statement of a source, and the bounds by which a run judges it.

    It is written before the run and may fail. If it is written later, `chosen` says so,
    and the book counts such headlines. The 95 % interval over the seeds decides: inside
    the bounds it is "reproduced", outside "not reproduced", and if a bound is within
    the interval "undecided". If a search minimized the measured metric, the interval is
    longer by the tolerance of the search on both sides. Inside of a bound that is ours
    it is "same direction", and never "reproduced". A number of the source may have
    `no_effect` beside it: an interval between the two is "same direction" too, and only
    an interval beyond `no_effect` is "not reproduced". It is "no verdict" if the
    measure reads rows of a searched series whose optimum is not found: all rows that
    `where` chooses count as read.

    The first statement of a config is the headline of its system: what the abstract of
    the source claims. Its verdict is the verdict about the system. A demonstration is
    no headline: no plausible run could fail it. It is shown, without a p-value, and
    decides nothing. If its number is outside of its bounds, it is judged as others are.

    Attributes:
        text: the statement, in one sentence.
        source: author, year, number, and the figure, table or theorem.
        said: the number or the words of the source.
        setting: the setting of the source: model, data, workers.
        measure: the tables of a run -> a number; None if it cannot be tested here.
        at_least: the lower bound of the number.
        at_most: the upper bound.
        bound_is_ours: whether the bound is not a number of the source.
        no_effect: where the method has no effect, outside of the source's bounds: 1 for
            a ratio, 0 for a difference. None if the bounds say nothing of an effect.
        demonstration: whether it is an identity, a construction, a calculation without
            spread over the seeds, or about one step size that no search chose.
        tried: what was tried if it is not reproduced; why it cannot be tested; or what
            a reader must know about the bound.
        chosen: whether it was chosen before the results were known.
    """

    text: str
    source: str
    said: str
    setting: str = ""
    measure: Measure | None = None
    at_least: float = -math.inf
    at_most: float = math.inf
    bound_is_ours: bool = False
    no_effect: float | None = None
    demonstration: bool = False
    tried: str = ""
    chosen: Chosen = Chosen.FIRST

    def __post_init__(self):
        bounded = self.at_least > -math.inf or self.at_most < math.inf
        if bounded != (self.measure is not None):
            raise ValueError(
                f"`Published` {self.text!r} needs `measure` with `at_least` or"
                " `at_most`, or none of the three: then it cannot be tested here."
            )
        if not self.at_least <= self.at_most:
            raise ValueError(
                f"`Published` {self.text!r} needs `at_least` <= `at_most`, got"
                f" {self.at_least} and {self.at_most}: no number is within them."
            )
        within = self.no_effect is not None and (
            self.at_least <= self.no_effect <= self.at_most or self.bound_is_ours
        )
        if within:
            raise ValueError(
                f"`Published` {self.text!r} has `no_effect={self.no_effect}`, which"
                " must lie outside of a bound of the source: leave it out."
            )
        if self.measure is None and not self.tried:
            raise ValueError(
                f"`Published` {self.text!r} has no `measure`: say in `tried` why it"
                " cannot be tested here."
            )
        if self.chosen not in [*Chosen]:
            raise ValueError(
                f"`Published` {self.text!r} needs `chosen` among {', '.join(Chosen)},"
                f" got {self.chosen!r}."
            )

    @property
    def expected(self) -> str:
        """The bounds, as text.

        Example:
            >>> one = Published(text="It is less", source="A", said="half",
            ...                 measure=lambda run: 0.5, at_most=0.6)
            >>> one.expected
            'at most 0.6'
        """
        parts = []
        if self.at_least > -math.inf:
            parts.append(f"at least {self.at_least:g}")
        if self.at_most < math.inf:
            parts.append(f"at most {self.at_most:g}")
        ours = " (our bound)" * self.bound_is_ours
        if self.no_effect is not None:
            parts[-1] += f"; no effect at {self.no_effect:g}"
        return f"{' and '.join(parts)}{ours}" if parts else "nothing"

    @property
    def direction(self) -> tuple[float, float]:
        """The bounds of the same direction: the statement's, extended to `no_effect`.

        `no_effect` itself is outside of them.

        Example:
            >>> half = Published(text="Half", source="A", said="half", at_most=0.5,
            ...                  measure=lambda run: 0.6, no_effect=1.0)
            >>> low, high = half.direction
            >>> low, round(high, 3), high < 1.0
            (-inf, 1.0, True)
        """
        low, high = self.at_least, self.at_most
        if self.no_effect is None:
            return low, high
        least = math.nextafter(self.no_effect, math.inf)
        most = math.nextafter(self.no_effect, -math.inf)
        return min(low, least), max(high, most)


@dataclasses.dataclass(frozen=True)
class Record:
    """A number that we measured. It shows when results change; it is not evidence.

    A run misses it if the run's number is further off than four spreads and 0.1 %.

    Attributes:
        text: the meaning of the number.
        measure: the tables of a run -> the number.
        value: the measured number; nan if there is no record yet.
        spread: its standard error over the seeds; see `estimates.estimate`.
    """

    text: str
    measure: Measure
    value: float = math.nan
    spread: float = 0.0

    def __post_init__(self):
        if math.isinf(self.value) or not 0 <= self.spread < math.inf:
            raise ValueError(
                f"`Record` {self.text!r} needs a finite value and spread, got"
                f" {self.value} and {self.spread}."
            )

    @property
    def tolerance(self) -> float:
        """The largest distance of a run's number from the record.

        Example:
            >>> Record("loss", lambda run: 1.0, 1.0, 0.01).tolerance
            0.041
        """
        return _SPREADS * self.spread + _ROUNDING * abs(self.value)


class Judged(NamedTuple):
    """A published statement with the verdict of a run."""

    claim: Published
    measured: Estimate | None  # None: it could not be measured
    verdict: str
    reason: str = ""  # why it could not be measured, or has no verdict

    def __str__(self):
        return f"{self.verdict}: {self.claim.text}: {self.shown}"

    @property
    def chance(self) -> float:
        """The p-value of the verdict; nan if no interval decides, or without verdict.

            p = looks alpha

        where alpha is the smallest at which the interval decides by the bounds of the
        verdict, and the headline may be looked at `looks` times (Bonferroni). It is at
        most 1. A demonstration, and a number that all seeds agree on, have none: no
        chance is in them. It is 0 if all seeds agree on a number outside of its bounds.
        """
        if self.measured is None or self.verdict in (NO_OPTIMUM, DEMONSTRATION):
            return math.nan
        if not self.measured.varies:
            return 0.0 if self.verdict == NOT_REPRODUCED else math.nan
        bounds = self.claim.direction
        if self.verdict == REPRODUCED:
            bounds = self.claim.at_least, self.claim.at_most
        alpha = self.measured.least_alpha(*bounds)
        return min(len(LOOKS) * alpha, 1.0)

    @property
    def shown(self) -> str:
        """The measured number with its interval, as text."""
        if self.measured is None:
            return self.reason or "not measured"
        low, high = self.measured.interval()
        value, interval = number_text(self.measured.value), f"{low:.3g} to {high:.3g}"
        if math.isnan(low):
            shown = value
        elif self.measured.form == "median":  # its value is a mean with infinite times
            shown = f"{interval}, the median over seeds"
        else:
            shown = f"{value} ({interval})"
        return shown + f"; {self.reason}" * bool(self.reason)


class Compared(NamedTuple):
    """A record with the number of a run."""

    record: Record
    measured: Estimate | None
    met: bool
    reason: str = ""

    def __str__(self):
        record = self.record
        if math.isnan(record.value):
            return f"no record: {record.text}: {self.shown}; --record keeps it"
        mark = "met" if self.met else "MISSED"
        expected = f"{record.value:.4g} ± {record.tolerance:.2g}"
        return f"{mark}: {record.text}: {self.shown}, expected {expected}"

    @property
    def shown(self) -> str:
        """The measured number and its spread, in the digits that a record needs."""
        if self.measured is None:
            return f"not measured ({self.reason})"
        if math.isnan(self.measured.error):
            return number_text(self.measured.value)
        return f"{self.measured.value:.5g}, spread {self.measured.error:.2g}"


def judge(published: Sequence[Published], run: Run) -> list[Judged]:
    """Judges statements by the intervals of a run."""
    judged = []
    for claim in published:
        if claim.measure is None:
            judged.append(Judged(claim, None, NOT_TESTED, claim.tried))
            continue
        measured, reason, is_found = _measured(claim.measure, run)
        verdict = _verdict(claim, measured)
        if not is_found:
            verdict, reason = NO_OPTIMUM, reason or _NOT_FOUND
        judged.append(Judged(claim, measured, verdict, reason))
    return judged


def compare(records: Sequence[Record], run: Run) -> list[Compared]:
    """Measures records again. A record that cannot be measured is missed.

    A record of a series whose optimum is not found is not measured.
    """
    compared = []
    for record in records:
        measured, reason, is_found = _measured(record.measure, run)
        if not is_found:
            measured, reason = None, _NOT_FOUND
        met = (
            measured is not None
            and abs(measured.value - record.value) <= record.tolerance
        )
        compared.append(Compared(record, measured, met, reason))
    return compared


def _measured(measure: Measure, run: Run) -> tuple[Estimate | None, str, bool]:
    """The number, or why there is none, and whether all optima it reads are found."""
    estimated, reason, missing = None, "", []

    def watching(part):
        return measure(watched(part, lambda: missing.append(True)))

    form = getattr(measure, "form", "mean")
    try:
        estimated = estimate(Formed(watching, form), run)
    except Exception as error:  # a function of the config, on data it may not know
        reason = f"{type(error).__name__}: {error}"
    else:
        metric = getattr(measure, "metric", None)
        slack = run.slack(metric, relative=estimated.form in ("ratio", "amount"))
        if estimated.form == "amount" and not slack:  # of a search of differences
            slack = run.slack(metric, relative=False) / estimated.value
        estimated = estimated._replace(slack=slack)
    return estimated, reason, not missing


def _verdict(claim: Published, measured: Estimate | None) -> str:
    """The verdict by the interval; one seed, or a number that is nan, has none."""
    if measured is None:
        return UNDECIDED
    inside = measured.side(claim.at_least, claim.at_most) == 1
    if inside and not claim.bound_is_ours:
        return DEMONSTRATION if claim.demonstration else REPRODUCED
    side = measured.side(*claim.direction)
    if side == 1:
        return DEMONSTRATION if claim.demonstration else SAME_DIRECTION
    return NOT_REPRODUCED if side == -1 else UNDECIDED


def digest(published: Sequence[Published]) -> str:
    """A digest of statements and their bounds, without `tried` and `chosen`."""
    stated = [
        [
            claim.text,
            claim.source,
            claim.said,
            claim.setting,
            claim.at_least,
            claim.at_most,
            *([] if claim.no_effect is None else [claim.no_effect]),
        ]
        for claim in published
    ]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:16]


def number_text(value: float) -> str:
    """A number as a page shows it."""
    return "no value" if math.isnan(value) else f"{value:.4g}"
