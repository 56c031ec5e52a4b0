"""The pictures of the page on pipelines: what each stage does when.

python -m docs.timetable docs/timetable.png
"""

import sys

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from delayjax import pipelines
from experiments.figures import palette, sheets

STAGES, MICROBATCHES, SHOWN = 4, 4, 36.0  # the last in forward times
ROWS = {
    "1F1B: a flush after each update": pipelines.one_f_one_b(STAGES, MICROBATCHES),
    "PipeDream: no flush, an update after each backward pass": pipelines.pipedream(
        STAGES
    ),
}


@sheets.STYLED
def draw() -> Figure:
    """A row for each schedule, with the delay of each stage."""
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    colors = palette.styles(["forward", "backward"])
    axes = figure.subplots(len(ROWS), 1, sharex=True)
    for axis, (title, schedule) in zip(axes, ROWS.items(), strict=True):
        _row(axis, schedule, {name: style.color for name, style in colors.items()})
        axis.set_title(title, loc="left")
    axes[-1].set_xlabel("time (forward passes of a stage)")
    figure.legend(
        handles=[Patch(color=style.color) for style in colors.values()],
        labels=["forward pass of a microbatch", "its backward pass"],
        loc="outside upper center",
        ncols=2,
    )
    return figure


def _row(axis: Axes, schedule: pipelines.Schedule, colors: dict[str, str]) -> None:
    count = schedule.microbatches
    table = pipelines.timetable(schedule, -(-24 // count))
    for stage, forward, microbatch, start, end in zip(
        *(table.stage, table.forward, table.microbatch, table.start, table.end),
        strict=True,
    ):
        if start >= SHOWN:
            continue
        end = min(end, SHOWN)
        color = colors["forward" if forward else "backward"]
        axis.barh(
            stage,
            end - start,
            left=start,
            height=0.84,
            color=color,
            edgecolor="white",
            linewidth=0.6,
        )
        if end - start > 0.9:
            axis.text(
                *((start + end) / 2, stage, str(microbatch)),
                ha="center",
                va="center",
                color="white",
                fontsize=7,
            )
    delays = [schedule.mean_delay(stage) for stage in range(STAGES)]
    axis.set_yticks(
        range(STAGES),
        [f"stage {s}, delay {delay:.0f}" for s, delay in enumerate(delays)],
    )
    axis.invert_yaxis()
    axis.set_xlim(0, SHOWN)
    axis.grid(False)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)


if __name__ == "__main__":
    draw().savefig(sys.argv[1], dpi=200)
