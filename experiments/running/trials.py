"""The trainings of a search: a fixed number of cells at a time, for each seed."""

import collections
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from experiments.host import checkpoints, processes
from experiments.running import loop
from experiments.running.program import Program
from experiments.running.search_scores import Trial
from experiments.running.trainer import Trainer

_ON_A_CPU = 4
_ELSEWHERE = 16
"""Cells of a call: more cells would not be faster, and calls are seldom full.

A search of two numbers, of which one can be off, asks for 457 trainings: in 137 calls
of 4 cells, 113 of 16, or 111 of 64, where 94 % of the cells are copies that fill the
calls. Three searches make 367, 300 and 294 calls."""

_KEPT_BYTES = 2**28  # the batches to keep for later trainings under the same seeds

Asked = tuple[int, Trial]
"""The number of a series of a program, and a point and a seed of it."""

Judge = Callable[[Program, Mapping[str, Any], Sequence[Mapping[str, Any]]], Any]
"""(program, last evaluation [1, cells], rows of all) -> scores [cells]."""


class Trials:
    """Trains points of series; programs may share an executable."""

    def __init__(
        self,
        folder: epath.Path,
        judge: Judge,
        *,
        metrics: Mapping[str, Callable[..., Any]],
        on_the_way: bool,
    ):
        """Takes the arguments that all programs share.

        Args:
            folder: the folder of checkpoints.
            judge: computes the scores.
            metrics: further metrics, as in `Trainer`.
            on_the_way: whether the judge uses evaluations before the last.
        """
        self._folder, self._judge = folder, judge
        self._metrics, self._on_the_way = metrics, on_the_way
        self._trainers: dict[int, Trainer] = {}
        self._of_seeds: collections.OrderedDict[Any, Trainer] = (
            collections.OrderedDict()
        )
        cpu = jax.default_backend() == "cpu"
        self.width = _ON_A_CPU if cpu else _ELSEWHERE

    def calls(self, asked: Sequence[Asked]) -> list[list[Asked]]:
        """Divides the points into calls of one seed, which are trained together."""
        of_seed: dict[int, list[Asked]] = {}
        for one in asked:
            of_seed.setdefault(one[1].seed, []).append(one)
        return [
            those[i : i + self.width]
            for those in of_seed.values()
            for i in range(0, len(those), self.width)
        ]

    def trained(self, program: Program, call: Sequence[Asked]) -> list[float]:
        """Trains a call; returns the scores of its points.

        The score of a cell that diverged is nan, except for the time to a value: a cell
        that reached the value counts even if it diverged later.
        """
        cells = [
            program.rows[series] | dict(zip(program.searched, trial.point, strict=True))
            for series, trial in call
        ]
        cells += cells[-1:] * (self.width - len(cells))
        of_seed = self._trainer(program, call[0][1].seed)
        trainer = of_seed.for_program(of_seed.program.with_cells(cells))
        rows, last = [], []
        name = zlib.crc32(repr((program.name, call[0][1].seed, cells)).encode())
        folder = self._folder / f"search-{name:08x}"
        # most calls are too short for a checkpoint
        saved = checkpoints.Checkpoints(folder)

        def report(step, chunk, counters, seconds, metrics, ended):
            if metrics is not None and self._on_the_way:
                rows.append({"step": step, "evaluation": metrics})
            last[:] = metrics, counters.diverged_step >= 0

        def save(step, state):
            # a checkpoint has no evaluations: a call that needs them begins anew; a
            # finished call needs only its score
            if not self._on_the_way and step < trainer.program.job.updates:
                saved.save(step, state)

        with saved:
            # a host may see another host's file late: all restore if one sees it
            (there,) = processes.any_of(folder.exists())
            state = saved.restore(trainer.shapes()) if there else None
            if state is None:
                state = trainer.init()
            if self._on_the_way:
                first = jax.device_get(trainer.evaluate(state))
                rows.append({"step": 0, "evaluation": first})
            loop.run(
                trainer,
                state,
                save=save,
                wait=saved.wait,
                report=report,
                alone=False,
            )
        saved.remove()
        final, diverged = last
        scores = self._judge(trainer.program, final, rows)
        of_cells = zip(scores, diverged[0], strict=True)
        each = [
            float("nan") if bad and not self._on_the_way else float(score)
            for score, bad in of_cells
        ]
        return each[: len(call)]

    def _trainer(self, program: Program, seed: int) -> Trainer:
        """The trainer of a program for a seed; compiled anew if its room is small."""
        key = program.name, seed
        if key in self._of_seeds:
            self._of_seeds.move_to_end(key)
            return self._of_seeds[key]
        first = self._trainers.get(program.executable)
        room = program.job.room if first is None else first.program.job.room
        cells = program.rows[:1] * self.width
        made = program.with_cells(cells, (seed,), room)
        fits = first is not None and room.has_room_for(made.job.room.needs)
        if not fits:
            made = program.with_cells(cells, (seed,), made.job.room.roomy())
        if not self._on_the_way:
            made = made.evaluated_once()
        if not fits:
            first = Trainer(made, metrics=self._metrics)
            self._trainers[program.executable] = first
        self._of_seeds[key] = first.for_program(made)
        # each trainer keeps its batches
        most = max(1, _KEPT_BYTES // first.feed.bytes)
        while len(self._of_seeds) > most:
            self._of_seeds.popitem(last=False)
        return self._of_seeds[key]
