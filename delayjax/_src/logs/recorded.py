"""The seconds that the tasks of a real cluster took."""

import dataclasses
import math
import warnings
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src.cluster.cluster import Cluster, Slowdown
from delayjax._src.cluster.service_time import ServiceTime, constant, empirical
from delayjax._src.ground import checks
from delayjax._src.logs.arrays import as_starts, as_steps, as_times, check_entries
from delayjax._src.logs.resampled import Resampled
from delayjax._src.logs.slowness import Lasts, block_length, lasts_with, waiting_share

_STEADY = 1e-6  # a variance of log times of 0.1 %
_EQUAL = 0.01  # a spread of a tenth


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """Recorded times of the tasks of W workers, for a `Cluster` or as a law.

    `service` gives the times of each worker's k-th task, `slowdowns` the fast and slow
    phases by the clock, `law` independent times with closed forms.

    Attributes:
        seconds: the time of each task, float64 [W, T]; nan is a gap, which needs
            `starts`.
        starts: when each task began, in seconds since the start of the log, float64
            [W, T], or None; later tasks of a worker begin later.
        steps: the numbers of the recorded steps, int64 [T], increasing; by default
            0, ..., T - 1.

    Raises:
        ValueError: if a time is zero, negative, infinite or a clock's time (above 10^8
            s), or for a gap without `starts`.

    Example:
        >>> recorded = Recorded([[1.0, 2.0, 1.0], [1.5, 4.0, 1.5]])
        >>> recorded.workers, recorded.law(worker=0).quantile(0.5)
        (2, np.float64(1.0))
    """

    seconds: np.ndarray
    starts: np.ndarray | None = None
    steps: np.ndarray | None = None

    def __post_init__(self):
        seconds, starts = as_times(self.seconds, self.starts is not None), self.starts
        if starts is not None:
            starts = as_starts(starts, seconds)
        steps = as_steps(self.steps, seconds.shape[1])
        for name, array in dict(seconds=seconds, starts=starts, steps=steps).items():
            if array is not None:
                array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def workers(self) -> int:
        """The number of recorded workers, W."""
        return len(self.seconds)

    def service(
        self, resample: Literal["wrap", "steps", "block"] | int = "wrap"
    ) -> Resampled:
        """The times by the number of the task, for `Cluster(service=...)`.

        All workers take the same recorded step at their k-th task, so that workers that
        were slow in the same step are slow in the same task. In a cluster of P workers
        worker w takes the times of recorded worker w % W, with a warning if P is not W.

        Args:
            resample: "wrap" keeps the recorded order, and begins again after the last
                step; if `steps` has gaps, the steps before and after a gap are
                neighbors. "steps" draws each step at random. A number b draws b
                consecutive steps at a time (Künsch's moving blocks: a correlation at
                lag 1 becomes (1 - 1/b) times as large, and each of the T - b + 1 blocks
                is equally likely). "block" is b = `block_length()`. The draws come from
                the simulation's seed.

        Raises:
            ValueError: if a time is missing (use `slowdowns`), or for blocks where
                `steps` has gaps.

        It warns of times that may contain a barrier, as `cluster` does.

        Example:
            >>> from delayjax.cluster import Cluster
            >>> recorded = Recorded([[1.0, 2.0, 1.0], [1.5, 4.0, 1.5]])
            >>> Cluster(2, recorded.service()).draw(1, 5, seed=0)
            array([1.5, 4. , 1.5, 1.5, 4. ])

        References:
            Künsch, The jackknife and the bootstrap for general stationary observations,
            Annals of Statistics 17(3), 1989.
        """
        self._check_complete("service")
        self._warn_of_barrier()
        lengths = {"wrap": lambda: None, "steps": lambda: 1, "block": self.block_length}
        if isinstance(resample, str) and resample in lengths:
            return Resampled(self.seconds, lengths[resample]())
        if isinstance(resample, str):
            raise ValueError(
                f"`resample` must be in {list(lengths)} or an int, got {resample!r}."
            )
        most = self.seconds.shape[1]
        block = checks.check_bound("resample", resample, at_least=1, at_most=most)
        if block > 1:
            self._check_consecutive()
        return Resampled(self.seconds, block)

    def block_length(self) -> int:
        """The block length that suits the correlation of the times, in steps.

        Politis and White's rule, for all workers together: with R_w(k) the
        autocovariance of worker w's times at lag k and lambda(x) = min(1, 2 (1 - |x|)),

            b^3 = (3/2) T sum_w G_w^2 / sum_w g_w^2
            G_w = sum_k lambda(k/M) |k| R_w(k),    g_w = sum_k lambda(k/M) R_w(k)

        and |k| <= M. M is twice the last lag before max(5, sqrt(log10(T))) lags in a
        row at which the correlation of all workers' times together, sum_w R_w(k) /
        sum_w R_w(0), is at most 2 sqrt(log10(T) / T). b is at most min(3 sqrt(T), T/3).

        Example:
            >>> independent = np.random.default_rng(0).uniform(1.0, 2.0, (4, 1000))
            >>> Recorded(independent).block_length()
            1
            >>> Recorded(np.repeat(independent, 5, axis=1)).block_length()
            25

        References:
            Politis and White, Automatic block-length selection for the dependent
            bootstrap, Econometric Reviews 23(1), 2004; corrected by Patton, Politis and
            White, 28(4), 2009.
        """
        self._check_complete("block_length")
        self._check_consecutive()
        return block_length(self.seconds)

    def cluster(
        self, workers: int | None = None, *, lasts: Lasts | None = None
    ) -> Cluster:
        """The recorded cluster, for `simulate` under any protocol.

        A log shows how long tasks took, and not how fast a worker was while it waited.
        So it matters how long slowness lasts; see `lasts`:

        - "task": the times of a worker's tasks are independent, as with data of unequal
          length. A worker's k-th task takes the times of a random step.
        - "clock": a worker stays slow for many tasks, for example beside another job.
          It is slow at the times of the clock at which it was slow; half of a wait
          belongs to the task before it, half to the task after it. After the log's end
          a worker keeps its mean speed.

        Without `starts` all workers began each step together, when the slowest one had
        done the step before.

        Args:
            workers: P; worker w is the recorded worker w % W. By default W.
            lasts: "clock" or "task", where you know it; the log may not show it.

        Raises:
            ValueError: if the log does not show how long slowness lasts.

        There is a warning if all workers take nearly equal times in each step: then the
        times may contain the wait for the slowest worker.

        Example:
            >>> from delayjax.cluster import protocols, simulate
            >>> rng = np.random.default_rng(0)
            >>> recorded = Recorded(rng.choice([0.5, 1.5], (4, 1000)))  # synchronous
            >>> recorded.lasts()
            'task'
            >>> run = simulate(recorded.cluster(), protocols.k_async(1), 4000, seed=0)
            >>> round(run.summary().updates_per_second, 1)  # 4 workers, a mean of 1 s
            4.0
        """
        count = self.workers if workers is None else workers
        count = checks.check_bound("workers", count, at_least=1)
        recorded = [w % self.workers for w in range(count)]
        self._warn_of_barrier()
        if lasts_with(self.seconds, self._starts(), lasts) == "task":
            return Cluster(count, Resampled(self._filled()[recorded], 1))
        mean = float(np.nanmean(self.seconds))
        each = _slowdowns(self.seconds, self._starts(), middle=True)
        slow = [
            dataclasses.replace(item, workers=worker)
            for worker, row in enumerate(recorded)
            for item in each[row]
        ]
        return Cluster(count, constant(mean), slow)

    def lasts(self) -> Lasts:
        """Whether slowness lasts with the clock, or for one task alone; see `cluster`.

        A worker is slow for several tasks if successive times are correlated. In a log
        without waits this counts as the clock. A worker that waits becomes slow unseen,
        between two tasks, but fast again within a long task. So with the clock times
        increase at once and decrease in two parts, which a rank test shows.

        Raises:
            ValueError: if the log does not show it.

        Example:
            >>> phases = np.repeat([[1.0, 5.0], [5.0, 1.0]], 20, axis=1)
            >>> Recorded(phases, starts=phases.cumsum(axis=1) - phases).lasts()
            'clock'
        """
        return lasts_with(self.seconds, self._starts())

    def _warn_of_barrier(self) -> None:
        """Warns if the times seem to contain the wait for the slowest worker."""
        if self.workers < 2 or self.seconds.shape[1] < 10:
            return
        logs = np.log(self.seconds)
        within = np.nanmean(np.nanvar(logs, axis=0))
        between = np.nanvar(np.nanmean(logs, axis=0))
        if between > _STEADY and within < _EQUAL * between:
            warnings.warn(
                "`seconds` are nearly equal for all workers in each step"
                f" ({math.sqrt(within):.2%} apart, while steps differ by"
                f" {math.sqrt(between):.2%}): a timer around an all-reduce also counts"
                " the wait for the slowest worker, and then no protocol seems to help."
                " Log the time until the gradient is ready, before it is sent.",
                stacklevel=3,
            )

    def _filled(self) -> np.ndarray:
        """The times; a worker's gaps repeat its times in order."""
        filled = self.seconds.copy()
        for row in filled:
            gap = np.isnan(row)
            row[gap] = np.resize(row[~gap], gap.sum())
        return filled

    def _starts(self) -> np.ndarray:
        """The times at which tasks began; by default the steps are synchronous."""
        if self.starts is not None:
            return self.starts
        slowest = self.seconds.max(axis=0)
        begun = np.cumsum(slowest) - slowest
        return np.broadcast_to(begun, self.seconds.shape)

    def slowdowns(self) -> list[Slowdown]:
        """The speeds of workers by the clock, for `Cluster(slowdown=...)`.

        While a recorded task ran, and until the worker's next one, the worker needs

            factor = seconds of the task / mean seconds of all recorded tasks

        times as long as the mean. Before its first task and after its last task a
        worker has its mean speed in the log. So under the protocol of the log tasks
        take the recorded times; for another protocol use `cluster`. Needs `starts`. If
        workers wait, a warning says so.

        Returns:
            Slowdowns for each recorded task, and for the times before and after. With
            the service `constant(law().mean)` a task that begins when a recorded task
            began takes as long as the recorded task.

        Example:
            >>> from delayjax.cluster import Cluster, constant, protocols, simulate
            >>> recorded = Recorded([[1.0, 3.0], [2.0, 2.0]], starts=[[0, 1], [0, 2]])
            >>> mean = constant(recorded.law().mean)
            >>> workers = Cluster(2, mean, recorded.slowdowns())
            >>> simulate(workers, protocols.hardsync(), 1, seed=0).arrived
            array([1., 2.])
        """
        if self.starts is None:
            raise ValueError("`starts` must be given for slowdowns, got None.")
        if waiting := waiting_share(self.seconds, self.starts):
            warnings.warn(
                f"`starts` show that workers wait for {waiting:.0%} of the time: use"
                " slowdowns() for the protocol of the log alone, and Recorded.cluster()"
                " for others.",
                stacklevel=2,
            )
        each = _slowdowns(self.seconds, self.starts, middle=False)
        return [item for rows in each for item in rows]

    def law(self, worker: int | None = None) -> ServiceTime:
        """The recorded times as independent draws, for closed forms.

        Args:
            worker: the worker; by default the times of all workers together.

        Returns:
            `empirical` of the times, without gaps.

        Example:
            >>> Recorded([[1.0, 2.0], [3.0, 4.0]]).law().kth_mean(1, 1)
            2.5
        """
        seconds = self.seconds
        if worker is not None:
            row = checks.check_bound("worker", worker, at_most=self.workers - 1)
            seconds = seconds[row]
        return empirical(seconds[~np.isnan(seconds)])

    def unexplained(self, step_seconds: ArrayLike) -> float:
        """The share of a step outside of these tasks: communication, input, waiting.

            1 - mean_k( max_w seconds[w, k] ) / mean( step_seconds )

        Args:
            step_seconds: the time of a whole step: a number, or one for each recorded
                step [T].

        Raises:
            ValueError: if the slowest worker takes longer than a step on average.

        Example:
            >>> Recorded([[1.0, 2.0], [3.0, 1.0]]).unexplained([4.0, 6.0])
            0.5
        """
        self._check_complete("unexplained")
        remedy = "give the seconds of whole steps"
        given = checks.as_finite(
            "step_seconds", step_seconds, positive=True, remedy=remedy
        )
        slowest, step = self.seconds.max(axis=0).mean(), given.mean()
        shape = self.seconds.shape[1:]
        if given.shape not in ((), shape) or slowest > step:
            raise ValueError(
                f"`step_seconds` must be a number or have shape {shape}, with a mean of"
                f" {slowest:.4g} s or more, got {step_seconds!r}: {remedy}."
            )
        return float(1.0 - slowest / step)

    def _check_complete(self, method: str) -> None:
        remedy = "use slowdowns(), or leave out this task of all workers"
        sound = ~np.isnan(self.seconds)
        check_entries(
            "seconds", self.seconds, sound, f"have no gap for {method}()", remedy
        )

    def _check_consecutive(self) -> None:
        assert self.steps is not None
        apart = np.flatnonzero(np.diff(self.steps) != 1)
        if apart.size:
            before, after = self.steps[apart[0] : apart[0] + 2]
            raise ValueError(
                f"`steps` must be consecutive for blocks, got {before} before {after}."
            )


def _slowdowns(
    seconds: np.ndarray, starts: np.ndarray, *, middle: bool
) -> list[list[Slowdown]]:
    """The slowdowns of each worker, as factors of the mean of all recorded times.

    Args:
        seconds: the times of the tasks, float64 [W, T]; nan is a gap.
        starts: the starts of the tasks, float64 [W, T].
        middle: whether the second half of a wait belongs to the task after it;
            otherwise the whole wait belongs to the task before.
    """
    each, mean = [], np.nanmean(seconds)
    for worker, ran in enumerate(~np.isnan(seconds)):
        factors, begun = seconds[worker, ran] / mean, starts[worker, ran]
        ended = begun + seconds[worker, ran]
        changes = (ended[:-1] + begun[1:]) / 2 if middle else begun[1:]
        edges = np.concatenate([begun[:1], changes, ended[-1:]])
        lengths = np.diff(edges)
        usual = lengths.sum() / (lengths / factors).sum()  # time over work
        rows = [*zip(factors, edges[:-1], edges[1:], strict=True)]
        if edges[0] > 0:
            rows.insert(0, (usual, 0.0, edges[0]))
        rows.append((usual, edges[-1], np.inf))
        each.append([Slowdown(worker, *map(float, row)) for row in rows])
    return each
