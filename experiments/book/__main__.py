"""Runs every config, and binds what came out into one page.

    python -m experiments.book --workdir=runs/book
    python -m experiments.book --workdir=runs/book --only=softsync,k_async:pareto

Each config has its own folder in the work directory. The same command goes on where it
was interrupted. `--size=small` reports three seeds of each and one more chooses; three
configs also train for fewer updates and try fewer values. So fewer statements are
decided. It writes book.html and book.csv into the work directory.
"""

import datetime
import subprocess
import sys
import time
from pathlib import Path

from absl import app, flags

from experiments.book import binding, entries
from experiments.book.chapters import NOT_RUN, SYSTEMS
from experiments.results import folder

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "The folder to write to.", required=True
)
_ONLY = flags.DEFINE_list("only", [], "Names of configs, with their forms.")
_SIZE = flags.DEFINE_enum(
    "size", "small", ("small", "full"), "How many seeds and updates."
)


def main(argv: list[str]) -> None:
    """Runs what is not finished, then writes the page."""
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
    failed = run_all(wanted, workdir)
    bound = [entries.of(name, workdir) for name in _ONLY.value or SYSTEMS]
    path = binding.write(bound, workdir / "book.html", about())
    table = entries.table(bound)
    folder.replace(workdir / "book.csv", f"# {about()}\n{table.to_csv(index=False)}")
    print(f"the book: {path}, its table: {workdir / 'book.csv'}")
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; the others are in the book.")


def run_all(names: list[str], workdir: Path) -> list[str]:
    """Runs configs one after the other, and returns those that failed."""
    begin, failed = time.monotonic(), []
    for number, name in enumerate(names):
        spent = (time.monotonic() - begin) / 60 / max(number, 1)
        left = f"; about {spent * (len(names) - number):.0f} min left" * bool(number)
        print(f"{number + 1} of {len(names)}: {name}{left}", flush=True)
        command = entries.command(name, workdir / entries.place(name))
        small = entries.small(name) if _SIZE.value == "small" else []
        command = [sys.executable, *command[1:], "--quiet", *small]
        code = subprocess.run(command, check=False).returncode
        if code in (130, 143):  # it was stopped, and so is the book
            sys.exit(code)
        if code:
            failed.append(name)
    return failed


def about() -> str:
    """When, with what and at which size the book was made."""
    found = folder.versions()
    names = ("delayjax", "jax", "jaxlib", "optax", "numpy")
    versions = ", ".join(f"{name} {found[name]}" for name in names)
    return f"{_SIZE.value} size; {versions}; {datetime.date.today().isoformat()}"


if __name__ == "__main__":
    app.run(main)
