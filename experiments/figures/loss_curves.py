"""The training loss over a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures import look


@look.STYLED
def draw(metrics: Sequence[Mapping[str, Any]], unit: str = "nats") -> Figure:
    """The median training loss of the cells whose loss is finite, over the run.

    Args:
        metrics: the rows of metrics.jsonl.
        unit: of the loss.
    """
    programs: dict[str, list[Mapping[str, Any]]] = {}
    for row in metrics:
        programs.setdefault(row["program"], []).append(row)
    parts = [name.split("-") for name in programs]
    # the optimizer, and what else tells the programs apart
    told = [i for i, words in enumerate(zip(*parts, strict=True)) if len({*words}) > 1]
    handles = []
    for index, (words, own) in enumerate(zip(parts, programs.values(), strict=True)):
        style = look.style(index)
        names = [words[0], *(words[i] for i in told if i > 0)]
        handles.append(
            Line2D(
                [row["step"] for row in own],
                # a chunk in which no cell was live has no loss
                [math.nan if (y := row["train_loss"]) is None else y for row in own],
                color=style.color,
                linestyle=style.dashes,
                label=f"{', '.join(names)} ({own[-1]['not_finite']} cells not finite)",
            )
        )
    figure, (axis,) = look.sheet("How did training go?", [""], handles)
    for line in handles:
        axis.plot(*line.get_data(), color=line.get_color(), ls=line.get_linestyle())
    look.log_if_wide(axis, [y for line in handles for y in line.get_ydata()])
    ends = [max(line.get_xdata()) for line in handles]
    if max(ends) > 10 * min(ends):  # arms differ in how many updates they make
        axis.set_xscale("log")
        look.log_ticks(axis.xaxis, [x for line in handles for x in line.get_xdata()])
    axis.set_xlabel("step (updates)")
    axis.set_ylabel(f"{look.quantity('train_loss', unit)}\nmedian of live cells")
    return figure
