"""The entry of a config in the book, as plain data: its answer and statements."""

import enum
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments import statements
from experiments.book.chapters import CHAPTERS, COUNTED_WITH, NOT_RUN, SYSTEMS
from experiments.config_files import ConfigFile
from experiments.host.folder import RunFolder
from experiments.page import Picture, Statement
from experiments.results import claims, effects
from experiments.results.estimates import holm
from experiments.results.runs import Run
from experiments.training.experiment import Experiment

_OF_ALL = ("config", "system", "question", "status", "answer", "reason", "minutes")
_OF_ALL += ("ran_on",)
COLUMNS = _OF_ALL + Statement._fields
"""The columns of the table, with a row for each statement, or for a config without."""


DECIDED = (claims.REPRODUCED, claims.SAME_DIRECTION, claims.NOT_REPRODUCED)
_ALPHA = 0.05
SURE = _ALPHA / len(SYSTEMS)
"""A headline with at most this p-value is decided among all headlines (Bonferroni)."""


class Status(enum.StrEnum):
    """Whether the book has a run of a config."""

    RUN = "run"
    NOT_YET = "not run yet"
    NOT_HERE = "not run here"


class Entry(NamedTuple):
    """The part of the book about one config.

    Attributes:
        config: the name of the config, with its form: "k_async:pareto".
        question: the question of the config.
        status: whether the book has a run of the config.
        answer: the answer of the run.
        reason: why there is no answer.
        statements: the statements of its sources, with their verdicts.
        minutes: the time that its runs took.
        ran_on: devices and the version of JAX, as "1 x cpu, jax 0.10.2".
        edited: whether statements were edited after the run began.
        picture: the first figure of the run.
        among_all: the result of a correction over all headlines of the book, as text;
            see `corrected`.
    """

    config: str
    question: str
    status: Status
    answer: str = ""
    reason: str = ""
    statements: Sequence[Statement] = ()
    minutes: float = 0.0
    ran_on: str = ""
    edited: bool = False
    picture: Picture | None = None
    among_all: str = ""

    @property
    def system(self) -> str:
        """The system that the config is about."""
        return SYSTEMS[self.config]

    @property
    def shown(self) -> str:
        """The answer, or a text that there is no answer, with the reason.

        Example:
            >>> Entry("dana", "Why?", Status.NOT_HERE, reason="it needs a pod").shown
            'Not run here: it needs a pod.'
        """
        if self.answer:
            return self.answer
        state = "No answer" if self.status is Status.RUN else self.status.capitalize()
        return f"{state}: {self.reason}." if self.reason else f"{state}."

    @property
    def verdict(self) -> str:
        """The verdict of the headline, or a text that says why there is none.

        Example:
            >>> Entry("dana", "Why?", Status.NOT_YET).verdict
            'not run yet'
            >>> Entry("tradeoff", "Why?", Status.RUN).verdict
            'counted with n-softsync'
        """
        if self.status is not Status.RUN:
            return str(self.status)
        if self.config in COUNTED_WITH:
            return f"counted with {SYSTEMS[COUNTED_WITH[self.config]]}"
        return self.statements[0].verdict if self.statements else "no statement"

    @property
    def headline(self) -> Statement | None:
        """The first statement, which decides about the system; None if it does not.

        A demonstration decides nothing, and neither does a config whose abstract counts
        with another config.
        """
        first = next(iter(self.statements), None)
        if self.config in COUNTED_WITH or first is None:
            return None
        return None if first.verdict == claims.DEMONSTRATION else first

    @property
    def needs_seeds(self) -> bool:
        """Whether more seeds may decide the headline, alone or among all.

        Example:
            >>> fields = dict.fromkeys(Statement._fields, "")
            >>> stated = Statement(**fields | {"verdict": "reproduced", "p": "0.01"})
            >>> Entry("dana", "?", Status.RUN, statements=[stated]).needs_seeds
            True
        """
        first = self.headline
        if first is None or self.status is not Status.RUN:
            return False
        if first.verdict in DECIDED:
            return bool(first.p) and float(first.p) > SURE
        return first.verdict == claims.UNDECIDED

    @property
    def further(self) -> list[Statement]:
        """The statements that may fail, but do not decide about the system."""
        return [
            one
            for one in self.statements
            if one is not self.headline and one.verdict != claims.DEMONSTRATION
        ]

    @property
    def source(self) -> str:
        """The config file, as `--config` takes it."""
        return source(self.config)

    @property
    def command(self) -> str:
        """The shell command that runs only this config."""
        return shlex.join(command(self.config, f"runs/{place(self.config)}"))


def in_chapters(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """{chapter: its entries} in the order of the book, without empty chapters."""
    known = {entry.config: entry for entry in entries}
    chapters = {
        title: [known[config] for config in names if config in known]
        for title, names in CHAPTERS.items()
    }
    return {title: members for title, members in chapters.items() if members}


def corrected(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with verdicts of headlines that are corrected for their number.

    The p-values of all headlines that have one get Holm's correction. A headline whose
    corrected p-value is above 5 %, or that has no p-value, becomes undecided.

    Example:
        >>> fields = dict.fromkeys(Statement._fields, "") | {"verdict": "reproduced"}
        >>> stated = [[Statement(**fields | {"p": p})] for p in ("0.02", "0.04")]
        >>> both = [Entry("dana", "?", Status.RUN, statements=each) for each in stated]
        >>> [(one.verdict, one.among_all) for one in corrected(both)][0]
        ('reproduced', 'p = 0.04 among the 2 headlines that have one')
        >>> [(one.verdict, one.among_all) for one in corrected([*both, both[1]])][1]
        ('undecided', 'decided alone, but p = 0.08 among the 3 headlines that have one')
    """
    with_p = {n: one.headline.p for n, one in enumerate(entries) if one.headline}
    tested = {n: float(p) for n, p in with_p.items() if p}
    adjusted = holm(np.array([*tested.values()]))
    p_values = dict(zip(tested, adjusted, strict=True))
    return [
        _among(entry, p_values.get(n), len(tested)) for n, entry in enumerate(entries)
    ]


def _among(entry: Entry, p: float | None, count: int) -> Entry:
    if entry.headline is None or entry.headline.verdict not in DECIDED:
        return entry
    among = f"p = {p or 0:.3g} among the {count} headlines that have one"
    if p is not None and p <= _ALPHA:
        return entry._replace(among_all=among)
    alone = entry.headline.p
    if not alone:
        why = "decided by its interval, without a p-value"
    elif float(alone) > _ALPHA:
        why = f"decided by its interval, but p = {alone} for three looks"
    else:
        why = f"decided alone, but {among}"
    undecided = entry.headline._replace(verdict=claims.UNDECIDED)
    return entry._replace(
        statements=(undecided, *entry.statements[1:]),
        among_all=why,
    )


def place(config: str, times: int = 1) -> str:
    """The name of the folder for a run of a config with `times` as many seeds.

    Example:
        >>> place("k_async:pareto"), place("dana", 2)
        ('k_async-pareto', 'dana-x2')
    """
    return config.replace(":", "-") + f"-x{times}" * (times > 1)


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
"""The largest numbers of reported seeds and of tuning seeds in the small size."""

COARSE = {"tolerance": 0.5}
"""The tolerance of the searches in the small size."""


def small(config: str) -> list[str]:
    """The flags that make a run small: few seeds, a coarse search, and `SMALL`.

    A config that trains long has a mapping `SMALL` of values for a shorter training.
    """
    file = ConfigFile.load(source(config))
    values = file.values
    fewer = {
        key: few
        for key, few in FEW.items()
        if isinstance(values.get(key), int) and values[key] > few
    }
    coarse = {key: value for key, value in COARSE.items() if key in values}
    changed = fewer | coarse | getattr(file.module, "SMALL", {})
    return [f"--config.{key}={value}" for key, value in changed.items()]


def further(config: str, times: int) -> list[str]:
    """The flags that give a run `times` as many seeds as the config has."""
    seeds = ConfigFile.load(source(config)).values["seeds"]
    return [f"--config.seeds={times * seeds}"] if times > 1 else []


def entry_of(config: str, workdir: Path) -> Entry:
    """The entry of a config, with its finished run that has the most seeds, if any."""
    file = ConfigFile.load(source(config))
    question = (file.module.__doc__ or "").strip().splitlines()[0]
    if config in NOT_RUN:
        return Entry(config, question, Status.NOT_HERE, reason=NOT_RUN[config])
    looks = [workdir / place(config, times) for times in claims.LOOKS]
    finished = [path for path in looks if RunFolder(path).info.get("finished")]
    if not finished:
        published = statements.about(file, file.config).published
        claimed = tuple(map(_not_yet, published))
        return Entry(config, question, Status.NOT_YET, statements=claimed)
    path = finished[-1]
    info = RunFolder(path).info
    try:
        experiment, stated = statements.of_run(info)
    except (TypeError, ValueError, KeyError) as error:
        why = f"the folder holds a run of another config ({error})"
        return Entry(config, question, Status.NOT_YET, reason=why)
    if experiment is None:
        why = f"{info.get('source')} is missing"
        return Entry(config, question, Status.NOT_YET, reason=why)
    run = Run.read(path)
    answer, reason = _answer(experiment, run)
    return Entry(
        config,
        experiment.question,
        Status.RUN,
        answer,
        reason,
        tuple(map(Statement.of, claims.judge(stated.published, run))),
        info["wall_seconds"] / 60,  # with the time of the looks before
        f"{info['devices']}, jax {info['versions']['jax']}",
        info.get("published") not in (None, "", claims.digest(stated.published)),
        _picture(config, experiment, path),
    )


def _not_yet(claim: claims.Published) -> Statement:
    """The statement of a claim, for a config that has no run."""
    verdict = claims.NOT_TESTED if claim.measure is None else str(Status.NOT_YET)
    why = claim.tried if claim.measure is None else ""
    return Statement.of(claims.Judged(claim, None, verdict, why))


def _answer(experiment: Experiment, run: Run) -> tuple[str, str]:
    """The answer of a run, and the reasons why parts of it are missing."""
    made = effects.answers(run, experiment.effects)
    texts = [one.text for one in made if isinstance(one, effects.Answer)]
    return " ".join(texts), "; ".join(one for one in made if isinstance(one, str))


def _picture(config: str, experiment: Experiment, path: Path) -> Picture | None:
    """The first figure of the experiment of which a run has a file; else None."""
    folder = path / "figures"
    for figure in experiment.figures:
        for kind in (".svg", ".png"):
            file = folder / f"{figure.name}{kind}"
            if file.exists():
                text = f"{SYSTEMS[config]}: {figure.name.replace('_', ' ')}"
                return Picture.of(text, file.read_bytes(), kind)
    return None


def table(entries: Iterable[Entry]) -> pd.DataFrame:
    """A table of all entries, with a row for each statement; all cells are text."""
    rows = [row for entry in entries for row in _rows(entry)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(entry: Entry) -> list[Mapping[str, str]]:
    first = dict.fromkeys(COLUMNS, "")
    first |= {name: str(getattr(entry, name)) for name in _OF_ALL}
    first["minutes"] = f"{entry.minutes:.2f}"
    return [first | statement._asdict() for statement in entry.statements] or [first]


def from_table(table: pd.DataFrame) -> list[Entry]:
    """The entries of a table that `table` made, without their pictures."""
    entries = []
    for _, rows in table.groupby("config", sort=False):
        first = rows.iloc[0]
        of_all = {name: first[name] for name in _OF_ALL if name != "system"}
        of_all["status"] = Status(first["status"])
        of_all["minutes"] = float(first["minutes"])
        texts = rows[list(Statement._fields)].to_numpy()
        statements = tuple(Statement(*fields) for fields in texts if fields[0])
        entries.append(Entry(**of_all, statements=statements))
    return entries
