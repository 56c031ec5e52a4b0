"""The seconds that the tasks of a real cluster took."""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src.cluster.block_length import block_length
from delayjax._src.cluster.cluster import Slowdown
from delayjax._src.cluster.recorded_arrays import (
    as_starts,
    as_steps,
    as_times,
    check_entries,
)
from delayjax._src.cluster.resampled import Resampled
from delayjax._src.cluster.service_time import ServiceTime, empirical
from delayjax._src.ground import checks
from delayjax._src.ground.checks import as_seconds


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """Recorded times of the tasks of W workers, for a `Cluster` or as a law.

    `service` gives the times of each worker's k-th task, `slowdowns` the fast and slow
    phases by the clock, `law` independent times with closed forms.

    Attributes:
        seconds: of each task, float64 [W, T]; nan is a gap, which needs `starts`.
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
            starts = as_starts(starts, np.isnan(seconds))
        steps = as_steps(self.steps, seconds.shape[1])
        for name, array in dict(seconds=seconds, starts=starts, steps=steps).items():
            if array is not None:
                array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def workers(self) -> int:
        """W."""
        return len(self.seconds)

    def service(
        self, resample: Literal["wrap", "steps", "block"] | int = "wrap"
    ) -> Resampled:
        """The times by the number of the task, for `Cluster(service=...)`.

        All workers take the same recorded step at their k-th task, so that workers that
        were slow together are slow together. In a cluster of P workers worker w takes
        the times of recorded worker w % W, with a warning if P is not W.

        Args:
            resample: "wrap" is the recorded order, and again from the first step after
                the last one; if `steps` has gaps, the steps before and after a gap
                are neighbors. "steps" draws each step at random. A number b draws b
                consecutive steps at a time (Künsch's moving blocks: a correlation at
                lag 1 becomes (1 - 1/b) times as large, and each of the T - b + 1 blocks
                is equally likely). "block" is b = `block_length()`. The simulation's
                seed draws.

        Raises:
            ValueError: if a time is missing (use `slowdowns`), or for blocks where
                `steps` has gaps.

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
        lengths = {"wrap": lambda: None, "steps": lambda: 1, "block": self.block_length}
        if isinstance(resample, str) and resample in lengths:
            return Resampled(self.seconds, lengths[resample]())
        if isinstance(resample, str):
            raise ValueError(
                f"`resample` must be a number of steps or one of {list(lengths)}, got"
                f" {resample!r}."
            )
        most = self.seconds.shape[1]
        block = checks.check_integer("resample", resample, 1, most)
        if block > 1:
            self._check_consecutive()
        return Resampled(self.seconds, block)

    def block_length(self) -> int:
        """The block length that the correlation of the times asks for, in steps.

        Politis and White's rule, for all workers together: with R_w(k) the
        autocovariance of worker w's times at lag k and lambda(x) = min(1, 2 (1 - |x|)),

            b^3 = (3/2) T sum_w G_w^2 / sum_w g_w^2
            G_w = sum_k lambda(k/M) |k| R_w(k),    g_w = sum_k lambda(k/M) R_w(k)

        and |k| <= M. M is twice the last lag at which the correlation of all workers'
        times together, sum_w R_w(k) / sum_w R_w(0), is above 2 sqrt(log10(T) / T), as
        are no later ones in a row. At most min(3 sqrt(T), T/3).

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

    def slowdowns(self) -> list[Slowdown]:
        """The times by the clock, for `Cluster(slowdown=...)`; needs `starts`.

        While a recorded task ran, and until the worker's next one, the worker needs

            factor = seconds of the task / mean seconds of all recorded tasks

        times as long as the mean. Before its first task and after its last one a worker
        needs the mean. In an asynchronous run the k-th tasks of two workers do not run
        at the same time, so only the clock says which workers were slow together.

        Returns:
            A slowdown for each recorded task. With the service `constant(law().mean)` a
            task that begins when a recorded one did takes as long as that one.

        Example:
            >>> from delayjax.cluster import Cluster, constant, protocols, simulate
            >>> recorded = Recorded([[1.0, 3.0], [2.0, 2.0]], starts=[[0, 1], [0, 2]])
            >>> mean = constant(recorded.law().mean)
            >>> workers = Cluster(2, mean, recorded.slowdowns())
            >>> simulate(workers, protocols.hardsync(), 1, seed=0).arrived
            array([1., 2.])
        """
        if self.starts is None:
            raise ValueError(
                "`starts` must be given for slowdowns, got None: give"
                " Recorded(seconds, starts=...), or use service()."
            )
        mean, found = np.nanmean(self.seconds), []
        for worker, ran in enumerate(~np.isnan(self.seconds)):
            seconds, starts = self.seconds[worker, ran], self.starts[worker, ran]
            stops = np.append(starts[1:], starts[-1:] + seconds[-1:])
            rows = np.stack([seconds / mean, starts, stops], axis=1).tolist()
            found += [Slowdown(worker, *row) for row in rows]
        return found

    def law(self, worker: int | None = None) -> ServiceTime:
        """The recorded times as independent draws, for closed forms.

        Args:
            worker: whose times; by default all workers' together.

        Returns:
            `empirical` of the times, without gaps.

        Example:
            >>> Recorded([[1.0, 2.0], [3.0, 4.0]]).law().kth_mean(1, 1)
            2.5
        """
        seconds = self.seconds
        if worker is not None:
            seconds = seconds[
                checks.check_integer("worker", worker, 0, self.workers - 1)
            ]
        return empirical(seconds[~np.isnan(seconds)])

    def unexplained(self, step_seconds: ArrayLike) -> float:
        """The share of a step that is not these tasks: communication, input, waiting.

            1 - mean_k( max_w seconds[w, k] ) / mean( step_seconds )

        Args:
            step_seconds: of a whole step; a number, or one for each recorded step [T].

        Raises:
            ValueError: if the slowest worker takes longer than a step on average.

        Example:
            >>> Recorded([[1.0, 2.0], [3.0, 1.0]]).unexplained([4.0, 6.0])
            0.5
        """
        self._check_complete("unexplained")
        remedy = "give the seconds of whole steps"
        given = as_seconds("step_seconds", step_seconds, positive=True, remedy=remedy)
        slowest, step = self.seconds.max(axis=0).mean(), given.mean()
        shape = self.seconds.shape[1:]
        if given.shape not in ((), shape) or slowest > step:
            raise ValueError(
                f"`step_seconds` must be a number or have shape {shape}, with a mean of"
                f" {slowest:.4g} s or more, the slowest worker's, got {step_seconds!r}:"
                f" {remedy}."
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
                "`steps` must be consecutive for blocks, got a gap between step"
                f' {before} and step {after}: use resample="steps".'
            )
