"""Searches the rows of a study, and adds them to its table.

    python -m experiments.comparison --study=digits --out=digits.csv
    python -m experiments.comparison --study=digits --size=full --shard=1/4 --out=1.csv
    python -m experiments.comparison --cures=my_module:rule --out=mine.csv

It goes on where it was interrupted. A shard uses one core. `--cures` names a `Cure`, or
a list of some, of a module that Python finds. With `--size=full` they are compared with
the stored rows of plain delay, and the verdicts are printed.
"""

import importlib
import os
from pathlib import Path

# one core a process: the models are small, and shards run side by side
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from absl import app, flags

from experiments.comparison import cures, studies, verdicts
from experiments.comparison.cures import AGAIN, BASELINE
from experiments.comparison.study import Cell, Stored, Study, complete, stored_parts

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
    shard = _shard(_SHARD.value)
    stored = Stored(Path(_OUT.value), f"{_STUDY.value}, {_SIZE.value}")
    try:
        study = studies.STUDIES[_STUDY.value](_SIZE.value, rows)
        study = study.of_optimizers_with_rules()
        stored.read()
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    if _CURES.value is not None and not stored.path.exists():
        for row in _known(_STUDY.value, _SIZE.value, study):
            stored.add(row)
    table = complete(study, stored, shard=shard)
    if _CURES.value is not None:
        losses = verdicts.Losses(table, in_logarithm=study.in_logarithm)
        print(verdicts.verdicts(losses).to_string(float_format="{:.3f}".format))


def _known(name: str, size: str, study: Study) -> list[dict]:
    """The rows of plain delay that are stored, if the study is searched as they are."""
    parts = stored_parts(name) if size == "full" else []
    rows = [row for part in parts for row in part.read().to_dict("records")]
    wanted = {
        cell for cell in study.cells() if cell.rule in (BASELINE.name, AGAIN.name)
    }
    found = {Cell(*(row[field] for field in Cell._fields)): row for row in rows}
    return [row for cell, row in found.items() if cell in wanted]


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
