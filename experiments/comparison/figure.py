"""The figure of a study: what each rule gains over plain delay, in nats."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.comparison.cures import KINDS, Cure
from experiments.figures import palette, sheets

_SEEN = palette.Style(palette.COLORS[0], "o", "-")
_WORSE = palette.Style(palette.COLORS[1], "v", "-")
_UNSEEN = palette.Style("0.55", "s", "-")
_BAND = "#EADFC8"
NAMES = {"sgd": "SGD", "adam": "Adam", "muon": "Muon"}


@sheets.STYLED
def draw(
    table: pd.DataFrame, cures: Mapping[str, Cure], costs: Mapping[str, float]
) -> Figure:
    """Draws a table of verdicts: a panel an optimizer, a row a rule, by kind.

    Args:
        table: of `verdicts.verdicts`.
        cures: the rules by name.
        costs: {optimizer: nats that lateness costs plain delay}.
    """
    rows = _rows(table, cures)
    panels = {
        name: f"{NAMES.get(name, name)}\nlateness: {cost:.2f}"
        for name, cost in costs.items()
    }
    figure, axes = sheets.sheet(
        "What does a rule gain over plain delay,\nstep and momentum tuned?",
        panels.values(),
        _handles(),
        height=1.0 + 0.2 * len(rows),
        columns=len(panels),
    )
    for axis, optimizer in zip(axes, panels, strict=True):
        own = table[table["optimizer"] == optimizer]
        band = own["band"].max()
        axis.axvspan(-band, band, color=_BAND, zorder=0)
        axis.axvline(0.0, color="0.3", lw=0.8, zorder=1)
        ends = own[["low", "high"]]
        most = min(max(1.05 * own["gain"].max(), 3 * band), 2 * costs[optimizer])
        least = max(-most, min(1.1 * ends["low"].min(), -1.5 * band))
        for row in own.to_dict("records"):
            _plot(axis, row, rows.index(row["rule"]), least)
        longest = ends["high"].clip(upper=2 * most).max()
        axis.set_xlim(least, max(most, 1.05 * longest))
        axis.tick_params(axis="y", length=0)
    names = [name if name in cures else name.upper() for name in rows]
    axes[0].set_yticks(range(len(rows)), names)
    for label, name in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_fontsize(9)
        if name not in cures:
            label.set_fontweight("bold")
            label.set_fontsize(8)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    axes[len(panels) // 2].set_xlabel("gain over plain delay, nats (mean of clusters)")
    return figure


def _rows(table: pd.DataFrame, cures: Mapping[str, Cure]) -> list[str]:
    """The names of kinds, each above its rules, the best first."""
    mean = table.groupby("rule")["gain"].max().sort_values(ascending=False)
    rows = []
    for kind in KINDS:
        own = [name for name in mean.index if cures[name].kind == kind]
        rows += [kind, *own] if own else []
    return rows


def _plot(axis: Axes, row: Mapping[str, float], at: int, least: float) -> None:
    style = _UNSEEN
    if row["seen"]:
        style = _SEEN if row["gain"] > 0 else _WORSE
    if row["gain"] < least:
        axis.plot(least, at, marker="<", color=style.color, clip_on=False)
        return
    ends = [max(row["low"], least), row["high"]]
    axis.plot(ends, [at, at], color=style.color, alpha=0.4, lw=4, solid_capstyle="butt")
    axis.plot(row["gain"], at, marker=style.marker, color=style.color, zorder=3)
    if pd.notna(row["over_twin"]):
        twin = row["gain"] - row["over_twin"]
        axis.plot(twin, at, marker="|", color="black", ms=9, mew=1.6, zorder=4)


def _handles() -> list:
    kinds = {
        "gains": _SEEN,
        "loses": _WORSE,
        "cannot be told from plain": _UNSEEN,
    }
    return [
        *palette.handles(kinds, lines=False),
        Line2D(
            [],
            [],
            color="black",
            marker="|",
            ms=9,
            ls="",
            label="told the mean staleness",
        ),
        Patch(color=_BAND, label="plain against plain"),
    ]
