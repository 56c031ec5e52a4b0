"""Runs configs, some side by side, each in a process and a folder of its own."""

import signal
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

from experiments.book import entries
from experiments.results import claims


def look(names: list[str], workdir: Path, *, small: bool, jobs: int) -> list[str]:
    """Runs configs, and those that stay undecided with more seeds unless `small`.

    Returns:
        The names of runs that failed.
    """
    failed = []
    for times in claims.LOOKS[: 1 if small else None]:
        failed += run_all(names, workdir, small=small, jobs=jobs, times=times)
        looked_at = [entries.entry_of(name, workdir) for name in names]
        names = [one.config for one in looked_at if one.verdict == claims.UNDECIDED]
    return failed


def run_all(
    names: list[str], workdir: Path, *, small: bool, jobs: int, times: int = 1
) -> list[str]:
    """Runs configs, `jobs` of them side by side, and returns those that failed.

    Args:
        names: of the configs.
        workdir: the folder that has a folder for each run.
        small: whether each run has few seeds.
        jobs: how many run side by side.
        times: the look at their headlines: each has `times` its seeds.

    Raises:
        SystemExit: with 130 or 143, if SIGINT or SIGTERM stopped a run.
    """
    begin, codes = time.monotonic(), {}

    def run(number, name):
        if stopped(codes):
            return
        spent, to_do = (time.monotonic() - begin) / 60, len(names) - len(codes)
        left = f"; about {spent / len(codes) * to_do:.0f} min left" if codes else ""
        print(f"{number} of {len(names)}: {name}{left}", flush=True)
        command = entries.command(name, workdir / entries.place(name, times))
        seeds = entries.small(name) if small else entries.further(name, times)
        command = [sys.executable, *command[1:], "--quiet", *seeds]
        codes[name] = subprocess.run(command, check=False).returncode

    with futures.ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(run, *task) for task in enumerate(names, 1)]
        try:
            for each in begun:
                each.result()
        except KeyboardInterrupt:
            sys.exit(130)
        finally:  # runs that have begun end first: they save their state
            pool.shutdown(cancel_futures=True)
    if code := stopped(codes):
        sys.exit(code)
    return [name for name in names if codes[name]]


def stopped(codes: dict[str, int]) -> int | None:
    """130 or 143 if SIGINT or SIGTERM stopped one of the runs, else None."""
    by_signal = {-signal.SIGINT: 130, -signal.SIGTERM: 143}  # before a run handles them
    shown = [by_signal.get(code, code) for code in list(codes.values())]
    return next((code for code in shown if code in (130, 143)), None)
