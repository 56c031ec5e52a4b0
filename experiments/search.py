"""Searches the optimum of every series of an experiment, before it is reported."""

import collections
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.host import processes, progress
from experiments.host.folder import RunFolder
from experiments.results import analysis, tables
from experiments.results.selection import Selection
from experiments.running import families, searching
from experiments.running.ledger import Ledger
from experiments.running.program import Program, label
from experiments.running.search_scores import Asking, Point
from experiments.running.searching import Outcome
from experiments.running.trainer import Trainer
from experiments.running.trials import Asked, Trials
from experiments.training.experiment import FIRST_SEARCH_SEED, Arm, Experiment

_ARMS = 200
_SEEDS_OF_AN_ARM = 5_000_000
"""Each arm has 5,000,000 seeds. The seeds of 200 arms are below 2^31."""


class Optimum(NamedTuple):
    """The optimum of a series.

    Attributes:
        series: the labels, and the values of the axes that are not searched.
        values: {searched number: its value at the optimum}.
        outcome: the outcome of the search.
    """

    series: Mapping[str, Any]
    values: Mapping[str, float]
    outcome: Outcome


def at_optima(
    experiment: Experiment, trainers: Sequence[Trainer], place: RunFolder
) -> tuple[list[Trainer], pd.DataFrame | None]:
    """Searches all series with a `Range`.

    Trainings that search.csv of the folder has are not repeated.

    Returns:
        The trainers of programs whose cells are the series at their optima, and at the
        optima of `also_at`; and a table with a row for each series: its optimum, and
        whether it is found. The table is None if no program has a `Range`.
    """
    programs = [trainer.program for trainer in trainers]
    if not any(program.searched for program in programs):
        return [*trainers], None
    searcher = _Searcher(experiment, programs, place)
    searcher.search()
    reported = [
        trainer.for_program(searcher.optimal(trainer.program))
        if trainer.program.searched
        else trainer
        for trainer in trainers
    ]
    return reported, searcher.table()


def check_most(programs: Sequence[Program], most: int, place: RunFolder) -> None:
    """Checks that `most` is no less than the trainings in the folder of the same run.

    A search with a larger `most` begins with all trainings of a smaller `most`.

    Raises:
        ValueError: if `most` is less than the trainings of a series in the folder.
    """
    before = place.info.get("search", {}).get("most", 0)
    if most >= before:
        return
    ledger = _ledger(programs, place)
    ledger.take(ledger.text())
    of_series = collections.Counter(key[:2] for key in ledger.scores)
    # the file may have more: a series was searched again from a relative's optimum
    trained = min(before, max(of_series.values(), default=0))
    if most < trained:
        raise ValueError(
            f"`most` of `Search` must be at least {trained}, the trainings of a series"
            f" in {place.search}, got {most}: give at least {trained}, or choose"
            " another --workdir."
        )


class _Searcher:
    """Searches the series of programs; a program that others contain comes first."""

    def __init__(
        self, experiment: Experiment, programs: Sequence[Program], place: RunFolder
    ):
        self._experiment, self._place = experiment, place
        self._programs = sorted(
            (program for program in programs if program.searched),
            key=lambda program: _depth(program, programs),
        )
        self._first_seeds = first_seeds(experiment.all_arms)
        self._of: dict[str, list[Optimum]] = {}
        self._begun: dict[tuple[str, int], list[Point]] = {}
        self._rivals: dict[tuple[str, int], list[Point]] = {}
        self._ledger = _ledger(self._programs, place)
        self._trials = Trials(
            place.checkpoints,
            self._judged,
            metrics=experiment.metrics,
            on_the_way=not isinstance(experiment.tuned_by, str),
        )

    def search(self) -> None:
        """Searches the programs one after another, until no series has a new rival.

        A series that is contained is searched first, and the series that contain it
        begin at its optimum. Then relatives try each other's optima. The relatives of
        a series are the series that contain it, and the series that it contains. Of the
        series that search the same numbers, it tries the optima that lie where its own
        search has tried nothing.
        """
        first = processes.is_first()
        read = processes.together(lambda: self._ledger.text() if first else "")
        self._ledger.take(processes.of_all(read)[0])  # process 0 reads for all
        self._search(self._programs)
        while challenged := self._meet_rivals():
            self._search(challenged)  # known trainings are not repeated

    def _search(self, programs: Sequence[Program]) -> None:
        for number, program in enumerate(programs, 1):
            name = f"{number} of {len(programs)}: " * (len(programs) > 1) + program.name
            most = program.size * self._experiment.effort.most
            self._of[program.name] = self._optima(
                program, progress.SearchMeter(name, most)
            )
            processes.together(self._place.upload)  # process 0 uploads to a bucket

    def optimal(self, program: Program) -> Program:
        """The program whose cells are its series at their optima and at `also_at`."""
        cells = []
        for row, optimum in zip(program.rows, self._of[program.name], strict=True):
            optima = [optimum]
            for values in self._experiment.also_at:
                other, i = families.at(program, optimum.series, values, self._programs)
                optima.append(self._of[other.name][i])
            for one in optima:
                cell = row | _numbers_of(program, one)
                if cell not in cells:
                    cells.append(cell)
        return program.with_cells(cells)

    def table(self) -> pd.DataFrame:
        """A table with a row for each series: its optimum, and whether it is found."""
        rows = [
            {**one.series, **one.values, **one.outcome._asdict()}
            for optima in self._of.values()
            for one in optima
        ]
        table = pd.DataFrame(rows).drop(columns=["point", "tried"])
        return table.assign(why=table["why"].replace("", "found"))

    def _optima(self, program: Program, shown: progress.SearchMeter) -> list[Optimum]:
        """The optima of all series of a program, which are searched at once."""
        askings = [
            _numbered(number, self._asking(program, number, series, axes))
            for number, (series, axes) in enumerate(
                zip(program.series(), families.fixed(program), strict=True)
            )
        ]
        outcomes = self._answered(program, searching.together(askings), shown)
        return [
            Optimum(series, dict(zip(program.searched, one.point, strict=True)), one)
            for series, one in zip(program.series(), outcomes, strict=True)
        ]

    def _meet_rivals(self) -> list[Program]:
        """Adds optima of other series to the rivals of each series.

        Returns:
            The programs of the series that have a new rival.
        """
        challenged = {}
        for program in self._programs:
            for number, axes in enumerate(families.fixed(program)):
                relatives = [
                    *families.nested(program, axes, self._programs),
                    *families.containing(program, axes, self._programs),
                ]
                rivals = self._rivals.setdefault((program.name, number), [])
                outcome = self._of[program.name][number].outcome
                others = families.with_same_numbers(program, number, self._programs)
                points = self._points(program, relatives) + searching.untried(
                    program.searched, self._points(program, others), outcome.tried
                )
                for point in points:
                    if point != outcome.point and point not in rivals:
                        rivals.append(point)
                        challenged[program.name] = program
        return [*challenged.values()]

    def _asking(
        self,
        program: Program,
        number: int,
        series: Mapping[str, Any],
        axes: Mapping[str, Any],
    ) -> Asking:
        """The search of a series, which begins also at the optima that it contains.

        Its seeds are the same in all series of an arm. Another arm has other seeds, so
        that two arms with the same training are searched independently.
        """
        key = program.name, number
        if key not in self._begun:  # the search with rivals begins at the same points
            pairs = families.nested(program, axes, self._programs)
            self._begun[key] = self._points(program, pairs)
        return searching.find(
            program.searched,
            self._experiment.effort,
            f"{series}",
            first_seed=self._first_seeds[program.arm],
            nested=self._begun[key],
            rivals=self._rivals.get(key, ()),
        )

    def _points(
        self, program: Program, pairs: Iterable[tuple[Program, int]]
    ) -> list[Point]:
        """The optima of series of other programs, as points of this program."""
        points = []
        for other, i in pairs:
            known = program.contains.get(other.arm, {})
            numbers = _numbers_of(program, self._of[other.name][i], known)
            points.append(tuple(numbers.values()))
        return [point for point in points if None not in point]

    def _answered(
        self, program: Program, asking: Asking, shown: progress.SearchMeter
    ) -> list[Outcome]:
        """The outcomes of a search, after training all points that it asks for."""
        known = self._ledger.scores
        try:
            asked = next(asking)
            while True:
                shown.begin_round()
                self._train(program, asked, shown)
                asked = asking.send([known[program.name, *one] for one in asked])
        except StopIteration as end:
            return end.value

    def _train(
        self, program: Program, asked: Sequence[Asked], shown: progress.SearchMeter
    ) -> None:
        for whole in self._trials.calls(asked):
            known = self._ledger.scores
            call = [one for one in whole if (program.name, *one) not in known]
            if call:
                scores = self._trials.trained(program, call)
                trained = program.name, call, scores
                processes.together(lambda these=trained: self._ledger.add(*these))
            shown.update(len(whole), len(call))

    def _judged(
        self, program: Program, final: Mapping[str, Any], rows: Sequence[Any]
    ) -> Any:
        """The scores that the search compares, of all cells under one seed."""
        by = self._experiment.tuned_by
        cells = range(program.size)
        if isinstance(by, str):
            frame = {name: values[0] for name, values in final.items()}
            values = analysis.derived(pd.DataFrame(frame))[by]
        else:
            of_rows = tables.curve_rows(
                [row | program.job.clocks(row["step"]) for row in rows],
                program.seeds,
                [{"cell": cell} for cell in cells],
                program.job.evaluates,
            )
            results = pd.DataFrame({"cell": cells, "seed": program.seeds[0]})
            curves = analysis.derived(pd.DataFrame(of_rows))
            judged = Selection(by=by).judged(results, curves)
            values = judged[by.name]
        return self._experiment.effort.score(values)


def _ledger(programs: Sequence[Program], place: RunFolder) -> Ledger:
    """The ledger of the trainings of these programs."""
    return Ledger(place, {one.name: [*one.searched] for one in programs})


def _numbers_of(
    program: Program, optimum: Optimum, known: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """An optimum as a point of a program, {number: value}.

    Numbers that the optimum lacks have the value in `known`, or else are off.
    """
    values = {**(known or {}), **optimum.values}
    return {
        axis: values.get(axis, searched.off)
        for axis, searched in program.searched.items()
    }


def _numbered(number: int, asking: Asking) -> Any:
    """A search that gives each of its trials the number of the series."""
    answer = None
    while True:
        try:
            trials = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield [(number, trial) for trial in trials]


def first_seeds(arms: Sequence[Arm]) -> list[int]:
    """The first seed of the searches of each arm; 200 arms have no seed in common.

    The first seed depends on the labels of the arm, and seldom on other arms: an arm
    usually keeps its seeds when other arms are added.
    """
    numbers: list[int] = []
    for arm in arms:
        labels = sorted((name, label(value)) for name, value in arm.labels.items())
        number = zlib.crc32(repr(labels).encode()) % _ARMS
        while number in numbers and len(numbers) < _ARMS:
            number = (number + 1) % _ARMS
        numbers.append(number)
    return [FIRST_SEARCH_SEED + number * _SEEDS_OF_AN_ARM for number in numbers]


def _depth(program: Program, programs: Sequence[Program]) -> int:
    """The length of the longest chain of arms that a program contains."""
    of_arm = {one.arm: one for one in programs}
    below = [of_arm[arm] for arm in program.contains if arm in of_arm]
    return 1 + max((_depth(one, programs) for one in below), default=-1)
