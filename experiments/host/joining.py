"""Joins the processes of a run, and ends each of them."""

import atexit
import logging
import os
import re
import socket
import subprocess
import sys
import time
import traceback

import jax

from experiments.host import progress

_START = (
    "Start the same command on every host, within --timeout_seconds={timeout} of each"
    " other. If they are not detected, give --coordinator=HOST:PORT"
    " --num_processes=N --process_id=I."
)
_RESUME = "The same command on every host goes on from the last checkpoint."


def join(
    *,
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    timeout_seconds: int,
) -> None:
    """Joins the processes of a run; call it before any device is used.

    If a process dies later, or is silent for too long, the others end with a line that
    says so: an error of a collective, or the line of the watcher.

    Args:
        coordinator: HOST:PORT of process 0; None, as for the other two, if JAX can
            detect it (TPU, Slurm, Open MPI).
        num_processes: the number of processes of the run.
        process_id: the number of this process, from 0.
        timeout_seconds: the time to wait for the others at the start, and later for a
            sign of life from each of them.

    Raises:
        ValueError: if the coordinator cannot be reached, its port is taken, or JAX
            cannot detect an argument that is not given.
    """
    start = _START.format(timeout=timeout_seconds)
    left = timeout_seconds
    if coordinator and process_id == 0:
        _check_free(coordinator)
    elif coordinator and process_id:
        left = _wait_for_coordinator(coordinator, timeout_seconds, start)
    where = f"at {coordinator} " if coordinator else ""
    watcher = _Watcher()
    _watchers.append(watcher)
    watcher.tell(
        f"error: --distributed: not all processes of the run met {where}within"
        f" --timeout_seconds={timeout_seconds}. {start}"
    )
    # `Termination` handles SIGTERM: a run that has begun is saved, otherwise the
    # process ends. JAX's service would replace Python's handler, and would miss the
    # signal if Python then installed another handler
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=left,
            # JAX checks it at intervals: so all processes have ended within the timeout
            heartbeat_timeout_seconds=max(1, 3 * timeout_seconds // 4),
            shutdown_timeout_seconds=timeout_seconds,
        )
    except (RuntimeError, ValueError) as error:
        watcher.tell("")
        reason = " ".join(str(error).split())
        raise ValueError(f"--distributed: {reason} {start}") from error
    here = f"process {jax.process_index()} of {jax.process_count()}"
    watcher.tell(
        f"error: {here} ended without a message: it was killed, or another"
        f" process of the run died or was silent for --timeout_seconds="
        f"{timeout_seconds}, as the lines above then say. {_RESUME}"
    )
    _see_to_the_end(here, watcher)
    if jax.process_index() > 0:  # process 0 prints for all
        progress.log.setLevel(logging.WARNING)


def _see_to_the_end(here: str, watcher: "_Watcher") -> None:
    """Ends this process at once after an error; otherwise it waits for the others."""

    def leave():
        jax.distributed.shutdown()  # waits for the others, who may have died
        watcher.tell("")

    def end(kind, error, trace):
        # at once: the others notice it, while an orderly end would wait for them
        traceback.print_exception(kind, error, trace)
        if issubclass(kind, jax.errors.JaxRuntimeError) and _is_of_a_collective(error):
            print(f"error: {here}: {_why(error)} {_RESUME}", file=sys.stderr)
        end_at_once(1)

    atexit.register(leave)
    sys.excepthook = end


def end_at_once(code: int) -> None:
    """Ends this process, from any thread, without a further message."""
    try:
        for watcher in _watchers:
            watcher.tell("")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # a pipe may be closed
        os._exit(code)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"--coordinator must be HOST:PORT, with a port below 65,536, got"
            f" {coordinator!r}."
        )
    return host.strip("[]"), int(port)


def _check_free(coordinator: str) -> None:
    """Checks that process 0 can listen on the port: else JAX would crash."""
    _, port = _address(coordinator)
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"--coordinator={coordinator}: process 0 cannot listen there"
            f" ({error.strerror}). If an earlier run is still ending, wait for it;"
            " else choose another port, on every host."
        ) from error


def _wait_for_coordinator(coordinator: str, timeout_seconds: int, start: str) -> int:
    """Waits until process 0 listens; returns the remaining seconds.

    If process 0 never listens, JAX would abort this process without a message.
    """
    address = _address(coordinator)
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection(address, timeout=max(left, 0.1)).close()
        except OSError as error:  # also an unknown name, which may become known
            if left < 0:
                raise ValueError(
                    f"--coordinator={coordinator} was not reached in"
                    f" --timeout_seconds={timeout_seconds} ({error}): process 0 listens"
                    f" there as soon as it runs. {start}"
                ) from error
        else:
            return max(1, round(left))
        time.sleep(0.2)


class _Watcher:
    """Prints a last line if JAX's runtime aborts this process, which runs no Python.

    It is a separate process that reads from a pipe. The pipe closes when this process
    ends, for any reason; then the watcher prints the last line that it read.
    """

    _PROGRAM = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " lines = sys.stdin.read().splitlines();"
        " lines and lines[-1] and print(lines[-1], file=sys.stderr)"
    )

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", self._PROGRAM],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # out of reach of signals to this process
        )

    def tell(self, line: str) -> None:
        """Sets the line to print when this process ends; "" prints nothing."""
        print(line, file=self._process.stdin, flush=True)


_watchers: list[_Watcher] = []  # of this process, once it joins a run


def _is_of_a_collective(error: BaseException) -> bool:
    """Whether an error came from a collective of several processes."""
    words = ("gloo", "nccl", "unavailable", "deadline_exceeded", "connection", "peer")
    return any(word in str(error).lower() for word in words)


def _why(error: BaseException) -> str:
    """The reason of a failed collective, which the traceback does not contain."""
    # as JAX's coordination service names a process: /job:jax_worker/replica:0/task:1
    named = sorted(set(re.findall(r"/task:(\d+)", str(error))), key=int)
    if named:
        return (
            f"a collective failed. JAX's coordination service names process"
            f" {', '.join(named)}: read the last lines of that one first."
        )
    return (
        "a collective failed. Either another process of the run is gone, or the"
        " devices or the network of this host failed: compare the traceback above with"
        " the last lines of the other processes."
    )
