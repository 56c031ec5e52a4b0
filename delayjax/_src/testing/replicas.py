"""The contract of a method whose workers average their models."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.ground import kinds, transforms
from delayjax._src.testing import comparing, contract, subjects
from delayjax._src.testing.contract import STEPS, Contract, float_leaves
from delayjax._src.testing.report import (
    BrokenError,
    Report,
    UncheckedError,
    report_on,
)
from delayjax._src.testing.transformation import name_of

_RATE, _MOMENTUM = 0.1, 0.5

REMEDIES = contract.REMEDIES | {
    "each worker learns": "hand the worker's own gradients to the inner optimizer, and"
    " return the update that leads to the worker's model.",
    "the mean is conserved": "give each model as much as it gives away: the columns of"
    " the mixing matrix must sum to 1; or do not claim conserves_mean=True.",
    "the period is kept": "mix where (step + 1) % period == 0 alone; or do not claim"
    " period=.",
}


@kinds.checked
def check_averaging(
    make: Callable[[optax.GradientTransformation], Any],
    *,
    params: Any = None,
    period: kinds.PositiveInt | None = None,
    conserves_mean: bool = False,
    extra_args: subjects.ExtraArgs | None = None,
    axis_name: str = "workers",
    workers: kinds.Several = 4,
    devices: Sequence[Any] | None = None,
    tolerance: float = 1e-5,
) -> Report:
    """Checks the contract of a method whose workers average their models.

    The promises of `check`, taken by all workers together, and these:

    | promise | what is compared |
    |---|---|
    | each worker learns | each model moves from its start, and with the worker's own
      gradients; models with other gradients differ |
    | the mean is conserved | the models' mean, with the method and with local steps |
    | the period is kept | the steps at which more than local steps happens |

    Args:
        make: the worker's own optimizer -> the method, as
            `lambda inner: averaging.local_sgd(inner, period=2)`.
        params: one worker's parameters, arrays or shapes; by default a small tree.
        period: H, if the method claims to mix at every H-th step alone.
        conserves_mean: whether the method claims that mixing changes no mean.
        extra_args: (step, params) -> the extra arguments of `update`; by default none.
        axis_name: the workers' axis.
        workers: the number of workers. `run` needs as many devices.
        devices: the devices to use, by default all.
        tolerance: as in `check`.

    Returns:
        A report, see `check`.

    Example:
        >>> from delayjax import averaging
        >>> report = check_averaging(
        ...     lambda inner: averaging.d_psgd(inner, period=2), period=2,
        ...     conserves_mean=True, devices=jax.devices()[:1])
        >>> len(report.failures)
        0
    """
    inner = optax.sgd(_RATE, momentum=_MOMENTUM)
    tx = transforms.as_transformation("tx", make(inner))
    method = Averaging(
        tx=tx,
        params=subjects.small() if params is None else subjects.as_given(params),
        extra_args=extra_args or subjects.nothing,
        axis_name=axis_name,
        shared=False,
        workers=workers,
        devices=jax.devices() if devices is None else devices,
        tolerance=tolerance,
        steps=max(STEPS, 2 * (period or 0) + 1),
        period=period,
        conserves_mean=conserves_mean,
    )
    return report_on(name_of(tx), method.promises(), REMEDIES)


@dataclasses.dataclass(kw_only=True)
class Averaging(Contract):
    """The promises of one method."""

    period: int | None
    conserves_mean: bool

    def promises(self) -> dict[str, Callable[[], None]]:
        """The promises of a transformation, and the promises of averaging."""
        promises = super().promises()
        del promises["sharded, Auto axes"], promises["sharded, Explicit axes"]
        return promises | {
            "each worker learns": self.each_worker_learns,
            "the mean is conserved": self.the_mean_is_conserved,
            "the period is kept": self.the_period_is_kept,
        }

    def models(self) -> list[list[np.ndarray]]:
        """For each leaf of 32 bits or more, the models [P, ...] after each step."""
        trees = [carry.state[0] for carry in self.trained()]
        return [
            [np.asarray(leaf, np.complex128) for leaf in leaves]
            for leaves in zip(*map(jax.tree.leaves, trees), strict=True)
            if _is_wide(leaves[0])
        ]

    def moves(self) -> list[np.ndarray]:
        """For each such leaf, the local steps [T, P, ...] of the workers' optimizer."""
        grads, _ = self.of_workers()
        wide = [leaf for leaf in jax.tree.leaves(grads) if _is_wide(leaf)]
        steps = []
        for leaf in wide:
            velocity, of_leaf = 0.0, []
            for grad in np.asarray(leaf, np.complex128):
                velocity = _MOMENTUM * velocity + grad
                of_leaf.append(-_RATE * velocity)
            steps.append(np.stack(of_leaf))
        return steps

    def each_worker_learns(self) -> None:
        carries = [carry.state[0] for carry in self.trained()]
        for leaves in zip(*map(jax.tree.leaves_with_path, carries), strict=True):
            where = f"`params{jax.tree_util.keystr(leaves[0][0])}`"
            start, *values = (comparing.numbers(leaf) for _, leaf in leaves)
            if not start.size or not jnp.issubdtype(start.dtype, jnp.inexact):
                continue
            if not any((x != x[:1]).any() for x in values):
                raise BrokenError(
                    f"{where} is the same on all workers at each of"
                    f" {self.steps} steps, with other gradients."
                )
            for worker in range(self.workers):
                models = [start[worker], *(x[worker] for x in values)]
                if self.are_close(models[1:], models[:1] * self.steps):
                    raise BrokenError(
                        f"{where} of worker {worker} does not move from its start in"
                        f" {self.steps} steps."
                    )
        plain = float_leaves(carries[-1])
        for worker, carry in enumerate(self.with_other_gradients()):
            pairs = [
                [x[worker] for x in y] for y in (plain, float_leaves(carry.state[0]))
            ]
            if plain and self.are_close(*pairs):
                raise BrokenError(
                    f"the model of worker {worker} is the same for other gradients of"
                    " its own."
                )

    def the_mean_is_conserved(self) -> None:
        if not self.conserves_mean:
            raise UncheckedError("not claimed, conserves_mean=True")
        for models, moves in zip(self.models(), self.moves(), strict=True):
            for t in range(self.steps):
                expected = models[t].mean(0) + moves[t].mean(0)
                apart = np.abs(models[t + 1].mean(0) - expected).max(initial=0.0)
                if apart > self.tolerance * max(1.0, np.abs(expected).max(initial=0.0)):
                    raise BrokenError(
                        f"step {t} moves the mean of the models by {apart:.3g}."
                    )

    def the_period_is_kept(self) -> None:
        if self.period is None:
            raise UncheckedError("not claimed, period=")
        mixed = set()
        for models, moves in zip(self.models(), self.moves(), strict=True):
            for t in range(self.steps):
                apart = np.abs(models[t + 1] - models[t] - moves[t])
                if (apart > self.tolerance * np.maximum(1.0, np.abs(models[t]))).any():
                    mixed.add(t)
        if not mixed:
            raise BrokenError(f"no step of {self.steps} mixes the models.")
        between = sorted(t for t in mixed if (t - min(mixed)) % self.period)
        if between:
            raise BrokenError(
                f"the models are mixed at steps {sorted(mixed)}, with a period of"
                f" {self.period}."
            )


def _is_wide(leaf: Any) -> bool:
    """Whether rounding is small enough to see which steps mix."""
    dtype = jnp.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).bits >= 32
