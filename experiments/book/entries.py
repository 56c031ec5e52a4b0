"""What the book says of each config: its answer, and each statement's verdict."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments import configs
from experiments.book.chapters import NOT_RUN, SYSTEMS
from experiments.results import claims, folder
from experiments.results.runs import Run
from experiments.training.experiment import Experiment

COLUMNS = ("config", "system", "question", "answer", "minutes", "ran_on", "statement")
COLUMNS += ("source", "setting", "said", "bound", "measured", "verdict", "tried")
"""Of the table: a row a statement, and one of a config without statements."""


class Entry(NamedTuple):
    """What the book says of a config.

    Attributes:
        config: its name, with its form: "k_async:pareto".
        question: that it asks.
        answer: of this run, or why there is none.
        judged: the statements of its sources.
        minutes: that the run took.
        figure: of the run; the book shows it.
        edited: whether statements were edited after the run began.
        ran_on: devices and the version of JAX, as "1 x cpu, jax 0.10.2".
    """

    config: str
    question: str
    answer: str
    judged: Sequence[claims.Judged] = ()
    minutes: float = 0.0
    figure: Path | None = None
    edited: bool = False
    ran_on: str = ""

    @property
    def system(self) -> str:
        """What it is about."""
        return SYSTEMS[self.config]

    @property
    def verdict(self) -> str:
        """About the system: of all its statements."""
        return verdict(self.answer, [own.verdict for own in self.judged])

    @property
    def command(self) -> str:
        """That runs the config alone."""
        return shlex.join(command(self.config, f"runs/{place(self.config)}"))


NOT_YET = "Not run yet."
"""The answer of a config that has no run."""


def verdict(answer: str, verdicts: Sequence[str]) -> str:
    """The verdict about a system.

    Example:
        >>> verdict("It helps.", ["reproduced", "undecided"]), verdict(NOT_YET, [])
        ('in part', 'not run yet')
    """
    if answer.startswith("Not run"):
        return "not run yet" if answer == NOT_YET else "not run here"
    return claims.together(verdicts) if verdicts else "no statement"


def place(config: str) -> str:
    """The folder of a config's run: "k_async:pareto" is in "k_async-pareto"."""
    return config.replace(":", "-")


def source(config: str) -> str:
    """The config file, with its form, as `--config` takes it."""
    name, _, form = config.partition(":")
    return f"configs/{name}.py" + f":{form}" * bool(form)


def command(config: str, workdir: str | Path) -> list[str]:
    """The command that runs a config."""
    return [
        *("python", "-m", "experiments.main"),
        f"--config={source(config)}",
        f"--workdir={workdir}",
    ]


FEW = {"seeds": 3, "tuning_seeds": 1}
"""How many seeds the small size reports, and how many choose, at most."""


def small(config: str) -> list[str]:
    """The flags that make a run small: few seeds, and what the config's `SMALL` says.

    A config that trains long has a mapping `SMALL` of values for a shorter training.
    """
    path = source(config)
    own = configs.own_config(path)
    fewer = {
        key: few
        for key, few in FEW.items()
        if isinstance(own.get(key), int) and own[key] > few
    }
    shorter = getattr(configs.module_of(path), "SMALL", {})
    return [f"--config.{key}={value}" for key, value in {**fewer, **shorter}.items()]


def of(config: str, workdir: Path) -> Entry:
    """The entry of a config, of the run in a folder if there is one."""
    module = configs.module_of(source(config))
    question = (module.__doc__ or "").strip().splitlines()[0]
    if config in NOT_RUN:
        return Entry(config, question, f"Not run here: {NOT_RUN[config]}.")
    path = workdir / place(config)
    info = folder.read_info(path)
    if not info.get("finished"):
        return Entry(config, question, NOT_YET)
    try:
        experiment = configs.rebuilt(info)
    except (TypeError, ValueError, KeyError) as error:
        why = f"the folder holds a run of another config ({error})"
        return Entry(config, question, f"Not run: {why}.")
    if experiment is None:
        return Entry(config, question, f"Not run: {info.get('source')} is not there.")
    run = Run.read(path)
    stated = info.get("published")
    return Entry(
        config,
        info["question"],
        _answer(experiment, run),
        claims.judge(experiment.published, run.found),
        info["wall_seconds"] / 60,
        _figure(experiment, path),
        stated not in (None, claims.digest(experiment.published)),
        f"{info['devices']}, jax {info['versions']['jax']}",
    )


def _answer(experiment: Experiment, run: Run) -> str:
    if experiment.answer is None:
        return "The config makes no answer."
    try:
        return experiment.answer(run.found)
    except Exception as error:  # a function of a config, on data it may not know
        return f"No answer: {type(error).__name__}: {error}"


def _figure(experiment: Experiment, path: Path) -> Path | None:
    """The first picture of a run, in the order of its experiment."""
    folder = path / "figures"
    pictures = (
        folder / f"{own.name}.{kind}"
        for own in experiment.figures
        for kind in ("svg", "png")
    )
    return next(filter(Path.exists, pictures), None)


def table(entries: Sequence[Entry]) -> pd.DataFrame:
    """All entries as one table, a row a statement."""
    rows = [row for entry in entries for row in _rows(entry)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).fillna("")


def _rows(entry: Entry) -> list[Mapping[str, str]]:
    first = {
        "config": entry.config,
        "system": entry.system,
        "question": entry.question,
        "answer": entry.answer,
        "minutes": f"{entry.minutes:.1f}",
        "ran_on": entry.ran_on,
    }
    stated = [
        first
        | {
            "statement": own.claim.text,
            "source": own.claim.source,
            "setting": own.claim.setting,
            "said": own.claim.said,
            "bound": own.claim.expected,
            "measured": own.shown,
            "verdict": own.verdict,
            "tried": own.claim.tried,
        }
        for own in entry.judged
    ]
    return stated or [first]
