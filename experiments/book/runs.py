"""Runs configs side by side, each in its own process and folder."""

import shutil
import signal
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

from experiments.book import entries
from experiments.results import claims


def look(names: list[str], workdir: Path, *, small: bool, jobs: int) -> list[str]:
    """Runs configs; unless `small`, runs them again until their headlines are decided.

    Returns:
        The names of runs that failed.
    """
    failed = []
    for times in claims.LOOKS[: 1 if small else None]:
        failed += run_all(names, workdir, small=small, jobs=jobs, times=times)
        looked_at = [entries.entry_of(name, workdir) for name in names]
        names = [one.config for one in looked_at if one.needs_seeds]
    return failed


def run_all(
    names: list[str], workdir: Path, *, small: bool, jobs: int, times: int = 1
) -> list[str]:
    """Runs configs, `jobs` at a time, and returns the names of the failed configs.

    Args:
        names: the names of the configs.
        workdir: the folder that has a folder for each run.
        small: whether each run has few seeds.
        jobs: the number of configs that run side by side.
        times: the factor by which each run has more seeds than its config. The run
            begins in a copy of the folder with fewer seeds: its search is done.

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
        place, earlier = (
            workdir / entries.place(name, factor) for factor in (times, times // 2)
        )
        if times > 1 and not place.exists():
            part = place.with_name(f"{place.name}.part")  # a copy may be killed
            shutil.copytree(earlier, part, dirs_exist_ok=True).rename(place)
        command = entries.command(name, place)
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
        finally:  # the runs that have begun save their state and end first
            pool.shutdown(cancel_futures=True)
    if code := stopped(codes):
        sys.exit(code)
    return [name for name in names if codes[name]]


def stopped(codes: dict[str, int]) -> int | None:
    """130 or 143 if SIGINT or SIGTERM stopped one of the runs, else None."""
    # a run that a signal ends before it handles signals has a negative code
    by_signal = {-signal.SIGINT: 130, -signal.SIGTERM: 143}
    shown = [by_signal.get(code, code) for code in list(codes.values())]
    return next((code for code in shown if code in (130, 143)), None)
