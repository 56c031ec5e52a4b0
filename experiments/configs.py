"""What config files share: their values, checked, and objects by name."""

import importlib
import importlib.util
import inspect
import json
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from experiments.training.axis_values import check_numbers, is_number
from experiments.training.experiment import Experiment


def knobs(config: ConfigDict) -> dict[str, Any]:
    """{key: value} of a config, as JSON would read them back."""
    return flatten_dict(json.loads(json.dumps(config.to_dict())), sep=".")


def changed(source: str, chosen: Mapping[str, Any]) -> dict[str, list[Any]]:
    """{key: [the config file's own value, the chosen one]} where they differ."""
    defaults = knobs(default_config(source))
    return {
        key: [defaults[key], v] for key, v in chosen.items() if defaults.get(key) != v
    }


class Limit(NamedTuple):
    """What each number of a config's key must be."""

    said: str  # after "must be"
    holds: Callable[[float], bool]


def at_least(least: float, *keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers have a least value: a part of a file's `LIMITS`.

    Example:
        >>> limits = at_least(1, "workers", "period") | at_least(0, "latency_seconds")
        >>> limits["period"].holds(0), limits["latency_seconds"].holds(0)
        (False, True)
    """
    return dict.fromkeys(keys, Limit(f"at least {least}", lambda x: x >= least))


def positive(*keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers are positive and finite, such as step sizes.

    Example:
        >>> positive("learning_rate")["learning_rate"].holds(1e-60)  # 0 in float32
        False
    """
    return dict.fromkeys(keys, Limit("positive and finite in float32", _is_positive))


def below_one(*keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers lie in [0, 1), such as a momentum.

    Example:
        >>> below_one("momentum")["momentum"].holds(1.5)
        False
    """
    return dict.fromkeys(keys, Limit("in [0, 1)", lambda x: 0 <= x < 1))


def _is_positive(number: float) -> bool:
    return bool(0 < np.float32(number) < math.inf)


def check_values(source: str, chosen: Mapping[str, Any]) -> None:
    """Checks the values of a config against the kind of the file's own.

    Where the file has numbers there are numbers, finite in float32; where it has whole
    numbers these are whole; where it has text, there is text. Numbers keep the limits
    that the file declares in its `LIMITS`, {key: limit}, if it has them.

    Args:
        source: the config file.
        chosen: {key: value}, as of `knobs`.

    Raises:
        ValueError: naming the key.
    """
    defaults = knobs(default_config(source))
    limits = getattr(module_of(source), "LIMITS", {})
    for key in limits:
        if key not in defaults:
            raise ValueError(
                f"--config={source}: `LIMITS` has {key!r}, but the config has no such"
                f" key; it has {', '.join(defaults)}."
            )
    for key, value in chosen.items():
        of_file = defaults.get(key)
        given, kept = (v if isinstance(v, list) else [v] for v in (value, of_file))
        if isinstance(of_file, list) and not given:
            raise ValueError(f"config.{key} is empty: it is an axis, as (0.1,) is one.")
        if kept and all(map(is_number, kept)):
            wrong = [v for v in given if not is_number(v)]
            if wrong:
                raise ValueError(
                    f"config.{key} must hold numbers, as {_shown(of_file)}, got"
                    f" {wrong[0]!r}."
                )
            if all(isinstance(v, int) for v in kept):
                parts = [v for v in given if v != round(v)] if _finite(given) else given
                if parts:
                    raise ValueError(
                        f"config.{key} must hold whole numbers, as {_shown(of_file)},"
                        f" got {parts[0]}."
                    )
        elif kept and all(isinstance(v, str) for v in kept):
            wrong = [v for v in given if not isinstance(v, str)]
            if wrong:
                raise ValueError(
                    f"config.{key} must hold text, as {_shown(of_file)}, got"
                    f" {wrong[0]!r}."
                )
        check_numbers(f"config.{key}", given)
        for number in filter(is_number, given):
            if key in limits and not limits[key].holds(number):
                raise ValueError(
                    f"config.{key} must be {limits[key].said}, got {number}."
                )


def _finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _shown(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, list) else repr(value)


def default_config(source: str) -> ConfigDict:
    """What the config file itself says; "FILE:question" asks it for a question."""
    _, _, question = source.partition(".py:")
    return module_of(source).get_config(*([question] if question else []))


def of_run(record: Mapping[str, Any]) -> ConfigDict | None:
    """The values of a run.json; None where no config file made it."""
    source = record.get("source")
    if not source or not _file(source).exists():
        return None
    config = default_config(source)
    config.update(unflatten_dict(record["config"], sep="."))
    return config


def rebuilt(record: Mapping[str, Any]) -> Experiment | None:
    """The experiment of a run.json; None where no config file made it."""
    config = of_run(record)
    return None if config is None else module_of(record["source"]).experiment(config)


_FUNCTIONS = {
    "get_config()": "has the values that the command line may change",
    "experiment(config)": "makes the experiment of its values",
}


def module_of(path: str, needed: Sequence[str] = tuple(_FUNCTIONS)) -> ModuleType:
    """The module of a config file; "FILE:question" is of FILE.

    Raises:
        ValueError: if it lacks one of the functions that it needs.
    """
    spec = importlib.util.spec_from_file_location(_file(path).stem, _file(path))
    if spec is None or spec.loader is None:
        raise ValueError(f"--config={path} is no Python file: its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in needed:
        if not hasattr(module, name.partition("(")[0]):
            raise ValueError(
                f"--config={path} has no function `{name}`, which {_FUNCTIONS[name]}."
            )
    return module


def check_file(path: str) -> None:
    """Refuses a config file whose values cannot be read.

    Raises:
        ValueError: with the reason in one line.
    """
    if not path:
        raise ValueError("--config is empty: give a file, as configs/default.py.")
    if not _file(path).is_file():
        raise ValueError(f"--config={path}: there is no file {_file(path)}.")
    try:
        module = module_of(path)
        _, question, _ = path.partition(".py:")
        if question and not inspect.signature(module.get_config).parameters:
            raise ValueError(
                f"--config={path}: {_file(path)} asks one question only; leave out what"
                " follows its colon."
            )
        default_config(path)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(error_line(error, path)) from error


def error_line(error: BaseException, path: str) -> str:
    """What went wrong in a config file, and in which of its lines."""
    file = _file(path).resolve()
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file
    ]
    if isinstance(error, SyntaxError):
        lines.append(error.lineno)
    where = f", line {lines[-1]}" if lines else ""
    reason = " ".join(str(error).split())
    return f"--config={path}{where}: {type(error).__name__}: {reason}"


def made(path: str, config: ConfigDict) -> Experiment:
    """The experiment of a config file's values.

    Raises:
        ValueError: where the file itself fails, in one line.
    """
    try:
        made = module_of(path).experiment(config)
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise ValueError(error_line(error, path)) from error
    if not isinstance(made, Experiment):
        raise ValueError(
            f"--config={path}: `experiment(config)` must return an `Experiment`, got"
            f" {made!r}: does it end with `return`?"
        )
    return made


def _file(source: str) -> Path:
    file, question, _ = source.partition(".py:")
    return Path(f"{file}.py" if question else file)


def named(key: str, name: str, offered: Mapping[str, Any]) -> Any:
    """An object by its name, or by its import path "package.module:name".

    Args:
        key: of the config, for errors.
        name: what the config says.
        offered: {name: object}.

    Raises:
        ValueError: if there is no such name, or it cannot be imported.

    Example:
        >>> named("optimizer", "math:sqrt", {})(4.0)
        2.0
    """
    if name in offered:
        return offered[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"config.{key} must be one of {', '.join(offered)}, or an import path"
            f" like my_module:make, got {name!r}."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module itself raises, too
        raise ValueError(
            f"config.{key}: {name!r} cannot be imported ({error}). Run from the folder"
            " that holds the module, or install what it needs."
        ) from error


def check_delays(key: str, delays: Sequence[float], updates: int) -> int:
    """The depth of a history that holds these delays.

    Raises:
        ValueError: if one is negative, or no update of the run can have it.
    """
    if updates < 1:
        raise ValueError(f"config.updates must be at least 1, got {updates}.")
    if not delays or min(delays) < 0 or max(delays) >= updates:
        raise ValueError(
            f"config.{key} must hold delays from 0 to config.updates - 1 ="
            f" {updates - 1}, got {tuple(delays)}."
        )
    return int(max(delays))


def check_warmup(config: ConfigDict) -> None:
    """Checks that a schedule's warmup ends before the run does.

    Raises:
        ValueError: if it does not.
    """
    if config.warmup_updates >= config.updates:
        raise ValueError(
            "config.warmup_updates must be below config.updates ="
            f" {config.updates}, got {config.warmup_updates}."
        )
