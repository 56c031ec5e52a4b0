"""What share of a cost each of many rules wins back."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from experiments.figures import palette, sheets
from experiments.results.runs import Run

_BAND = "0.955"  # the color behind every other row
_LEAST = -1.0  # below, a mark at the edge stands for a share
_KINDS = {
    "wins back a part": palette.Style(palette.COLORS[0], "o", "-"),
    "cannot be told from plain": palette.Style("0.55", "s", "-"),
    "loses more": palette.Style(palette.COLORS[1], "v", "-"),
}


@sheets.STYLED
def draw(run: Run, *, of, title, x_label) -> Figure:
    """Draws `figures.shares`."""
    table = of(run)
    panels = list(dict.fromkeys(table["optimizer"]))
    order = table.groupby("rule")["won_back"].mean().sort_values(ascending=False)
    rules = list(order.index)
    figure, axes = sheets.sheet(
        title,
        panels,
        palette.handles(_KINDS, lines=False),
        height=0.8 + 0.21 * len(rules),
        columns=len(panels),
    )
    lowest = max(_LEAST, min(table["won_back_low"].min(), 0.0))
    for axis, panel in zip(axes, panels, strict=True):
        for i in range(1, len(rules), 2):
            axis.axhspan(i - 0.5, i + 0.5, color=_BAND, zorder=0)
        axis.axvline(0.0, color="0.3", lw=0.8, zorder=1)
        for row in table[table["optimizer"] == panel].to_dict("records"):
            _plot(axis, row, rules.index(row["rule"]))
        axis.set_xlim(lowest - 0.12, 1.06)
        axis.xaxis.set_major_locator(FixedLocator([-1.0, 0.0, 1.0]))
        axis.xaxis.set_minor_locator(FixedLocator([-0.5, 0.5]))
        axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axis.tick_params(axis="y", length=0)
    axes[len(panels) // 2].set_xlabel(x_label)
    axes[0].set_yticks(range(len(rules)), rules)
    axes[0].set_ylim(len(rules) - 0.5, -0.5)
    return figure


def _plot(axis: Any, row: dict[str, Any], at: int) -> None:
    low, high = row["won_back_low"], row["won_back_high"]
    kinds = list(_KINDS.values())
    style = kinds[0] if low > 0 else kinds[2] if high < 0 else kinds[1]
    if not np.isfinite(row["won_back"]) or row["won_back"] < _LEAST:
        axis.plot(_LEAST, at, marker="<", color=style.color)
        return
    ends = [max(low, _LEAST), high]
    axis.plot(ends, [at, at], color=style.color, alpha=0.4, lw=4)
    axis.plot(row["won_back"], at, marker=style.marker, color=style.color, zorder=3)
