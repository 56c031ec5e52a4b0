"""Checks that all processes of a run reach one folder."""

import json
import secrets
import socket
import time
from collections.abc import Callable

import jax
from etils import epath

from experiments.host import processes

_PATIENCE = 5.0  # the seconds to wait for a file of another host


def check_shared(folder: epath.Path, unusable: Callable[[Exception], str]) -> None:
    """Checks that all processes of a run reach a folder.

    Process 0 writes a random number there, all must read it, and it is removed.

    Args:
        folder: the folder, as this process got it.
        unusable: an error -> the message if process 0 cannot write.

    Raises:
        ValueError: in every process, naming those that do not read the number; or if
            process 0 cannot write there.
    """
    if jax.process_count() == 1:
        return
    processes.check_agreement({"--workdir": str(folder)})
    nonce = processes.of_all(secrets.token_hex(8))[0]
    # a new name each time: a network file system caches that a file was missing
    file = folder / f".nonce-{nonce}"

    def write():
        if processes.is_first():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file.write_text(nonce)
            except Exception as error:  # each storage raises different errors
                raise ValueError(unusable(error)) from error

    processes.together(write)
    try:
        answers = processes.of_all(json.dumps(_looked_for(file, nonce)))
    finally:
        if processes.is_first():
            file.unlink(missing_ok=True)
    places, reasons = zip(*map(json.loads, answers), strict=True)
    missing = [i for i, reason in enumerate(reasons) if reason]
    if missing:
        first = missing[0]
        raise ValueError(
            f"--workdir={folder} must be one folder that all hosts reach: process"
            f" {', '.join(map(str, missing))} cannot read there what process 0 wrote."
            f" Process 0 wrote {places[0]}; process {first} looked for {places[first]}"
            f" ({reasons[first]}). Choose a shared folder, by its absolute path, or a"
            " bucket."
        )


def _looked_for(file: epath.Path, nonce: str) -> tuple[str, str]:
    """A file's place for this process, and why it is missing; "" if it is there."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            reason = "" if file.read_text() == nonce else "it has other contents"
        except Exception as error:  # each storage raises different errors
            reason = type(error).__name__
        if not reason or time.monotonic() > deadline:
            return f"{socket.gethostname()}:{file.parent.resolve()}", reason
        time.sleep(0.1)
