"""What `advise` found: a row for each protocol, a verdict, and a table as text."""

import math
from typing import NamedTuple

import numpy as np

_WORTH = 1.1  # late gradients must be so many times as fast


def digits(value: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{value:.0f}" if 1000 <= value < math.inf else f"{value:.3g}"


class Mean(NamedTuple):
    """A mean over the seeds, and its 95 % t interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        mean, low, high = map(digits, self)
        return f"{mean} ({low} to {high})"


class Choice(NamedTuple):
    """A protocol on a cluster, in a few numbers."""

    protocol: str
    seconds_per_update: Mean
    seconds_per_gradient: Mean
    idle_share: Mean  # of the workers' time
    idle_by_worker: np.ndarray  # the same for each worker, float64 [P]
    mean_staleness: Mean  # updates
    max_staleness: int  # updates
    staleness: np.ndarray  # probabilities of 0, 1, ... updates, float64
    step_limit: Mean  # the largest stable step over the synchronous one
    seconds_to_target: Mean  # at the best constant step; inf beyond 64,000 updates
    gain: Mean  # seconds to the target of the first protocol over this one's


class Advice(NamedTuple):
    """What `advise` found. `str(advice)` is a table, the verdict first.

    Attributes:
        choices: a row for each protocol; the first is what the others are compared
            with.
        assumptions: sentences.
    """

    choices: tuple[Choice, ...]
    assumptions: tuple[str, ...]

    @property
    def best(self) -> Choice:
        """The protocol with the shortest mean time to the target."""
        return min(self.choices, key=lambda own: own.seconds_to_target.mean)

    @property
    def verdict(self) -> str:
        """Two sentences: whether late gradients pay, and with which protocol."""
        best = self.best
        if not math.isfinite(best.seconds_to_target.mean):
            return "No protocol reaches the target: take a higher target."
        found = f"{best.protocol} reaches the target in {best.seconds_to_target} s"
        if best is not self.choices[0]:
            found += f", {best.gain} times as fast as {self.choices[0].protocol}"
        fresh = [own for own in self.choices if not own.max_staleness]
        if not best.max_staleness:
            return f"Stay synchronous: {found}."
        if not fresh:
            return f"{found}. No protocol without late gradients was tried."
        calm = min(fresh, key=lambda own: own.seconds_to_target.mean)
        pays = calm.seconds_to_target.low > _WORTH * best.seconds_to_target.high
        other = f"{calm.protocol} takes {calm.seconds_to_target} s"
        if pays:
            return f"Late gradients pay: {found}. Without late gradients {other}."
        return (
            f"Stay synchronous: {other}. Late gradients are not surely more than"
            f" {_WORTH - 1:.0%} faster: {found}."
        )

    def __str__(self) -> str:
        head = ("protocol", "s/update", "s/gradient", "idle", "staleness", "largest")
        head += ("step limit", "s to target", "gain")
        rows: list[tuple[str, ...]] = [head]
        for own in self.choices:
            row = (
                own.protocol,
                digits(own.seconds_per_update.mean),
                digits(own.seconds_per_gradient.mean),
                f"{max(own.idle_share.mean, 0):.0%}",
                f"{own.mean_staleness.mean:.3g}",
                str(own.max_staleness),
                f"{own.step_limit.mean:.3g}",
                str(own.seconds_to_target),
                str(own.gain),
            )
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([self.verdict, "", *lines, "", *self.assumptions])
