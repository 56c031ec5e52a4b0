"""Functions that all tables of peers share."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.tables import NotMeasuredError

RATE = 0.01
"""The step size of SGD."""


def difference(theirs: Any, ours: Any) -> float:
    """The largest difference of two trees, over the largest number of `ours`."""
    pairs = zip(jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True)
    each = [
        (np.abs(np.asarray(a) - np.asarray(b)).max(), np.abs(b).max()) for a, b in pairs
    ]
    return float(max(d for d, _ in each) / max(reference for _, reference in each))


def checkout(path: str | None, flag: str, file: str) -> Path:
    """The path of a file in a peer's checkout.

    Raises:
        NotMeasuredError: if the file is missing; the error names the flag.
    """
    if path is None:
        raise NotMeasuredError(f"no --{flag}=DIR")
    checkout_file = Path(path) / file
    if not checkout_file.exists():
        raise NotMeasuredError(f"--{flag}={path} has no {file}")
    return checkout_file
