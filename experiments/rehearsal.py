"""Checks, before training, that answer, figures and statements can read the tables."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from experiments.results import analysis
from experiments.results.analysis import AbsentError
from experiments.results.claims import Published, Record
from experiments.results.formulas import formula
from experiments.results.runs import Run
from experiments.results.selection import Selection
from experiments.results.tables import curve_rows, split
from experiments.running.cells import Counters
from experiments.running.program import Program, setting_names
from experiments.running.rows import Rows
from experiments.training.experiment import Experiment

_SEEDS = 2  # an interval needs two


def check_names(
    experiment: Experiment,
    programs: Sequence[Program],
    metrics: Mapping[int, Sequence[str]],
    stated: Sequence[Published | Record] | None = (),
) -> None:
    """Checks that a run will have the names that its selection, answer and page need.

    These are the settings, values of settings, and metrics that `tuned_by`, the answer,
    figures and statements read from tables with made-up numbers. Any other error may be
    due to these numbers, and is ignored.

    Args:
        experiment: the experiment.
        programs: all of its programs, whatever the shard.
        metrics: {`executable` of a program: its metrics}; a program that is not in it
            has the metrics of the first.
        stated: the statements and the records; None if these, the answer and the
            figures may use names that the run will not have.

    Raises:
        ValueError: if a name is missing; the error says who needs it.
    """
    run = _made_up(experiment, programs, metrics)
    with _naming("`tuned_by`", run):
        judged = run.selection.judged(run.results, run.curves)
        analysis.require(judged, run.selection.column)
    if stated is None:
        return
    readers = [("`answer`", effect) for effect in experiment.effects]
    readers += [(f"figure {figure.name!r}", figure) for figure in experiment.figures]
    for what, reader in readers:
        if hasattr(reader, "check"):
            with _naming(what, run):
                reader.check(run)
    for one in stated:
        if one.measure is not None:
            with _naming(f"statement {one.text!r}", run):
                one.measure(run)


@contextlib.contextmanager
def _naming(what: str, run: Run) -> Iterator[None]:
    try:
        yield
    except AbsentError as error:
        raise ValueError(f"{what}: {error}") from error
    except KeyError as error:
        if not _of_a_table(error):
            return
        columns = ", ".join(dict.fromkeys([*run.results, *run.curves]))
        raise ValueError(
            f"{what} needs {error.args[0]!r}, which the run will not have: name one of"
            f" its settings and metrics, {columns}."
        ) from error
    except Exception:  # the numbers are made up
        return


def _of_a_table(error: KeyError) -> bool:
    """Whether a table lacks a column: pandas raised the error, outside of a theory."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_theory = any(frame.f_code is formula.__code__ for frame in frames)
    return frames[-1].f_globals["__name__"].startswith("pandas.") and not of_theory


def _made_up(
    experiment: Experiment,
    programs: Sequence[Program],
    metrics: Mapping[int, Sequence[str]],
) -> Run:
    """The tables of the run, with 1 in place of each number that training gives."""
    first = next(iter(metrics.values()))
    results, curves = [], []
    for program in programs:
        shape = len(program.seeds), program.size
        numbers = {
            name: np.ones(shape) for name in metrics.get(program.executable, first)
        }
        zeros = np.zeros(shape, int)
        counters = Counters(zeros - 1, zeros[..., None], zeros, zeros, zeros)
        rows = Rows(program)
        results += rows.results(counters, numbers, numbers)
        curves += curve_rows(
            [rows.first(numbers)],
            program.seeds,
            program.settings(),
            program.job.evaluates,
        )
    seeds = experiment.seed_numbers[:_SEEDS]
    tuning_seeds = experiment.tuning_seed_numbers[:_SEEDS]
    kept = [
        [row for row in table if row["seed"] in (*seeds, *tuning_seeds)]
        for table in (results, curves)
    ]
    made = split(
        setting_names(programs),
        *kept,
        selection=Selection(experiment.tuned_axes, experiment.tuned_by),
        tuning_seeds=tuning_seeds,
    )
    return Run(*made)
