"""The arrays of recorded times: checked, and not to be changed."""

import math

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src.ground import checks

ROUNDING = 1e-3  # seconds, of a clock that is logged in milliseconds
MOST_SECONDS = 1e8  # three years: larger numbers are times of a clock


def as_times(seconds: ArrayLike, gaps: bool) -> np.ndarray:
    """Positive seconds, float64 [W, T]; with `gaps` some may be nan."""
    table = checks.as_reals("seconds", seconds)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"`seconds` must have shape [W, T], got {table.shape}.")
    gap = np.isnan(table)
    sound = (table > 0) & (table <= MOST_SECONDS)
    must = f"be positive, and at most {MOST_SECONDS:g} s"
    check_entries("seconds", table, gap | sound, must, "give durations in seconds")
    (absent,) = np.nonzero(gap.all(axis=1))
    if absent.size and gaps:
        raise ValueError(
            "`seconds` must have a task of each worker, got none of worker"
            f" {absent[0]}: leave this worker out."
        )
    if not gaps:
        remedy = "give `starts`, or leave out this task of all workers"
        check_entries("seconds", table, ~gap, "have no gap without `starts`", remedy)
    return table


def check_entries(
    name: str, table: np.ndarray, sound: np.ndarray, must: str, remedy: str
) -> None:
    """Refuses the first entry that is not sound."""
    if not sound.all():
        worker, task = np.argwhere(~sound)[0].tolist()
        raise ValueError(
            f"`{name}` must {must}, got {table[worker, task]} for task {task} of worker"
            f" {worker}: {remedy}."
        )


def as_starts(starts: ArrayLike, seconds: np.ndarray) -> np.ndarray:
    gap = np.isnan(seconds)
    table = checks.as_reals("starts", starts)
    if table.shape != gap.shape:
        raise ValueError(f"`starts` must have shape {gap.shape}, got {table.shape}.")
    sound = (table >= 0) & (table <= MOST_SECONDS)
    must = f"lie in 0 .. {MOST_SECONDS:g} s"
    remedy = "give seconds since the start of the log, no clock's time"
    check_entries("starts", table, gap | sound, must, remedy)
    must, remedy = "increase from task to task", "sort the tasks of each worker"
    later = increases(np.where(gap, math.nan, table))
    check_entries("starts", table, later, must, remedy)
    must = "not be before the worker's last task has ended"
    remedy = "give `seconds` of one task alone, in the unit of `starts`"
    check_entries("starts", table, ~overlaps(table, seconds), must, remedy)
    return table


def overlaps(starts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Whether a task [W, T] begins before the worker's earlier tasks are 99 % done."""
    ended = starts + 0.99 * seconds - ROUNDING
    latest = np.maximum.accumulate(np.nan_to_num(ended, nan=-math.inf), axis=1)
    before = np.pad(latest[:, :-1], ((0, 0), (1, 0)), constant_values=-math.inf)
    return np.where(np.isnan(seconds), math.inf, starts) < before


def increases(starts: np.ndarray) -> np.ndarray:
    """Whether a task [W, T] begins after the worker's earlier tasks, or is a gap."""
    gap = np.isnan(starts)
    # a gap is as late as the task before
    latest = np.maximum.accumulate(np.where(gap, -math.inf, starts), axis=1)
    before = np.pad(latest[:, :-1], ((0, 0), (1, 0)), constant_values=-math.inf)
    return gap | (latest > before)


def as_steps(steps: ArrayLike | None, tasks: int) -> np.ndarray:
    if steps is None:
        return np.arange(tasks)
    numbers = np.asarray(steps)
    right = numbers.dtype.kind in "iu" and numbers.shape == (tasks,)
    if not right or not (np.diff(numbers.astype(np.int64)) > 0).all():
        raise ValueError(f"`steps` must be {tasks} increasing integers, got {steps!r}.")
    return numbers.astype(np.int64)
