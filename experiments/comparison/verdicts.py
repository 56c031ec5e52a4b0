"""What the tables of a study say: gains over plain delay, intervals and the band."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.comparison import cures
from experiments.comparison.clusters import NO_DELAY
from experiments.comparison.intervals import Interval, holm, two_way

PLAIN, AGAIN = cures.BASELINE.name, cures.AGAIN.name


class Losses:
    """The losses of a study's table, {(optimizer, rule, cluster): [searches, seeds]}.

    Args:
        table: as `stored.table` gives it; shards may repeat the rows of plain.
        in_logarithm: whether the logarithms of the losses are compared.
    """

    def __init__(self, table: pd.DataFrame, *, in_logarithm: bool = False):
        keys = ["optimizer", "rule", "cluster", "search"]
        table = table.drop_duplicates(keys).sort_values("search", kind="stable")
        reported = [name for name in table if str(name).startswith("loss_")]
        self.table = table
        values = np.log if in_logarithm else np.asarray
        self.of = {
            key: values(own[reported].to_numpy(float))
            for key, own in table.groupby(keys[:3], sort=False)
        }

    @property
    def optimizers(self) -> list[str]:
        """Those that have plain rows."""
        return list(dict.fromkeys(name for name, rule, _ in self.of if rule == PLAIN))

    def rules(self, optimizer: str) -> list[str]:
        """The rows of an optimizer but for plain delay."""
        names = (rule for name, rule, _ in self.of if name == optimizer)
        return [rule for rule in dict.fromkeys(names) if rule != PLAIN]

    def late(self, optimizer: str, rule: str) -> list[str]:
        """The clusters where a rule was trained with late gradients."""
        return [
            cluster
            for name, own, cluster in self.of
            if (name, own) == (optimizer, rule) and cluster != NO_DELAY
        ]

    def mean(self, optimizer: str, rule: str, clusters: Sequence[str]) -> np.ndarray:
        """Losses as means over clusters, [searches, seeds]."""
        each = [self.of[optimizer, rule, cluster] for cluster in clusters]
        least = min(map(len, each))
        return np.mean([own[:least] for own in each], axis=0)

    def gain(
        self,
        optimizer: str,
        rule: str,
        clusters: Sequence[str],
        *,
        over: str = PLAIN,
        part: slice = slice(None),
    ) -> Interval:
        """What a rule gains over another in nats, a mean over clusters.

        Search i of the one is paired with search i of the other, and each seed with
        itself.
        """
        own, other = (self.mean(optimizer, name, clusters) for name in (rule, over))
        least = min(len(own), len(other))
        return two_way((other[:least] - own[:least])[part])

    def band(self, optimizer: str, clusters: Sequence[str]) -> float:
        """The null band in nats: how far plain seems from plain.

        The farther end of the interval of 95 % between plain delay and plain delay in
        independent searches. A gain inside of it may be the luck of a search.
        """
        null = self.gain(optimizer, AGAIN, clusters)
        return max(abs(null.low), abs(null.high))

    def cost(self, optimizer: str, clusters: Sequence[str]) -> Interval:
        """What lateness costs plain delay in nats, both momenta and steps tuned."""
        late = self.mean(optimizer, PLAIN, clusters)
        none = self.mean(optimizer, PLAIN, [NO_DELAY])
        least = min(len(late), len(none))
        return two_way(late[:least] - none[:least])

    def reach(self, optimizer: str, clusters: Sequence[str]) -> float:
        """From plain delay to the least loss of a row without delay, in nats.

        What helps with late gradients may help without delay too. So a share counts
        from the best of all rows that were trained without delay.
        """
        none = [
            own.mean()
            for (name, _, cluster), own in self.of.items()
            if name == optimizer and cluster == NO_DELAY
        ]
        return float(self.mean(optimizer, PLAIN, clusters).mean() - min(none))


class Verdict(NamedTuple):
    """A row of the table of verdicts."""

    optimizer: str
    rule: str
    clusters: int  # over which it is a mean
    loss: float  # nats
    gain: float  # over plain, nats
    low: float  # of the gain's interval of 95 %
    high: float
    p_value: float  # of no gain, Holm's over all rows
    band: float  # nats
    share: float  # of the way from plain delay to the best row without delay
    without_delay: float  # gain where nothing is late, nats; nan: not trained there
    over_twin: float  # gain over the delay-blind twin, nats; nan: there is none
    over_twin_low: float
    over_twin_high: float
    edges: str  # of its ranges, where an optimum lay

    @property
    def is_seen(self) -> bool:
        """Whether a sentence may be about the gain: two bands long, not by chance."""
        return abs(self.gain) > 2 * self.band and self.p_value < 0.05


def verdicts(losses: Losses) -> pd.DataFrame:
    """A `Verdict` of each row, the largest gain of an optimizer first."""
    rows = []
    for optimizer in losses.optimizers:
        for rule in losses.rules(optimizer):
            if rule.endswith(cures.TWIN):
                continue
            clusters = losses.late(optimizer, rule)
            own = losses.gain(optimizer, rule, clusters)
            twin = _over_twin(losses, optimizer, rule, clusters)
            rows.append(
                Verdict(
                    optimizer=optimizer,
                    rule=rule,
                    clusters=len(clusters),
                    loss=float(losses.mean(optimizer, rule, clusters).mean()),
                    gain=own.mean,
                    low=own.low,
                    high=own.high,
                    p_value=own.p_value,
                    band=losses.band(optimizer, clusters),
                    share=own.mean / losses.reach(optimizer, clusters),
                    without_delay=_without_delay(losses, optimizer, rule),
                    over_twin=twin.mean,
                    over_twin_low=twin.low,
                    over_twin_high=twin.high,
                    edges=_edges(losses.table, optimizer, rule),
                )
            )
    adjusted = holm(np.array([row.p_value for row in rows]))
    rows = [row._replace(p_value=p) for row, p in zip(rows, adjusted, strict=True)]
    table = pd.DataFrame(rows)
    table["seen"] = [row.is_seen for row in rows]
    return table.sort_values(
        ["optimizer", "gain"],
        ascending=[True, False],
        ignore_index=True,
        key=lambda own: (
            own.map(losses.optimizers.index) if own.name == "optimizer" else own
        ),
    )


def _without_delay(losses: Losses, optimizer: str, rule: str) -> float:
    if (optimizer, rule, NO_DELAY) not in losses.of:
        return np.nan
    return losses.gain(optimizer, rule, [NO_DELAY]).mean


def _over_twin(
    losses: Losses, optimizer: str, rule: str, clusters: Sequence[str]
) -> Interval:
    """What a rule gains by knowing the delay."""
    twin = rule + cures.TWIN
    both = [own for own in clusters if (optimizer, twin, own) in losses.of]
    if not both:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    return losses.gain(optimizer, rule, both, over=twin)


def _edges(table: pd.DataFrame, optimizer: str, rule: str) -> str:
    """The ends of ranges where searches ended, with how many of them did."""
    own = table[(table["optimizer"] == optimizer) & (table["rule"] == rule)]
    found = own["edges"].str.split("; ").explode()
    found = found[(found != "") & ~found.str.endswith(" off")]
    counts = found.value_counts()
    return "; ".join(f"{name}: {count} of {len(own)}" for name, count in counts.items())


def agreement(losses: Losses) -> float:
    """Kendall's tau of the gains of two halves of the searches, over all optimizers.

    It counts pairs of rows that have one optimizer, the same clusters, and gains that
    differ by more than the band: the share of pairs that both halves put in the same
    order, less the share of the other pairs.
    """
    same = other = 0
    for optimizer in losses.optimizers:
        rules = losses.rules(optimizer)
        for i, first in enumerate(rules):
            for second in rules[:i]:
                clusters = losses.late(optimizer, first)
                if clusters != losses.late(optimizer, second):
                    continue
                whole = losses.gain(optimizer, first, clusters, over=second)
                if abs(whole.mean) <= losses.band(optimizer, clusters):
                    continue
                halves = [
                    losses.gain(optimizer, first, clusters, over=second, part=part)
                    for part in (slice(None, None, 2), slice(1, None, 2))
                ]
                agree = np.sign(halves[0].mean) == np.sign(halves[1].mean)
                same, other = same + agree, other + (not agree)
    return (same - other) / max(same + other, 1)
