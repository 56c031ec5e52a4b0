"""Errors of a user's functions, in one line."""

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_RUNNER = Path(__file__).parents[1]
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
_INSTALLED += [_RUNNER, _RUNNER.parent / "delayjax"]


def in_one_line(error: BaseException) -> str:
    """The reason of an error, and the last line of the user's code that led to it.

    Example:
        >>> in_one_line(KeyError("cosine"))
        "KeyError: 'cosine'"
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    users = [place for place in places if _is_of_the_user(Path(place[0]))]
    where = "{}, line {}: ".format(*users[-1]) if users else ""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{where}{kind}{' '.join(str(error).split())}"


@contextlib.contextmanager
def naming(what: str, values: Mapping[str, Any]) -> Iterator[None]:
    """If a user's function fails in the block, reports the values and the reason.

    Args:
        what: names the function, for the error.
        values: the arguments of the function, as the error shows them.

    Raises:
        ValueError: one line about the error in the block.
    """
    try:
        yield
    except Exception as error:  # whatever a user's function raises
        if isinstance(error, ValueError) and not values:
            raise
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        where = f" with {shown}" * bool(values)
        raise ValueError(f"{what}{where} fails: {in_one_line(error)}") from error


@contextlib.contextmanager
def of_changed(changed: Mapping[str, Sequence[Any]]) -> Iterator[None]:
    """If the block fails, adds the changed values of the config to the error.

    Args:
        changed: {key: [the config file's value, the chosen value]}.

    Raises:
        ValueError: the error in the block, with the changed values.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if not changed:
            raise
        shown = ", ".join(f"--config.{key}={now}" for key, (_, now) in changed.items())
        raise ValueError(f"{error} (with {shown})") from error


def _is_of_the_user(file: Path) -> bool:
    """Whether a file exists and belongs to no package, this package included."""
    return file.exists() and not any(place in file.parents for place in _INSTALLED)
