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
    """The commit of the checkout, with "+" where files differ from it.

    "unknown" for an installed wheel, which may lie within another checkout.
    """
    try:
        _git("ls-files", "--error-unmatch", __file__)
        return _git("describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def has_tracked_files(folder: Path) -> bool:
    """Whether Git tracks files of a folder; False without Git or without the folder."""
    try:
        return bool(_git("ls-files", folder=folder))
    except (OSError, subprocess.CalledProcessError):
        return False


def _git(*arguments: str, folder: Path = Path(__file__).parent) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
