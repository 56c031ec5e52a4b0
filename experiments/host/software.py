"""The software of a run: versions of packages, and the commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import delayjax as dj


def versions() -> dict[str, str]:
    """The versions of Python and the packages that make the numbers."""
    packages = ("jax", "jaxlib", "optax", "flax", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "delayjax": dj.__version__,
    }


def git_hash() -> str:
    """The commit of the checkout, with "+" where files differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
