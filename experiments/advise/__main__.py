"""Advice on a cluster, from the recorded times of its tasks.

    python -m experiments.advise times.csv
    python -m experiments.advise trace.parquet --columns=worker=dp_rank,step=step \
        --operations=forward-compute,backward-compute --step_seconds=46.6

It prints a table of protocols, and writes a page with three pictures. The columns of a
.csv are worker, step and seconds, and perhaps start; `cluster.load_recorded` says more.
"""

import sys
from pathlib import Path
from typing import Any

from absl import app, flags

import delayjax as dj
from experiments.advise import facts, page, pictures

_OUT = flags.DEFINE_string("out", "advice.html", "The page.")
_COLUMNS = flags.DEFINE_list(
    "columns", [], "Names in the file: worker=rank, ...; start=None leaves it out."
)
_OPERATIONS = flags.DEFINE_list("operations", [], "Of a .parquet: what is compute.")
_START_SECONDS = flags.DEFINE_string(
    "start_seconds", "", "Subtracted from `start`: a clock's time, or first."
)
_RESAMPLE = flags.DEFINE_string(
    "resample",
    "steps",
    "steps (each drawn at random), block (if all steps were recorded: slow phases last"
    " as long), a block length, or wrap (the recorded order).",
)
_WORKERS = flags.DEFINE_integer("workers", 0, "How many; 0 is as many as recorded.")
_STEP_SECONDS = flags.DEFINE_float("step_seconds", 0.0, "Of a whole step, if known.")
_NOISE = flags.DEFINE_list(
    "noise",
    ["0.1", "1", "10"],
    "The variance of one worker's gradient over the squared length of the mean"
    " gradient. Several values show whether it decides; large ones take longest.",
)
_TARGET = flags.DEFINE_float("target", 0.01, "Of the first loss.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "How often each protocol is simulated.")


def main(argv: list[str]) -> None:
    """Reads, simulates, prints, and writes the page."""
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
    recorded, step = _recorded(log), _STEP_SECONDS.value
    service = recorded.service(_resample(_RESAMPLE.value))
    cluster = dj.cluster.Cluster(_WORKERS.value or recorded.workers, service)
    first = [facts.unexplained(recorded, step), *facts.slow_worker(recorded)]
    rest = recorded.unexplained(step) if step else 0.0
    verdicts, advices = {}, {}
    print("\n".join(first))
    for noise in noises:
        advices[noise] = advice = dj.cluster.advise(
            cluster, noise=noise, target=_TARGET.value, seeds=_SEEDS.value
        )
        said = " ".join([advice.verdict, *facts.whole_run(advice, rest)])
        verdicts[f"Noise {noise:g}"] = said
        print(f"\nNoise {noise:g}: {said}\n\n{advice.table()}", flush=True)
    last = facts.decides(advices)
    assumed = [own for advice in advices.values() for own in advice.assumptions]
    assumed += facts.simulated(recorded, cluster.workers, _RESAMPLE.value)
    assumed = list(dict.fromkeys(assumed))  # most are the same for each noise
    print("\n".join(["", *last, *assumed]))
    drawn = {
        "Who waits for whom": pictures.waiting(recorded.seconds),
        "Staleness": pictures.staleness(advices[noises[0]].choices),
        "Time against staleness": pictures.time_against_staleness(advices),
    }
    page.write(out, log.name, verdicts, [*last, *first], advices, drawn, assumed)
    print(f"the page: {out}")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--{name} must be a number, got {text!r}.") from None


def _recorded(path: Path) -> dj.cluster.Recorded:
    pairs = [text.partition("=") for text in _COLUMNS.value]
    wrong = [name + sign + own for name, sign, own in pairs if not (name and own)]
    if wrong:
        raise ValueError(f"--columns must be as worker=rank, got {wrong[0]!r}.")
    columns = {name: None if own == "None" else own for name, _, own in pairs}
    start: Any = _START_SECONDS.value or None
    if start not in (None, "first"):
        start = _number("start_seconds", start)
    operations = _OPERATIONS.value or None
    return dj.cluster.load_recorded(
        path, columns=columns, operations=operations, start_seconds=start
    )


def _resample(text: str) -> Any:
    """A name, or a number of steps."""
    return int(text) if text.isdigit() else text


if __name__ == "__main__":
    app.run(main)
