"""Runs every config, and binds what came out into one page.

    python -m experiments.book --workdir=runs/book
    python -m experiments.book --workdir=runs/book --only=softsync,k_async:pareto

Each config has its own folder in the work directory. The same command goes on where it
was interrupted. `--size=small` reports three seeds of each and one more chooses; three
configs also train for fewer updates and try fewer values. So fewer statements are
decided. `--jobs=2` runs two configs side by side, as most use little more than one
core: two cores need 46 minutes for the small size. It writes book.html and book.csv
into the work directory.
"""

import datetime
import logging
import signal
import subprocess
import sys
import time
from concurrent import futures
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
_JOBS = flags.DEFINE_integer("jobs", 1, "Configs that run side by side.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Runs what is not finished, then writes the page."""
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
    failed = run_all(wanted, workdir, small=_SIZE.value == "small", jobs=_JOBS.value)
    bound = [entries.of(name, workdir) for name in _ONLY.value or SYSTEMS]
    path = binding.write(bound, workdir / "book.html", about())
    table = entries.table(bound)
    folder.replace(workdir / "book.csv", f"# {about()}\n{table.to_csv(index=False)}")
    print(f"the book: {path}, its table: {workdir / 'book.csv'}")
    if failed:
        sys.exit(f"error: {', '.join(failed)} failed; the others are in the book.")


def run_all(names: list[str], workdir: Path, *, small: bool, jobs: int) -> list[str]:
    """Runs configs, so many side by side, and returns those that failed."""
    begin, codes = time.monotonic(), {}

    def run(number, name):
        if stopped(codes):
            return
        spent, to_do = (time.monotonic() - begin) / 60, len(names) - len(codes)
        left = f"; about {spent / len(codes) * to_do:.0f} min left" if codes else ""
        print(f"{number} of {len(names)}: {name}{left}", flush=True)
        command = entries.command(name, workdir / entries.place(name))
        fewer = entries.small(name) if small else []
        command = [sys.executable, *command[1:], "--quiet", *fewer]
        codes[name] = subprocess.run(command, check=False).returncode

    with futures.ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(run, *own) for own in enumerate(names, 1)]
        try:
            for each in runs:
                each.result()
        except KeyboardInterrupt:
            sys.exit(130)
        finally:  # runs that have begun end first: they save their state
            pool.shutdown(cancel_futures=True)
    if code := stopped(codes):
        sys.exit(code)
    return [name for name in names if codes[name]]


def stopped(codes: dict[str, int]) -> int | None:
    """130 or 143 where SIGINT or SIGTERM stopped a run, and so the book; else None."""
    by_signal = {-signal.SIGINT: 130, -signal.SIGTERM: 143}  # before it was ready
    shown = [by_signal.get(code, code) for code in list(codes.values())]
    return next((code for code in shown if code in (130, 143)), None)


def about() -> str:
    """When, with what and at which size the book was made."""
    found = folder.versions()
    names = ("delayjax", "jax", "jaxlib", "optax", "numpy")
    versions = ", ".join(f"{name} {found[name]}" for name in names)
    return f"{_SIZE.value} size; {versions}; {datetime.date.today().isoformat()}"


if __name__ == "__main__":
    app.run(main)
