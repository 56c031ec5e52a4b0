"""The runner's command line, in processes of its own."""

import contextlib
import itertools
import json
import multiprocessing
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import jax

ROOT = Path(__file__).parents[2]
TIMEOUT = 240.0  # seconds
# the later ones are imported when something is drawn, or read
PRELOADED = [
    "experiments.main",
    "experiments.report",
    "experiments.figures.sheets",
    "sklearn.datasets",
]


def finish(*arguments, module="experiments.main", cwd=ROOT, **environment):
    """Runs the command in a new interpreter; its exit code and all that it printed."""
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        | environment,
        timeout=TIMEOUT,
    )
    return process.returncode, process.stdout


def in_terminal(*arguments, module="experiments.main"):
    """As `finish`, in a pseudo-terminal, whose width and colors the command sees."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
    )
    os.close(its)
    read = b""
    with contextlib.suppress(OSError):  # Linux's end of a terminal
        while part := os.read(ours, 2**16):
            read += part
    os.close(ours)
    return process.wait(TIMEOUT), read.decode()


def printed(*commands, timeout=TIMEOUT):
    """Runs Python's arguments at once, each command of an object in JSON: the objects.

    It is the last line that a command prints.
    """
    running = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=timeout) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]


def free_port():
    """One of this machine's."""
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


class Forks:
    """Starts commands in forks of one process that has imported what most import."""

    def __init__(self, outputs):
        """Begins; `outputs` is a folder for what the commands print."""
        self._outputs = (outputs / str(i) for i in itertools.count())
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def start(self, *arguments):
        """The process, and the file of what it prints."""
        output = next(self._outputs)
        process = self._context.Process(target=_command, args=(arguments, output))
        process.start()
        return process, output

    def finish(self, *arguments):
        """The exit code, and what was printed."""
        return ended(*self.start(*arguments))


def ended(process, output):
    """Waits for what `Forks.start` began; its exit code, and what it printed."""
    process.join(timeout=TIMEOUT)
    return process.exitcode, output.read_text()


def _command(arguments, output):
    os.chdir(ROOT)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    jax.config.update("jax_platforms", "cpu")
    sys.argv = ["experiments.main", *arguments]
    from experiments import main  # imported before this process was forked

    main.command_line()


def metrics(workdir):
    """The rows of metrics.jsonl, without the clock; a line cut short is left out."""
    path, rows = workdir / "metrics.jsonl", []
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            row = json.loads(line)
            clock = [name for name in row if name.endswith("_per_second")]
            rows.append({k: v for k, v in row.items() if k not in clock})
    return rows
