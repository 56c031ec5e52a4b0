"""Kills a run of two processes again and again, and compares what it leaves.

    python -m benchmarks.kill
    python -m benchmarks.kill --kills=3 --updates=300 --seed=1

One run is left alone. Another, of the same command, gets a SIGKILL at random moments,
while it starts, trains or saves: process 0, process 1 or both. It is started again
after each, and let finish after the last. Both must have written the same.
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
    """A grid that trains in seconds, of four workers."""
    return ConfigDict(
        dict(learning_rate=(0.01,), delay=(0, 4), width=8, updates=6000, seeds=1)
    )


def experiment(config: ConfigDict) -> Experiment:
    """Digits; the workers are devices, of all processes together."""

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
    """What a kill did."""

    victims: tuple[int, ...]
    seconds: float  # since the start
    update: int  # of the last row written
    survived_seconds: float  # until the last process had ended


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
        *arguments: of the runner.
        processes: how many; one does not join any other.
        devices: of each, simulated on its CPU.
        timeout_seconds: handed to the runner.
        of_last: arguments of the last process alone.
        folders: where each begins, if not all in the checkout.
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
    """Waits for processes; returns their exit codes and what each printed."""
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def rows(workdir: Path) -> list[dict]:
    """The rows of metrics.jsonl without the clock, and without a row cut short."""
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
    """Waits until training has written rows; False where a process ended instead."""
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
        arguments: of the runner.
        workdir: where the run goes on.
        victims: the processes to kill.
        rng: draws the moment.
        training: seconds; where it is not killed while it starts, it is at most so long
            after the first row that it writes. 0: as it writes that.
        least: rows that are there then, beside that; one is before any training.

    Returns:
        What happened; None where the run ended before.

    Raises:
        RuntimeError: if it failed before.
    """
    before = len(rows(workdir))
    began = time.monotonic()
    processes = start(f"--workdir={workdir}", *arguments, timeout_seconds=10)
    if training and rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, 8.0))
    else:
        # a run that goes on forgets the rows after its last checkpoint first
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
    """Kills a run `kills` times and lets it finish, beside one that nobody kills.

    Args:
        arguments: of the runner.
        folder: where both are kept.
        kills: how many.
        seed: of the moments and of who is killed.

    Returns:
        How many kills there were: fewer if the run ended before.

    Raises:
        RuntimeError: if a run fails, or the two have not written the same.
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
    """Waits for a run, and raises what it printed if it fails."""
    codes, outputs = finish(processes)
    if any(codes):
        raise RuntimeError("\n".join(outputs))


def check_same(whole: Path, killed: Path) -> None:
    """Raises unless both runs have written the same."""
    if rows(whole) != rows(killed):
        raise RuntimeError(f"{killed}/metrics.jsonl differs from {whole}.")
    for name in ("results.csv", "curves.csv"):
        if (whole / name).read_bytes() != (killed / name).read_bytes():
            raise RuntimeError(f"{killed}/{name} differs from {whole}.")


def main() -> None:
    """Parses the command line and reports."""
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
        " metrics.jsonl (without its clock), results.csv and curves.csv are those of"
        " the run that nobody killed, bit for bit"
    )


if __name__ == "__main__":
    main()
