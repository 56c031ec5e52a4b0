"""Searches the rows of a study, and adds them to its table.

    python -m experiments.comparison --study=digits --out=digits.csv
    python -m experiments.comparison --study=digits --size=full --shard=1/4 --out=1.csv
    python -m experiments.comparison --cures=my_module:rule --out=mine.csv

It goes on where it was interrupted. A shard uses one core. `--cures` names a `Cure`, or
a list of some, of a module in the folder or in PYTHONPATH. With `--size=full` they are
compared with the stored rows of plain delay, in four searches each; other sizes search
plain delay too. What came out is printed, a sentence for each rule and optimizer.
"""

import logging
import os
import sys
from pathlib import Path

# one core a process: the models are small, and shards run side by side
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from absl import app, flags

from experiments.comparison import cures, given, studies, verdicts
from experiments.comparison.cures import AGAIN, BASELINE
from experiments.comparison.study import Cell, Stored, Study, complete, stored_parts

_STUDY = flags.DEFINE_enum("study", "digits", list(studies.STUDIES), "Which one.")
_SIZE = flags.DEFINE_enum("size", "small", studies.SIZES, "How much is searched.")
_SHARD = flags.DEFINE_string("shard", "1/1", "Which part of how many.")
_OUT = flags.DEFINE_string("out", None, "The table, a CSV file.")
_CURES = flags.DEFINE_string("cures", None, "Rules of your own: module:name.")


def main(argv: list[str]) -> None:
    """Searches what the table lacks."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # it logs each missing backend
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown arguments: {' '.join(argv[1:])}.")
        if not _OUT.value:
            raise ValueError("--out must name the table: for example --out=mine.csv.")
        stored = Stored(Path(_OUT.value), f"{_STUDY.value}, {_SIZE.value}")
        with stored.locked():
            _search(stored)
    except ValueError as error:
        sys.exit(f"error: {error}")


def _search(stored: Stored) -> None:
    own = None if _CURES.value is None else given.named(_CURES.value)
    rows, shard = cures.CURES if own is None else own, _shard(_SHARD.value)
    study = studies.STUDIES[_STUDY.value](_SIZE.value, rows)
    study = study.of_optimizers_with_rules()
    table = stored.read()
    if own is None:
        complete(study, stored, shard=shard)
        return
    study = given.in_few_searches(study)
    given.check(study, table)
    if not stored.path.exists():
        for row in _known(_STUDY.value, _SIZE.value, study):
            stored.add(row)
    table = complete(study, stored, shard=shard)
    losses = verdicts.Losses(table, in_logarithm=study.in_logarithm)
    print(*given.said(verdicts.verdicts(losses), [each.name for each in own]), sep="\n")


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
        raise ValueError(f"--shard must be as 1/4, got {text!r}.")
    return int(number), int(count)


if __name__ == "__main__":
    app.run(main)
