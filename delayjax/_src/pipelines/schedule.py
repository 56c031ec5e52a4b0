"""Schedules of a pipeline: the weights that each stage reads and keeps."""

import dataclasses
from typing import Literal

import numpy as np

from delayjax._src.ground import checks, kinds


@kinds.checked
@dataclasses.dataclass(frozen=True)
class Schedule:
    """The order in which the stages of a pipeline work, and the weights they read.

    Stage s = 0 .. S - 1 has W = S - 1 - s stages after it. Microbatch i = 0, 1, 2, ...
    belongs to update i // M. Version v of a stage is its weights after its first v
    updates. A stage takes its forward passes in order, and a(s) of them before its
    first backward pass:

        F_0 .. F_{a-1}, F_a B_0, F_{a+1} B_1, ...

    With a flush these are the microbatches of one update; without a flush the order
    goes on without an end.

    Attributes:
        name: the name of the method.
        stages: S.
        microbatches: M, the microbatches of an update.
        flush: whether the pipeline runs empty after each update.
        ahead: a(s), passes ahead of each stage, a tuple [S]; with `chunks` of a chunk.
        stash: whether a backward pass reads the weights of its forward pass; otherwise
            it reads the newest weights.
        lag: by how many updates the weights that a pass reads are older than the update
            of its microbatch: 1 in PipeDream-2BW with its two buffers. 0: the newest
            weights that `ahead` allows.
        chunks: v, the chunks of layers on each stage; above 1 they are interleaved.

    Raises:
        ValueError: if S, M or v is below 1, `ahead` does not have a number for each
            stage, or a pass would read a version that is not kept or not made yet: a
            lag needs a stash, no flush, and at most lag M passes ahead.

    Example:
        >>> schedule = pipedream(4)
        >>> [schedule.mean_delay(s) for s in range(4)]
        [3.0, 2.0, 1.0, 0.0]
        >>> [schedule.weight_copies(s) for s in range(4)]
        [4, 3, 2, 1]
        >>> gpipe(4, microbatches=12).bubble_share                 # 3/15
        0.2

    References:
        Narayanan et al., PipeDream, arXiv:1806.03377; PipeDream-2BW, arXiv:2006.09503;
        Yang et al., PipeMare, arXiv:1910.05124; Huang et al., GPipe, arXiv:1811.06965.
    """

    name: str
    stages: kinds.PositiveInt
    microbatches: kinds.PositiveInt
    flush: bool
    ahead: tuple[int, ...]
    stash: bool = True
    lag: kinds.NonNegativeInt = 0
    chunks: kinds.PositiveInt = 1

    def __post_init__(self):
        if len(self.ahead) != self.stages or min(self.ahead) < 0:
            raise ValueError(
                f"`ahead` must be {self.stages} non-negative numbers, got {self.ahead}."
            )
        # else passes would read a version that no stage keeps
        if self.lag and (self.flush or not self.stash):
            raise ValueError(
                f"`lag` must be 0 with a flush or without a stash, got {self.lag}."
            )
        # F_i reads i // M - lag when floor((i - a) / M) updates are done
        most = self.lag * self.microbatches
        if max(self.ahead) > most > 0:
            raise ValueError(
                f"`ahead` must be at most lag M = {most}, got {self.ahead}."
            )

    def forward_version(self, microbatch: int, stage: int) -> int:
        """The version that a forward pass reads.

        i // M with a flush; floor(max(0, i - a) / M) without; max(0, i // M - 1) with
        two buffers.
        """
        update, ahead = microbatch // self.microbatches, self._ahead_of(stage)
        if self.flush:
            return update
        if self.lag:
            return max(0, update - self.lag)
        return max(0, microbatch - ahead) // self.microbatches

    def backward_version(self, microbatch: int, stage: int) -> int:
        """The version that a backward pass reads: of its forward pass or the newest."""
        if self.stash:
            return self.forward_version(microbatch, stage)
        return microbatch // self.microbatches

    def delays(self, stage: int) -> np.ndarray:
        """The delays of an update's M gradients, in updates, once the pipeline is full.

        A delay is the version at which a gradient is applied minus the version of its
        forward pass.

        Returns:
            int64 [M].
        """
        # beyond the start, at the first microbatch of an update
        full = self.microbatches * (max(self.ahead) + 1 + self.lag)
        those = range(full, full + self.microbatches)
        update = full // self.microbatches
        return np.array([update - self.forward_version(i, stage) for i in those])

    def mean_delay(self, stage: int) -> float:
        """The mean of `delays`: a/M without a flush, 0 with one, the lag if any."""
        return float(self.delays(stage).mean())

    def one_delay(self, stage: int) -> int:
        """The one delay of all gradients of an update.

        Raises:
            ValueError: if the microbatches of an update have different delays.
        """
        delays = set(self.delays(stage).tolist())
        if len(delays) > 1:
            raise ValueError(
                f"`schedule` must have one delay at stage {stage}, got {delays}: take"
                " microbatches=1."
            )
        return delays.pop()

    def weight_copies(self, stage: int) -> int:
        """Versions of its weights that a stage keeps, the newest included.

        ceil(a/M) + 1 where backward reads the weights of forward, else 1; the lag + 1
        with buffers.
        """
        ahead = self._ahead_of(stage)
        if self.flush or not self.stash:
            return 1
        if self.lag:
            return self.lag + 1
        return -(-ahead // self.microbatches) + 1

    def activations(self, stage: int) -> float:
        """Microbatches whose activations a stage keeps at most: (a + 1) / v."""
        return (self._ahead_of(stage) + 1) / self.chunks

    def _ahead_of(self, stage: int) -> int:
        stage = checks.check_bound("stage", stage, at_most=self.stages - 1)
        return self.ahead[stage]

    def memory(self, stage: int, *, weights: float, activations: float) -> float:
        """Bytes of weights and activations that a stage keeps.

        Args:
            stage: s.
            weights: bytes of the stage's weights, once.
            activations: bytes that a stage keeps for a microbatch until its backward
                pass.
        """
        copies, held = self.weight_copies(stage), self.activations(stage)
        return copies * weights + held * activations

    @property
    def bubble_share(self) -> float:
        """The share of time in which a stage is idle, once the pipeline runs.

        (S - 1) / (v M + S - 1) with a flush, for passes that take equally long on all
        stages; 0 without.
        """
        if not self.flush:
            return 0.0
        fill = self.stages - 1
        return fill / (self.chunks * self.microbatches + fill)


@kinds.checked
def gpipe(stages: kinds.PositiveInt, microbatches: kinds.PositiveInt) -> Schedule:
    """All forward passes of an update, then all backward passes.

    Args:
        stages: S.
        microbatches: M, the microbatches of an update.

    Example:
        >>> gpipe(4, microbatches=12).activations(0)
        12.0

    References:
        Huang et al., GPipe, arXiv:1811.06965.
    """
    return Schedule(
        "GPipe", stages, microbatches, flush=True, ahead=(microbatches - 1,) * stages
    )


@kinds.checked
def one_f_one_b(
    stages: kinds.PositiveInt,
    microbatches: kinds.PositiveInt,
    *,
    chunks: kinds.PositiveInt = 1,
) -> Schedule:
    """Alternates forward and backward passes, and flushes at each update.

    It is idle as long as GPipe and keeps the activations of at most S microbatches.
    With chunks it is interleaved (Megatron-LM): each stage has v parts of the model,
    is idle a share of (S - 1) / (v M + S - 1), and keeps more activations.

    Args:
        stages: S.
        microbatches: M, the microbatches of an update; with chunks a multiple of S.
        chunks: v, the chunks of layers on each stage.

    Example:
        >>> [one_f_one_b(4, 8, chunks=v).bubble_share for v in (1, 2)]  # 3/11, 3/19
        [0.2727272727272727, 0.15789473684210525]

    References:
        Narayanan et al., Efficient large-scale language model training on GPU clusters,
        arXiv:2104.04473.
    """
    if chunks > 1 and microbatches % stages:
        raise ValueError(
            f"`microbatches` must be a multiple of {stages}, got {microbatches}."
        )
    most, after = chunks * microbatches - 1, _after(stages)
    ahead = [2 * w + (chunks - 1) * stages for w in after] if chunks > 1 else after
    return Schedule(
        "1F1B" if chunks == 1 else f"1F1B, {chunks} chunks",
        stages,
        microbatches,
        flush=True,
        ahead=tuple(min(a, most) for a in ahead),
        chunks=chunks,
    )


@kinds.checked
def pipedream(
    stages: kinds.PositiveInt,
    *,
    microbatches: kinds.PositiveInt = 1,
    stash: bool = True,
    in_flight: Literal["throttled", "full"] = "throttled",
) -> Schedule:
    """Never flushes: a stage updates its weights as soon as it has M gradients.

    With M = 1 it is PipeDream. AsyncPP (arXiv:2505.01099) has this schedule with M = 1
    and another optimizer, and keeps W + 1 versions too.

    Args:
        stages: S.
        microbatches: M, the microbatches of an update.
        stash: whether a backward pass reads the weights of its forward pass. Otherwise
            it reads the newest weights, and no function has this gradient.
        in_flight: "throttled": a stage has at most W + 1 microbatches in flight, and a
            delay of W/M (1F1B). "full": a forward pass and a backward pass of different
            microbatches share a tick of each stage. Then 2W + 1 are in flight, and the
            delay is 2W/M.

    Example:
        >>> pipedream(3).delays(0), pipedream(3, in_flight="full").delays(0)
        (array([2]), array([4]))

    References:
        Narayanan et al., arXiv:1806.03377.
    """
    return Schedule(
        "PipeDream" if stash else "PipeDream, no stash",
        stages,
        microbatches,
        flush=False,
        ahead=_in_flight(stages, in_flight),
        stash=stash,
    )


@kinds.checked
def two_buffered(
    stages: kinds.PositiveInt, microbatches: kinds.PositiveInt
) -> Schedule:
    """PipeDream-2BW: two versions of the weights, and a delay of 1 on all stages.

    Args:
        stages: S.
        microbatches: M, the microbatches of an update, at least S.

    Example:
        >>> two_buffered(4, 4).mean_delay(3), two_buffered(4, 4).weight_copies(0)
        (1.0, 2)

    References:
        Narayanan et al., PipeDream-2BW, arXiv:2006.09503.
    """
    if microbatches < stages:
        raise ValueError(
            f"`microbatches` must be at least the {stages} stages, got {microbatches}."
        )
    return Schedule(
        "PipeDream-2BW",
        stages,
        microbatches,
        flush=False,
        ahead=tuple(_after(stages)),
        lag=1,
    )


def pipemare(stages: int, microbatches: int) -> Schedule:
    """PipeMare: forward reads old weights, backward the newest; nothing is stashed.

    Its passes share ticks ("full" in `pipedream`), so the mean delay of a forward pass
    is 2W/M. The paper counts the update itself too, and writes (2W + 1)/M.

    Args:
        stages: S.
        microbatches: M, the microbatches of an update.

    Example:
        >>> [pipemare(4, 2).mean_delay(s) for s in range(4)]
        [3.0, 2.0, 1.0, 0.0]

    References:
        Yang et al., PipeMare, arXiv:1910.05124.
    """
    schedule = pipedream(
        stages, microbatches=microbatches, stash=False, in_flight="full"
    )
    return dataclasses.replace(schedule, name="PipeMare")


def _after(stages: int) -> list[int]:
    """W of each stage."""
    return [stages - 1 - stage for stage in range(stages)]


def _in_flight(stages: int, in_flight: str) -> tuple[int, ...]:
    factor = 2 if in_flight == "full" else 1
    return tuple(factor * w for w in _after(stages))
