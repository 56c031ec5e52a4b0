"""Draws the figures of a run again, what a trace holds, or the site's first picture.

python -m experiments.figures --workdir=runs/default
python -m experiments.figures --trace=trace.csv --out=figures
python -m experiments.figures --hero=runs/edge,runs/char_lm --out=docs/how_late.png
"""

from pathlib import Path

import numpy as np
from absl import app, flags

import delayjax as dj
from experiments import figures
from experiments.figures import gantt, hero, look, staleness

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "A run, all of whose figures are drawn again."
)
_TRACE = flags.DEFINE_string(
    "trace", None, "A trace, .csv or .npz, whose staleness and workers are drawn."
)
_HERO = flags.DEFINE_list(
    "hero", None, "Runs of stability_edge and char_lm, to draw together."
)
_OUT = flags.DEFINE_string(
    "out", None, "The folder for the figures of --trace, or the picture of --hero."
)


def main(argv: list[str]) -> None:
    """Draws what the flags ask for."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown argument {argv[1]!r}.")
    wanted = [flag.value is not None for flag in (_WORKDIR, _TRACE, _HERO)]
    if sum(wanted) != 1:
        raise app.UsageError(
            "give either --workdir=DIR, --trace=FILE or --hero=EDGE_DIR,LANGUAGE_DIR."
        )
    try:
        if _HERO.value is not None:
            if len(_HERO.value) != 2 or not _OUT.value:
                raise ValueError("--hero needs two folders and --out=FILE.png.")
            print(look.save(hero.draw(*_HERO.value), _OUT.value))
        elif _TRACE.value is not None:
            if not _OUT.value:
                raise ValueError("--trace needs --out=DIR.")
            _draw_trace(Path(_TRACE.value), Path(_OUT.value))
        else:
            for sentence in figures.warnings(_WORKDIR.value):
                print(f"warning: {sentence}")
            for path in figures.draw(_WORKDIR.value):
                print(path)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


def _draw_trace(path: Path, out: Path) -> None:
    trace = dj.cluster.load_trace(path)
    print(_describe(trace))
    pictures = {"staleness": staleness}
    if not np.isnan(trace.seconds).any():  # as in a log of ages
        pictures["gantt"] = gantt
    for name, module in pictures.items():
        print(look.save(module.draw({path.stem: trace}), out / f"{name}.png"))


def _describe(trace: dj.cluster.Trace) -> str:
    summary = trace.summary()
    share = max(summary.idle_share, 0.0)
    idle = "unknown" if np.isnan(summary.idle_share) else f"{share:.1%}"
    seconds = trace.seconds[-1] if trace.num_updates else 0.0
    took = f"in {seconds:,.6g} s, {summary.updates_per_second:.4g} a second"
    if np.isnan(seconds):
        took = "at times that the log does not say"
    means = summary.per_worker[summary.gradients > 0]
    lines = {
        "workers": f"{trace.num_workers}, idle {idle} of the time",
        "updates": f"{trace.num_updates:,} {took}",
        "gradients": f"{len(trace.worker):,} applied, at most {trace.max_gradients} in"
        f" an update, {summary.dropped:,} dropped",
        "staleness": f"mean {summary.mean:.4g}, median {summary.p50:g}, 99 % up to"
        f" {summary.p99:g}, at most {summary.max} updates",
    }
    if len(means):
        lines["of a worker"] = (
            f"mean {means.min():.4g} to {means.max():.4g}, from"
            f" {summary.gradients.min():,} to {summary.gradients.max():,} gradients"
        )
    return "\n".join(f"{name:<12} {value}" for name, value in lines.items())


if __name__ == "__main__":
    app.run(main)
