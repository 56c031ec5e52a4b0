"""Searches the rows of a study, and adds them to its table.

    python -m experiments.comparison --study=digits --out=digits.csv
    python -m experiments.comparison --study=digits --size=full --shard=1/4 --out=1.csv
    python -m experiments.comparison --cures=my_module:rule --out=mine.csv

It goes on where it was interrupted. A shard uses one core. `--cures` names a `Cure`, or
a list of some: they are compared with plain delay of the stored table.
"""

import importlib
import os
import time
from pathlib import Path

# one core a process: the models are small, and shards run side by side
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from absl import app, flags

from experiments.comparison import cures, studies
from experiments.comparison.study import Stored, part

_STUDY = flags.DEFINE_enum("study", "digits", list(studies.STUDIES), "Which one.")
_SIZE = flags.DEFINE_enum("size", "small", studies.SIZES, "How much is searched.")
_SHARD = flags.DEFINE_string("shard", "1/1", "Which part of how many.")
_OUT = flags.DEFINE_string("out", None, "The table, a CSV file.", required=True)
_CURES = flags.DEFINE_string("cures", None, "Rules of your own: module:name.")


def main(argv: list[str]) -> None:
    """Searches what the table lacks."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    rows = cures.CURES if _CURES.value is None else _named(_CURES.value)
    study = studies.STUDIES[_STUDY.value](_SIZE.value, rows)
    shard, shards = _shard(_SHARD.value)
    stored = Stored(Path(_OUT.value))
    done = stored.done()
    cells = [own for own in part(study.cells(), shard, shards) if own not in done]
    begin = time.monotonic()
    for i, cell in enumerate(cells, 1):
        plain = cell._replace(rule=cures.BASELINE.name)
        row = study.run(cell, done.get(plain) if cell != plain else None)
        stored.add(row)
        done[cell] = stored.done()[cell] if cell == plain else {}
        spent = time.monotonic() - begin
        left = spent / i * (len(cells) - i)
        print(
            f"{i}/{len(cells)} {cell.optimizer} {cell.rule}, {cell.cluster}, search"
            f" {cell.search}: {row['confirmed']:.4f} at {row['numbers']};"
            f" {left / 60:.0f} min left",
            flush=True,
        )


def _shard(text: str) -> tuple[int, int]:
    """The shard and how many there are: "2/4" is (2, 4)."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise app.UsageError(f"--shard must be as 1/4, got {text!r}.")
    return int(number), int(count)


def _named(text: str) -> list[cures.Cure]:
    """The cures that "module:name" names."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise app.UsageError(f"--cures must be module:name, got {text!r}.")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise app.UsageError(f"--cures={text}: {error}") from error
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    for own in found:
        if not isinstance(own, cures.Cure):
            raise app.UsageError(f"--cures={text} must be a Cure, got {own!r}.")
    return found


if __name__ == "__main__":
    app.run(main)
