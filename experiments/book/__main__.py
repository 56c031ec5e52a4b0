"""Runs every config, and writes all results on one page.

    python -m experiments.book --workdir=runs/book
    python -m experiments.book --workdir=runs/book --only=softsync,k_async:pareto

Each config has its own folder in the work directory. The same command continues an
interrupted book. `--size=small` reports at most three seeds of each config and tunes on
one more; long configs also train for fewer updates. So it decides fewer statements.
With `--size=full` a config is run again with twice its seeds, and then with four times
as many, until its headline is decided among all headlines. `--jobs=2` runs two configs
side by side: most use little more than one core, so that two cores need about an hour
for the small size. The command writes book.html and book.csv into the work directory.
"""

import datetime
import logging
import sys
from pathlib import Path

from absl import app, flags

from experiments.book import entries, page, runs
from experiments.book.chapters import NOT_RUN, SYSTEMS
from experiments.host import disk, software

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "The folder to write to.", required=True
)
_ONLY = flags.DEFINE_list("only", [], "Names of configs, with their forms.")
_SIZE = flags.DEFINE_enum(
    "size", "small", ("small", "full"), "The number of seeds and updates."
)
_JOBS = flags.DEFINE_integer("jobs", 1, "Configs that run side by side.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Runs the configs that are not finished, then writes the page and its table."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # it logs each missing backend
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    unknown = [name for name in _ONLY.value if name not in SYSTEMS]
    if unknown:
        raise app.UsageError(
            f"--only={unknown[0]} is no config of the book: {', '.join(SYSTEMS)}."
        )
    workdir = Path(_WORKDIR.value)
    workdir.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in _ONLY.value or SYSTEMS if name not in NOT_RUN]
    failed = runs.look(wanted, workdir, small=_SIZE.value == "small", jobs=_JOBS.value)
    members = [entries.entry_of(name, workdir) for name in _ONLY.value or SYSTEMS]
    path = workdir / "book.html"
    made = f"{_SIZE.value} size; {about()}"
    disk.replace(path, page.html(made, entries.corrected(members)))
    table = entries.table(members).assign(size=_SIZE.value, about=about())
    disk.replace(workdir / "book.csv", table.to_csv(index=False))
    print(f"the book: {path}, its table: {workdir / 'book.csv'}")
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; the others are in the book.")


def about() -> str:
    """The versions and the date of the book, as text."""
    installed = software.versions()
    names = ("delayjax", "jax", "jaxlib", "optax", "numpy")
    versions = ", ".join(f"{name} {installed[name]}" for name in names)
    return f"{versions}; {datetime.date.today().isoformat()}"


if __name__ == "__main__":
    app.run(main)
