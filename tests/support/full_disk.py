"""The tiny config, on a disk that is full once so many lines are in a file.

FULL_DISK=search.csv,3 in the environment: the third time that something is added to
search.csv fails. Where it is not set the disk is never full.
"""

import errno
import itertools
import os

from ml_collections import ConfigDict

from experiments import Experiment
from tests.support import tiny


def get_config(question: str = "delay") -> ConfigDict:
    """As `tiny` has it."""
    return tiny.get_config(question)


def experiment(config: ConfigDict) -> Experiment:
    """As `tiny` has it."""
    name, _, allowed = os.environ.get("FULL_DISK", "").partition(",")
    if name:
        calls, fsync = itertools.count(1), os.fsync

        def full(file: int) -> None:
            written = os.path.basename(os.readlink(f"/proc/self/fd/{file}"))
            if written == name and next(calls) >= int(allowed):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(file)

        os.fsync = full
    return tiny.experiment(config)
