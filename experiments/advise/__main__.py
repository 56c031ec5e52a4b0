"""Advice on a cluster, from the recorded times of its tasks.

    python -m experiments.advise times.csv
    python -m experiments.advise trace.parquet --columns=worker=dp_rank,step=step \
        --operations=forward-compute,backward-compute --step_seconds=46.6

It prints a table of protocols, and writes a page with three pictures. The columns of a
.csv are worker, step and seconds, and perhaps start; `cluster.load_recorded` says more.
"""

from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

import delayjax as dj
from experiments.advise import page, pictures

_OUT = flags.DEFINE_string("out", "advice.html", "The page.")
_COLUMNS = flags.DEFINE_list("columns", [], "Names in the file: worker=rank, ...")
_OPERATIONS = flags.DEFINE_list("operations", [], "Of a .parquet: what is compute.")
_RESAMPLE = flags.DEFINE_string(
    "resample", "steps", "wrap (the recorded order), steps, block, or a block length."
)
_WORKERS = flags.DEFINE_integer("workers", 0, "How many; 0 is as many as recorded.")
_STEP_SECONDS = flags.DEFINE_float("step_seconds", 0.0, "Of a whole step, if known.")
_NOISE = flags.DEFINE_float("noise", 1.0, "Of one worker's gradient; see advise.")
_TARGET = flags.DEFINE_float("target", 0.01, "Of the first loss.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "How often each protocol is simulated.")


def main(argv: list[str]) -> None:
    """Reads, simulates, prints, and writes the page."""
    if len(argv) != 2:
        raise app.UsageError(f"give one file of times, got {argv[1:]}.")
    out = Path(_OUT.value)
    if not out.parent.is_dir():
        raise app.UsageError(f"--out={out}: there is no folder {out.parent}.")
    try:
        recorded = _recorded(Path(argv[1]))
        first = _unexplained(recorded)
        service = recorded.service(_resample(_RESAMPLE.value))
        cluster = dj.cluster.Cluster(_WORKERS.value or recorded.workers, service)
        advice = dj.cluster.advise(
            cluster, noise=_NOISE.value, target=_TARGET.value, seeds=_SEEDS.value
        )
    except (ValueError, TypeError, OSError) as error:
        raise app.UsageError(str(error)) from error
    facts = [first, *_assumed(recorded, cluster.workers)]
    print("\n".join([first, "", str(advice), *facts[1:]]))
    found = page.write(out, argv[1], advice, facts, _pictures(recorded, advice))
    print(f"the page: {found}")


def _recorded(path: Path) -> dj.cluster.Recorded:
    pairs = [text.partition("=") for text in _COLUMNS.value]
    wrong = [name + sign + own for name, sign, own in pairs if not (name and own)]
    if wrong:
        raise ValueError(f"--columns must be as worker=rank, got {wrong[0]!r}.")
    columns = {name: own for name, _, own in pairs}
    operations = _OPERATIONS.value or None
    return dj.cluster.load_recorded(path, columns=columns, operations=operations)


def _resample(text: str) -> Any:
    """A name, or a number of steps."""
    return int(text) if text.isdigit() else text


def _unexplained(recorded: dj.cluster.Recorded) -> str:
    """What of a step the recorded times do not explain."""
    if not _STEP_SECONDS.value:
        return (
            "What a step does beside these tasks (communication, input) is not known:"
            " give --step_seconds."
        )
    share = recorded.unexplained(_STEP_SECONDS.value)
    return (
        f"{share:.0%} of a step of {_STEP_SECONDS.value:g} s is not these tasks, but"
        " communication, input or waiting: no protocol below changes it."
    )


def _assumed(recorded: dj.cluster.Recorded, workers: int) -> list[str]:
    """What the simulated cluster has of the recorded one."""
    recorded_steps = recorded.seconds.shape[1]
    found = [
        f"{recorded.workers} workers and {recorded_steps} steps were recorded, with a"
        f" mean of {recorded.seconds.mean():.4g} s; --resample={_RESAMPLE.value}, all"
        " workers together."
    ]
    if workers != recorded.workers:
        found.append(
            f"Worker w of the {workers} takes the times of recorded worker w modulo"
            f" {recorded.workers}."
        )
    return found


def _pictures(recorded: dj.cluster.Recorded, advice: dj.cluster.Advice) -> dict:
    choices = list(advice.choices)
    return {
        "Who waits for whom": pictures.waiting(np.asarray(recorded.seconds)),
        "Staleness": pictures.staleness(choices),
        "Time against staleness": pictures.time_against_staleness(choices),
    }


if __name__ == "__main__":
    app.run(main)
