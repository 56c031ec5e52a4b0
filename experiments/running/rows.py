"""The numbers of a program as rows of plain values, for its records."""

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.running.cells import Chunk, Counters
from experiments.running.program import Program
from experiments.training.jobs import Job


class Rows:
    """The rows of one program."""

    def __init__(self, program: Program):
        self._program, self._job = program, program.job

    def first(self, evaluation: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The row of update 0, before the first chunk."""
        return self._at(0, {}, evaluation)

    def of_chunk(
        self,
        step: int,
        chunk: Chunk,
        counters: Counters,
        seconds: float,
        evaluation: Mapping[str, np.ndarray] | None,
    ) -> dict[str, Any]:
        """The row of the chunk that ends with an update.

        Args:
            step: the update.
            chunk: the report of the chunk.
            counters: the counters of the state.
            seconds: the time of the chunk.
            evaluation: {metric: [seeds, cells]} after the chunk, if there was one.
        """
        job, live = self._job, counters.diverged_step < 0
        begun = step - len(chunk.loss)
        there = np.isfinite(chunk.loss)
        for s, end in enumerate(job.ends):
            there[max(end - begun, 0) :, s] = False  # the seed has ended
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an empty mean is nan
            losses = np.nanmean(np.where(there, chunk.loss, np.nan), axis=0)
        seen = live & np.isfinite(losses)
        row = {
            "train_loss": _json_number(np.median(losses[seen])) if seen.any() else None,
            "not_finite": int((~live).sum()),
            **staleness_summary(counters.staleness_counts.sum((0, 1))),
            "dropped": float(dropped_share(job, counters, step).mean()),
            "dropped_in_row": int(counters.dropped_in_row.max()),
            "updates_per_second": len(chunk.loss) / seconds,
            "losses": _numbers(losses),
        }
        return self._at(step, row, evaluation)

    def results(
        self,
        counters: Counters,
        initial: Mapping[str, np.ndarray],
        final: Mapping[str, np.ndarray],
    ) -> list[dict[str, Any]]:
        """The rows for results.csv, one per seed and cell.

        A cell has diverged if its loss is not finite at some update or at the end. A
        cell ended higher if it diverged, or if its training loss is higher at the end
        than at the start: a bounded loss can end higher too.

        Args:
            counters: the counters of the last state.
            initial: {metric: [seeds, cells]} before the first update.
            final: {metric: [seeds, cells]} after the last update.
        """
        job, rows = self._job, []
        dropped = dropped_share(job, counters, job.updates)
        ends = job.ends or (job.updates,) * len(self._program.seeds)
        settings = self._program.settings()
        # most rows are of the same update
        examples = functools.cache(job.examples)
        seconds = job.seconds and functools.cache(job.seconds)
        for s, seed in enumerate(self._program.seeds):
            for c, setting in enumerate(settings):
                stopped = int(counters.diverged_step[s, c])
                done = ends[s] if stopped < 0 else stopped
                counts = counters.staleness_counts[s, c]
                before, after = (x["train_loss"][s, c] for x in (initial, final))
                diverged = stopped >= 0 or not math.isfinite(after)
                row = setting | {
                    "seed": seed,
                    "updates": done,
                    "examples": int(examples(done)[s]),
                    "diverged": int(diverged),
                    "diverged_update": stopped,
                    "ended_higher": int(diverged or not after <= before),
                    **{name: float(values[s, c]) for name, values in final.items()},
                    **staleness_summary(counts),
                    "dropped": float(dropped[s, c]),
                    "dropped_in_row": int(counters.dropped_in_row[s, c]),
                }
                if seconds is not None:
                    row["seconds"] = float(seconds(done)[s])
                rows.append(row)
        return rows

    def _at(
        self,
        step: int,
        row: Mapping[str, Any],
        evaluation: Mapping[str, np.ndarray] | None,
    ) -> dict[str, Any]:
        """A row with the clocks and the evaluation."""
        row = {"program": self._program.name, "step": step, **row}
        row |= self._job.clocks(step)
        if evaluation is not None:
            row["evaluation"] = {k: _numbers(v) for k, v in evaluation.items()}
        return row


def staleness_summary(counts: np.ndarray) -> dict[str, float]:
    """Mean, 99th percentile and maximum of staleness from counts [depth + 1]."""
    total = counts.sum()
    if total == 0:
        return {"staleness_mean": 0.0, "staleness_p99": 0, "staleness_max": 0}
    ages = np.arange(len(counts))
    return {
        "staleness_mean": float(ages @ counts / total),
        "staleness_p99": int(np.searchsorted(np.cumsum(counts), 0.99 * total)),
        "staleness_max": int(ages[counts > 0].max()),
    }


def dropped_share(job: Job, counters: Counters, step: int) -> np.ndarray:
    """The refused share of the gradients that arrived until an update [seeds, cells].

    Gradients that a cluster's server refuses never reach the rules of the optimizer.
    """
    by_server = 0.0 if job.dropped is None else job.dropped(step)[:, None]
    by_rules = counters.dropped / np.maximum(counters.arrived, 1)
    return by_server + (1.0 - by_server) * by_rules


def _json_number(value: Any) -> float | None:
    """A number, or None in its place if it is not finite: JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def _numbers(table: Any) -> list[list[float | None]]:
    """A table without NaN, [seeds][cells]."""
    return [[_json_number(value) for value in row] for row in np.asarray(table)]
