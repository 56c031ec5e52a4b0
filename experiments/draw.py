"""Draws the figures of runs, or of a trace.

python -m experiments.draw runs/default
python -m experiments.draw runs/a runs/b --x=delay --y=test_error
python -m experiments.draw --trace=trace.csv --out=figures
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import delayjax as dj
from experiments import figures, report, statements
from experiments.figures import sheets
from experiments.figures.drawing import ages, gantt
from experiments.results.runs import Run


def parser() -> argparse.ArgumentParser:
    """The parser of the flags."""
    flags = argparse.ArgumentParser(
        prog="python -m experiments.draw",
        description="Draws runs. Without --x: the figures and the report of each run,"
        " as its config says.",
    )
    add = flags.add_argument
    add("runs", nargs="*", metavar="RUN", help="folders of finished runs")
    add("--x", metavar="COLUMN", help="draw all runs together, over this column")
    add("--y", metavar="COLUMN", default="test_error", help="(default: test_error)")
    add("--format", default="svg", choices=("svg", "png", "pdf"))
    add("--out", metavar="PATH", help="the file to write, or its folder")
    add("--trace", metavar="FILE", help="draw a trace, .csv or .npz, into --out")
    return flags


def main(arguments: list[str]) -> None:
    """Draws what the arguments ask for.

    Raises:
        ValueError: if the arguments contradict each other, or a run cannot be drawn.
    """
    asked = parser().parse_args(arguments)
    if bool(asked.runs) == bool(asked.trace):
        raise ValueError("give folders of runs, or --trace=FILE.")
    if asked.trace:
        if not asked.out:
            raise ValueError("--trace needs --out=DIR.")
        _draw_trace(Path(asked.trace), Path(asked.out), asked.format)
    elif asked.x:
        _draw_together(asked)
    else:
        for folder in asked.runs:
            run = Run.read(folder)
            experiment, stated = statements.of_run(run.info)
            verdicts = stated.verdicts(run)
            print(report.write(run, experiment, verdicts, format=asked.format))


def _draw_together(asked: argparse.Namespace) -> None:
    figure = figures.over(asked.x, asked.y)
    out = Path(asked.out or ".")
    if out.suffix != f".{asked.format}":
        out = out / f"{figure.name}.{asked.format}"
    run = Run.read(*asked.runs)
    print(sheets.save(figure.draw(run), out, run.not_found()))


def _draw_trace(path: Path, out: Path, format: str) -> None:
    trace = dj.cluster.load_trace(path)
    counts = {"workers": trace.num_workers, "updates": trace.num_updates}
    for name, value in (counts | trace.summary()._asdict()).items():
        if not np.ndim(value):  # a number about the whole trace
            print(f"{name:<20}{value:.6g}")
    pictures = {"staleness": ages.of_traces, "gantt": gantt.of_traces}
    if np.isnan(trace.seconds).any():  # a log of ages has no times
        del pictures["gantt"]
    for name, draw in pictures.items():
        figure = sheets.STYLED(draw)({path.stem: trace})
        print(sheets.save(figure, out / f"{name}.{format}"))


def command_line() -> None:
    """Runs the command line."""
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    command_line()
