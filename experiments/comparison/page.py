"""Keeps finished runs of the comparison as tables.

    python -m experiments.comparison.page runs/digits_short_sgd runs/digits_short_adam

Runs of one study and stage become one table, which replaces the one before.
"""

from collections.abc import Sequence

from absl import app

from experiments.comparison import tables
from experiments.results.runs import Run


def keep(folders: Sequence[str]) -> None:
    """Stores finished runs of `configs/rules.py`; each study and stage is one table."""
    of: dict[tuple[str, str], list[str]] = {}
    for folder in folders:
        config = Run.read(folder).info["config"]
        of.setdefault((config["study"], config["stage"]), []).append(folder)
    for (study, stage), those in of.items():
        run = Run.read(*those)
        versions = ", ".join(f"{name} {v}" for name, v in run.info["versions"].items())
        about = f"{study}, {stage}; {versions}, {run.info['started'][:10]}"
        tables.write(run, tables.file(study, stage), about)


def main(argv: list[str]) -> None:
    """Stores the runs."""
    keep(argv[1:])


if __name__ == "__main__":
    app.run(main)
