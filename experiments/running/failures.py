"""What a user's function did wrong, in one line."""

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
    """The reason, and the last line of the user's code that led there.

    Example:
        >>> in_one_line(KeyError("cosine"))
        "KeyError: 'cosine'"
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_the_user_s(Path(frame.filename))]
    where = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{where}{kind}{' '.join(str(error).split())}"


@contextlib.contextmanager
def naming(what: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Where a user's function fails inside, says of which values and why.

    Args:
        what: fails, for the error.
        values: that the function was given, as they are shown.

    Raises:
        ValueError: in one line, from what was raised.
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
    """Where something fails inside, says which values of a config were changed.

    Args:
        changed: {key: [the config file's own value, the chosen one]}.

    Raises:
        ValueError: of what was raised.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if not changed:
            raise
        shown = ", ".join(f"--config.{key}={now}" for key, (_, now) in changed.items())
        raise ValueError(f"{error} (with {shown})") from error


def _is_the_user_s(file: Path) -> bool:
    """Whether a file is there, and of no package, not of this one either."""
    return file.exists() and not any(place in file.parents for place in _INSTALLED)
