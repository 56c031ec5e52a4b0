"""Kills a run of two processes again and again, and compares its results.

    python -m benchmarks.kill
    python -m benchmarks.kill --kills=3 --updates=300 --seed=1

One run is never killed. Another run of the same command gets a SIGKILL at random
moments, while it starts, trains or saves: process 0, process 1 or both. It starts again
after each kill, and finishes after the last. Both runs must write the same results.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, on_devices, tasks

ROOT = Path(__file__).parent.parent


def get_config() -> ConfigDict:
    """The config: a grid of four workers that trains in seconds."""
    return ConfigDict(
        dict(learning_rate=(0.01,), delay=(0, 4), width=8, updates=6000, seeds=1)
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: digits, with the devices of all processes as workers."""

    def late_mean(learning_rate, delay):
        mean = dj.exchange.mean(optax.adam(learning_rate))
        return dj.delayed(mean, delay, max_delay=4)

    return Experiment(
        question="Does a run survive a kill?",
        task=tasks.digits_mlp(batch_size=32, width=config.width),
        training=on_devices(late_mean, workers=4),
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        updates=config.updates,
        evaluate_every=10,
    )


class Kill(NamedTuple):
    """The moment and the effect of a kill."""

    victims: tuple[int, ...]  # numbers of the killed processes
    seconds: float  # from the start of the run to the kill
    update: int  # of the last row that was written
    survived_seconds: float  # from the kill to the end of the last process


def start(
    *arguments: str,
    processes: int = 2,
    devices: int = 2,
    timeout_seconds: int = 60,
    of_last: Sequence[str] = (),
    folders: Sequence[Path] = (),
    config: str = __file__,
) -> list[subprocess.Popen]:
    """Starts the runner in several processes on this machine.

    Args:
        *arguments: arguments of the runner.
        processes: the number of processes; a single process joins no other.
        devices: the number of devices of each process, simulated on its CPU.
        timeout_seconds: the timeout of the runner.
        of_last: further arguments of the last process.
        folders: the working folder of each process, by default the checkout.
        config: the config file.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        coordinator = f"localhost:{probe.getsockname()[1]}"
    joined = (
        *("--distributed", f"--coordinator={coordinator}"),
        *(f"--num_processes={processes}", f"--timeout_seconds={timeout_seconds}"),
    )
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "experiments.main", f"--config={config}"),
                *arguments,
                *((*joined, f"--process_id={i}") if processes > 1 else ()),
                *(of_last if i == processes - 1 else ()),
            ],
            cwd=folders[i] if folders else ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(devices),
                "PYTHONPATH": str(ROOT),
            },
        )
        for i in range(processes)
    ]


def finish(
    processes: Sequence[subprocess.Popen], timeout: float = 240
) -> tuple[list[int], list[str]]:
    """Waits for processes; returns the exit code and the output of each."""
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def rows(workdir: Path) -> list[dict]:
    """The rows of metrics.jsonl, without the clock and without an incomplete row."""
    rows = []
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        for line in (workdir / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            row.pop("updates_per_second", None)
            rows.append(row)
    return rows


def wait_for_rows(
    workdir: Path, more_than: int, processes: Sequence[subprocess.Popen]
) -> bool:
    """Waits for rows, and returns whether they came before a process ended."""
    while len(rows(workdir)) <= more_than:
        if any(process.poll() is not None for process in processes):
            return False
        time.sleep(0.02)
    return True


def kill_once(
    arguments: Sequence[str],
    workdir: Path,
    victims: tuple[int, ...],
    rng: random.Random,
    *,
    training: float,
    least: int = 1,
) -> Kill | None:
    """Starts the run and kills it at a random moment.

    Args:
        arguments: arguments of the runner.
        workdir: the folder of the run, which continues there.
        victims: the numbers of the processes to kill.
        rng: draws the moment.
        training: the most seconds between the first new row and the kill, unless the
            kill comes during the start. 0: as soon as this row is written.
        least: the number of rows before this row; one row is before any training.

    Returns:
        The kill; None if the run ended before it.

    Raises:
        RuntimeError: if the run failed before the kill.
    """
    before = len(rows(workdir))
    began = time.monotonic()
    processes = start(f"--workdir={workdir}", *arguments, timeout_seconds=10)
    if training and rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, 8.0))
    else:
        # a run that continues first removes the rows after its last checkpoint
        wait_for_rows(workdir, max(before, least), processes)
        time.sleep(rng.uniform(0.0, training))
    ended = any(process.poll() is not None for process in processes)
    seconds = time.monotonic() - began
    if not ended:
        for i in victims:
            processes[i].kill()
    killed = time.monotonic()
    codes, outputs = finish(processes)
    if not ended:
        update = max((row["step"] for row in rows(workdir)), default=0)
        survived = time.monotonic() - killed
        return Kill(victims, seconds, update, survived)
    if any(codes):
        raise RuntimeError("\n".join(outputs))
    return None


def survive(arguments: Sequence[str], folder: Path, *, kills: int, seed: int) -> int:
    """Kills a run `kills` times, lets it finish, and compares it with a whole run.

    Args:
        arguments: arguments of the runner.
        folder: the folder of both runs.
        kills: the number of kills.
        seed: the seed of the moments and of the killed processes.

    Returns:
        The number of kills, which is smaller if the run ended before.

    Raises:
        RuntimeError: if a run fails, or the two have written different results.
    """
    rng = random.Random(seed)
    whole, killed = folder / "whole", folder / "killed"
    processes = start(f"--workdir={whole}", *arguments)
    wait_for_rows(whole, 1, processes)
    began = time.monotonic()
    check_ended(processes)
    training = time.monotonic() - began
    for done in range(kills):
        victims = rng.choice(((0,), (1,), (0, 1)))
        each = 1.5 * training / kills
        kill = kill_once(arguments, killed, victims, rng, training=each)
        if kill is None:
            return done
        print(
            f"kill {done + 1:2d}: process {' and '.join(map(str, victims))}"
            f" {kill.seconds:.1f} s after the start, at update {kill.update}; all had"
            f" ended {kill.survived_seconds:.1f} s later",
            flush=True,
        )
    check_ended(start(f"--workdir={killed}", *arguments))
    check_same(whole, killed)
    return kills


def check_ended(processes: Sequence[subprocess.Popen]) -> None:
    """Waits for a run, and raises an error with its output if it fails."""
    codes, outputs = finish(processes)
    if any(codes):
        raise RuntimeError("\n".join(outputs))


def check_same(whole: Path, killed: Path) -> None:
    """Raises an error unless both runs have written the same results."""
    if rows(whole) != rows(killed):
        raise RuntimeError(f"{killed}/metrics.jsonl differs from {whole}.")
    for name in ("results.csv", "curves.csv"):
        if (whole / name).read_bytes() != (killed / name).read_bytes():
            raise RuntimeError(f"{killed}/{name} differs from {whole}.")


def main() -> None:
    """Parses the command line, kills a run, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    arguments = (f"--config.updates={options.updates}", "--checkpoint_every=50")
    folder = Path(tempfile.mkdtemp(prefix="kill-"))
    done = survive(arguments, folder, kills=options.kills, seed=options.seed)
    if done < options.kills:
        sys.exit(f"error: the run ended after {done} kills: raise --updates.")
    shutil.rmtree(folder)
    print(
        f"{done} kills of a run of {options.updates} updates in two processes:"
        " metrics.jsonl (without its clock), results.csv and curves.csv equal the files"
        " of the run that was never killed, bit for bit"
    )


if __name__ == "__main__":
    main()
