"""What `advise` found: a row for each protocol, a verdict, and a table as text."""

import math
from typing import NamedTuple

_WORTH = 1.1  # a gain of less is not worth late gradients


class Mean(NamedTuple):
    """A mean over the seeds, and its 95 % t interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


class Choice(NamedTuple):
    """A protocol on a cluster, in a few numbers."""

    protocol: str
    seconds_per_update: Mean
    seconds_per_gradient: Mean
    idle_share: Mean  # of the workers' time
    mean_staleness: Mean  # updates
    max_staleness: int  # updates
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
        """One sentence: change the protocol, or stay with the first."""
        first, best = self.choices[0], self.best
        if not math.isfinite(best.seconds_to_target.mean):
            return "No protocol reaches the target: take a higher target."
        if best is first or not best.gain.low > _WORTH:
            return (
                f"Stay with {first.protocol}: no other protocol is surely more than"
                f" {_WORTH - 1:.0%} faster; the best, {best.protocol}, takes"
                f" 1/{best.gain} of the time."
            )
        late = f"{best.mean_staleness.mean:.1f} updates late on average"
        fresh = "without late gradients"
        return (
            f"{best.protocol} reaches the target {best.gain} times as fast as"
            f" {first.protocol}, {late if best.max_staleness else fresh}."
        )

    def __str__(self) -> str:
        head = ("protocol", "s/update", "s/gradient", "idle", "staleness", "largest")
        head += ("step limit", "s to target", "gain")
        rows: list[tuple[str, ...]] = [head]
        for own in self.choices:
            row = (
                own.protocol,
                f"{own.seconds_per_update.mean:.3g}",
                f"{own.seconds_per_gradient.mean:.3g}",
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
