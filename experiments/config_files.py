"""Reads config files, and checks the values that flags give against the file's."""

import collections
import dataclasses
import functools
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from experiments.host.failures import in_one_line
from experiments.training.axis_values import check_numbers, is_number
from experiments.training.experiment import Experiment


def knobs(config: ConfigDict) -> dict[str, Any]:
    """{key: value} of a config, with the values that JSON makes of them."""
    return flatten_dict(json.loads(json.dumps(config.to_dict())), sep=".")


CONFIGS = Path(__file__).parents[1] / "configs"
"""The folder of the config files of delayjax."""


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """A config file, and one of the questions that it answers.

    Attributes:
        source: the name of the file, with ":question" if the file has several.
        path: the path of the file.
        module: the executed file.
        config: the values of the file for this question.
    """

    source: str
    path: Path
    module: ModuleType
    config: ConfigDict

    @classmethod
    def load(cls, source: str) -> "ConfigFile":
        """Executes a file, and calls its `get_config`.

        Args:
            source: "FILE" or "FILE:question"; in place of FILE the name of a config of
                delayjax, such as "default".

        Raises:
            ValueError: if the file cannot be read, or raises an error.
        """
        shipped, _, question = source.partition(":")
        if (CONFIGS / f"{shipped}.py").is_file():
            source = str(CONFIGS / f"{shipped}.py") + f":{question}" * bool(question)
        path, question = _parts(source)
        if path.suffix != ".py" or not path.is_file():
            raise ValueError(
                f"there is no file {path} that ends in .py, and no config of delayjax"
                " of this name."
            )
        try:
            module = executed(path)
            config = ConfigDict(module.get_config(*([question] if question else [])))
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(in_one_line(error)) from error
        return cls(source, path, module, config)

    @property
    def values(self) -> dict[str, Any]:
        """{key: value} of the file's config."""
        return knobs(self.config)

    @property
    def name(self) -> str:
        """The stem of the file, with the question: "workers:spectrum".

        The default question of a file is left out.
        """
        _, question = _parts(self.source)
        parameters = inspect.signature(self.module.get_config).parameters.values()
        usual = [parameter.default for parameter in parameters]
        asked = bool(question and question not in usual)
        return self.path.stem + f":{question}" * asked

    def with_values(self, values: Mapping[str, Any]) -> ConfigDict:
        """The config with other values, {key: value} as in `knobs`."""
        config = self.config.copy_and_resolve_references()
        config.update(unflatten_dict(dict(values), sep="."))
        return config

    def changed(self, chosen: Mapping[str, Any]) -> dict[str, list[Any]]:
        """{key: [the value of the file, the chosen value]} where they differ."""
        values = self.values
        return {
            key: [values[key], value]
            for key, value in chosen.items()
            if values.get(key) != value
        }

    def check(self, chosen: Mapping[str, Any]) -> None:
        """Checks that chosen values are of the same kind as the file's values.

        A number must stay a number, finite in float32; a whole number must stay whole,
        and text must stay text. Numbers must be within the limits that the file may
        declare in `LIMITS`, {key: limit}.

        Args:
            chosen: {key: value}, as in `knobs`.

        Raises:
            ValueError: naming the key.
        """
        values, limits = self.values, getattr(self.module, "LIMITS", {})
        for key in limits:
            if key not in values:
                raise ValueError(
                    f"--config={self.source}: `LIMITS` has {key!r}, but the config has"
                    f" no such key; it has {', '.join(values)}."
                )
        for key, value in chosen.items():
            _check_kind(key, value, values.get(key))
            for number in filter(is_number, _listed(value)):
                if key in limits and not limits[key].holds(number):
                    raise ValueError(
                        f"config.{key} must be {limits[key].said}, got {number}."
                    )

    def experiment(self, config: ConfigDict) -> Experiment:
        """The experiment that the file makes of a config.

        Raises:
            ValueError: if the file raises an error, or returns no experiment.
        """
        try:
            made = self.module.experiment(config)
        except (ValueError, OSError):
            raise
        except Exception as error:
            raise ValueError(f"--config={self.source}: {in_one_line(error)}") from error
        if not isinstance(made, Experiment):
            raise ValueError(
                f"--config={self.source}: `experiment(config)` must return an"
                f" `Experiment`, got {made!r}: does it end with `return`?"
            )
        return made


class _Executed(flags.ArgumentParser[ConfigDict]):
    """A parser of --config, which executes the file once and copies its values."""

    file: ConfigFile

    def __init__(self, given: Iterable[str]):
        """Takes the names of all flags that are given."""
        self._keys = [key for name in given for key in name.split("config.", 1)[1:]]

    def parse(self, argument: str) -> ConfigDict:
        self.file = ConfigFile.load(argument)
        known = self.file.values
        for key in self._keys:
            if not any(f"{name}.".startswith(f"{key}.") for name in known):
                raise ValueError(f"it has no key {key!r}; it has {', '.join(known)}.")
        return self.file.with_values({}).lock()


def parse_flags(argv: list[str], *needed: str) -> ConfigFile:
    """Parses flags, and returns the file that --config names.

    An error ends the process with one line. It is an error if a flag in `needed` is
    missing, or if a flag that takes a list, such as an axis, is given twice.
    """
    names = [text.lstrip("-").partition("=")[0] for text in argv if text[:1] == "-"]
    flags.FLAGS["config"].parser = parser = _Executed(names)
    try:
        rest = flags.FLAGS(argv)
        for name, times in collections.Counter(names).items():
            value = flags.FLAGS[name].value if name in flags.FLAGS else None
            if times > 1 and (isinstance(value, list) or name == "config"):
                raise ValueError(
                    f"--{name} is given {times} times: give it once, and all values of"
                    f" an axis at once, as --{name}='(A,B)'."
                )
        for name in needed:
            if flags.FLAGS[name].value is None:
                raise ValueError(f"--{name} is missing.")
        if len(rest) > 1:
            raise ValueError(f"unknown argument {rest[1]!r}: flags start with --.")
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    return parser.file


def of_run(record: Mapping[str, Any]) -> tuple[ConfigFile, ConfigDict] | None:
    """The config file and the values of a run.json; None if no file made it."""
    source = record.get("source")
    if not source or not _parts(source)[0].exists():
        return None
    file = ConfigFile.load(source)
    return file, file.with_values(record["config"])


def executed(path: Path) -> ModuleType:
    """The module of a Python file, which is executed again only if it has changed."""
    written = path.stat()
    return _module(path.absolute(), written.st_mtime_ns, written.st_size)


@functools.cache
def _module(path: Path, *version: int) -> ModuleType:
    """The module of a version of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parts(source: str) -> tuple[Path, str]:
    """The path and the question of "FILE:question"."""
    file, colon, question = source.partition(".py:")
    return Path(f"{file}.py" if colon else file), question


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_kind(key: str, value: Any, of_file: Any) -> None:
    """Checks that a value is of the same kind as the value of the file."""
    given, kept = _listed(value), _listed(of_file)
    if isinstance(of_file, list) and not given:
        raise ValueError(f"config.{key} is empty: it is an axis, as (0.1,) is one.")
    if kept and all(map(is_number, kept)):
        kind, wrong = "numbers", [v for v in given if not is_number(v)]
        if not wrong and all(isinstance(v, int) for v in kept):
            kind = "whole numbers"
            wrong = [v for v in given if not math.isfinite(v) or v != round(v)]
    else:
        text = kept and all(isinstance(v, str) for v in kept)
        kind, wrong = "text", [v for v in given if text and not isinstance(v, str)]
    if wrong:
        raise ValueError(
            f"config.{key} must hold {kind}, as {_shown(of_file)}, got {wrong[0]!r}."
        )
    check_numbers(f"config.{key}", given)


def _shown(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, list) else repr(value)
