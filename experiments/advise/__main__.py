"""Advice on a cluster, from the recorded times of its tasks.

    python -m experiments.advise times.csv
    python -m experiments.advise trace.parquet --columns=worker=dp_rank,step=step \
        --operations=forward-compute,backward-compute --step_seconds=46.6

It prints tables of protocols, and writes a page with three pictures. A .csv has the
columns worker, step and seconds. A column start is optional; without it every worker
must have every step. Other columns are ignored: see `cluster.load_recorded`.
`Recorded.cluster` decides from the times whether slowness lasts with the clock or with
one task. If the log does not show it, give --lasts or --resample.
"""

import dataclasses
import math
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

import delayjax as dj
from experiments import page
from experiments.advise import facts, pictures
from experiments.figures import sheets
from experiments.page import Picture

_OUT = flags.DEFINE_string("out", "advice.html", "The page to write.")
_COLUMNS = flags.DEFINE_list(
    "columns",
    [],
    "Names in the file: worker=rank, ...; start= leaves the starts of tasks out.",
)
_OPERATIONS = flags.DEFINE_list("operations", [], "The operations that compute.")
_START_SECONDS = flags.DEFINE_string(
    "start_seconds",
    "",
    "The seconds to subtract from starts: a number, or first for the first start.",
)
_SORT = flags.DEFINE_boolean("sort", False, "Whether to sort the rows by step.")
_LASTS = flags.DEFINE_enum(
    "lasts", None, ["clock", "task"], "With what slowness lasts, if you know it."
)
_RESAMPLE = flags.DEFINE_string(
    "resample",
    None,
    "How steps are drawn; by default the log decides: steps (each one at random), block"
    " (blocks, so that slow phases keep their length; needs all steps), a block length,"
    " or wrap (the recorded order).",
)
flags.mark_flags_as_mutual_exclusive(["lasts", "resample"])
_WORKERS = flags.DEFINE_integer(
    "workers", 0, "The number of workers; 0: all recorded workers.", lower_bound=0
)
_STEP_SECONDS = flags.DEFINE_float(
    "step_seconds",
    0.0,
    "The mean seconds of a whole step with communication and input; 0: not known.",
)
_MESSAGE_BYTES = flags.DEFINE_float(
    "message_bytes", 0.0, "The size of a message: a gradient or a model."
)
_BYTES_PER_SECOND = flags.DEFINE_float(
    "bytes_per_second", math.inf, "The rate of each worker's link."
)
_LATENCY_SECONDS = flags.DEFINE_float(
    "latency_seconds", 0.0, "The latency of a message, one way."
)
_NOISE = flags.DEFINE_list(
    "noise",
    ["0.1", "1", "10"],
    "The variance of one worker's gradient over the squared length of the mean"
    " gradient. Several values show whether it decides; large values take longest.",
)
_TARGET = flags.DEFINE_float("target", 0.01, "The share of the first loss to reach.")
_MOMENTUM = flags.DEFINE_float("momentum", 0.0, "Momentum of SGD, from 0 to below 1.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "The number of simulations of each protocol.")


def main(argv: list[str]) -> None:
    """Reads a log, simulates protocols, prints tables, and writes the page."""
    if len(argv) != 2:
        sys.exit(
            f"error: give one file of times, got {argv[1:]}: as in"
            " python -m experiments.advise times.csv."
        )
    try:
        _advise(Path(argv[1]), Path(_OUT.value))
    except FileNotFoundError as error:
        sys.exit(f"error: there is no file {error.filename}: give the path of the log.")
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


def _advise(log: Path, out: Path) -> None:
    if not out.parent.is_dir():
        raise ValueError(f"--out={out}: there is no folder {out.parent}: make it.")
    noises = [_number("noise", text) for text in _NOISE.value]
    if not noises:
        raise ValueError("--noise must hold a number, got none: leave the flag out.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            recorded = _recorded(log)
            recorded, rest = facts.whole_step(recorded, _STEP_SECONDS.value)
            recorded = _of_workers(recorded, _WORKERS.value)
            cluster = _with_link(_cluster(recorded))
            islands = facts.periods(cluster, recorded)
        except ValueError as error:  # what was warned of may be its cause
            raise ValueError(" ".join([str(error), *_texts(caught)])) from error
    first = [rest, *facts.slow_worker(recorded), *facts.doubts(recorded), *islands]
    first += _texts(caught)
    verdicts, advices = {}, {}
    for noise in noises:
        advices[noise] = advice = dj.cluster.advise(
            cluster,
            noise=noise,
            target=_TARGET.value,
            momentum=_MOMENTUM.value,
            seeds=_SEEDS.value,
        )
        if noise == noises[0]:
            print("\n".join(first))
        verdicts[f"Noise {noise:g}"] = advice.verdict
        print(f"\nNoise {noise:g}: {advice.verdict}\n\n{advice.table()}", flush=True)
    last = facts.decides(advices)
    choices = _RESAMPLE.value, _LASTS.value
    assumed = facts.simulated(recorded, cluster.workers, *choices)
    assumed += [text for advice in advices.values() for text in advice.assumptions]
    assumed = list(dict.fromkeys(assumed))  # most are the same for each noise
    print("\n".join(["", *last, *assumed]))
    drawn = {
        "Who waits for whom": pictures.waiting(recorded.seconds),
        "Staleness": pictures.staleness(advices[noises[0]].choices),
        "Speed against staleness": pictures.speed_against_staleness(advices),
    }
    shown = page.render(
        "advice.html",
        log=log.name,
        verdicts=verdicts,
        facts=[*last, *first],
        pictures=[
            Picture.of(text, sheets.svg(figure).encode(), ".svg")
            for text, figure in drawn.items()
        ],
        assumed=assumed,
        **facts.tables(advices),
    )
    out.write_text(shown, "utf-8")
    print(f"the page: {out}")


def _texts(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """The texts of warnings, each once."""
    return list(dict.fromkeys(str(warning.message) for warning in caught))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--{name} must be a number, got {text!r}.") from None


def _recorded(path: Path) -> dj.cluster.Recorded:
    pairs = [text.partition("=") for text in _COLUMNS.value]
    wrong = [
        name + sign + column
        for name, sign, column in pairs
        if not name or not (column or (name == "start" and sign))
    ]
    if wrong:
        raise ValueError(f"--columns must be as worker=rank, got {wrong[0]!r}.")
    columns = {name: column or None for name, _, column in pairs}
    start: Any = _START_SECONDS.value or None
    if start not in (None, "first"):
        start = _number("start_seconds", start)
    return dj.cluster.load_recorded(
        path,
        columns=columns,
        operations=_OPERATIONS.value or None,
        start_seconds=start,
        sort=_SORT.value,
    )


def _of_workers(recorded: dj.cluster.Recorded, count: int) -> dj.cluster.Recorded:
    """The first `count` workers, or all if it is 0, and the steps that they have."""
    seconds = recorded.seconds[: count or None]
    steps = ~np.isnan(seconds).all(axis=0)  # steps of at least one worker
    starts = recorded.starts
    if starts is not None:
        starts = starts[: len(seconds), steps]
    return dj.cluster.Recorded(seconds[:, steps], starts, recorded.steps[steps])


def _cluster(recorded: dj.cluster.Recorded) -> dj.cluster.Cluster:
    workers = _WORKERS.value or recorded.workers
    if _RESAMPLE.value:
        service = recorded.service(_resample(_RESAMPLE.value))
        return dj.cluster.Cluster(workers, service)
    try:
        return recorded.cluster(workers, lasts=_LASTS.value)
    except ValueError as error:
        raise ValueError(
            f'{error} Here cluster(lasts="clock") is --lasts=clock, and'
            ' service("block") is --resample=block.'
        ) from error


def _with_link(cluster: dj.cluster.Cluster) -> dj.cluster.Cluster:
    """The cluster with the link of the flags, if they give one."""
    if bool(_MESSAGE_BYTES.value) != math.isfinite(_BYTES_PER_SECOND.value):
        raise ValueError(
            "--message_bytes and --bytes_per_second must be given together, got"
            f" {_MESSAGE_BYTES.value:g} and {_BYTES_PER_SECOND.value:g}: the time of a"
            " message needs both."
        )
    link = dj.cluster.Communication(
        latency_seconds=_LATENCY_SECONDS.value,
        message_bytes=_MESSAGE_BYTES.value,
        bytes_per_second=_BYTES_PER_SECOND.value,
    )
    if link == dj.cluster.Communication():
        return cluster
    return dataclasses.replace(cluster, communication=link)


def _resample(text: str) -> Any:
    """The value of --resample: a name, or a number of steps."""
    return int(text) if text.isdigit() else text


def command_line() -> None:
    """Runs the command line."""
    app.run(main)


if __name__ == "__main__":
    command_line()
