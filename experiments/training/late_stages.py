"""Methods for the late stages of a pipeline, by their papers' names."""

from collections.abc import Callable
from typing import Any

import optax

import delayjax as dj
from experiments.tasks import stacked
from experiments.training.pipelined import pipelined

_mixed = dj.pipelines.mixed


def _plain(parts, make, stages, updates):
    """A backward pass reads other weights than its forward pass."""
    return _mixed(parts, make(), dj.pipelines.pipedream(stages, stash=False))


def _stash(parts, make, stages, updates):
    """A backward pass reads the weights of its forward pass."""
    return _mixed(parts, make(), dj.pipelines.pipedream(stages))


def _prediction(parts, make, stages, updates):
    """`_stash`, and the forward pass reads x + delay times the last move."""
    return _mixed(
        parts,
        lambda delay: dj.predict_weights(make(), delay),
        dj.pipelines.pipedream(stages),
        forward_point=dj.gradient_params,
    )


def _pipemare(parts, make, stages, updates):
    """PipeMare without a stash: T1 in the first quarter of the updates, and T2."""

    def tx(delay):
        slower = dj.pipelines.reschedule_by_delay(delay, annealing_steps=updates / 4)
        slowed = optax.chain(make(), slower)
        return dj.pipelines.discrepancy_correction(slowed, delay, decay=0.5)

    return _mixed(
        parts,
        tx,
        dj.pipelines.pipedream(stages, stash=False),
        backward_point=dj.pipelines.backward_params,
    )


def _nadam(rate, beta, updates):
    return dj.pipelines.nadam(rate, b1=beta, momentum_decay=200 / updates)


def _rotated_adam(rate, beta, updates):

    def is_rotated(path, leaf):
        return path.startswith("blocks") and leaf.ndim == 2

    return dj.pipelines.rotated_adam(rate, b1=beta, is_rotated=is_rotated)


METHODS = {
    "plain": _plain,
    "stash": _stash,
    "prediction": _prediction,
    "PipeMare": _pipemare,
    "look-ahead": _stash,
    "rotation": _stash,
}
"""(parts of a model, () -> an optimizer, stages, updates) -> a pipeline."""

OPTIMIZERS = {
    "adam": lambda rate, beta: optax.adam(rate, beta),
    "muon": lambda rate, beta: optax.contrib.muon(
        rate,
        beta=beta,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=stacked.matrices,
    ),
    "sgd": lambda rate, beta: optax.sgd(rate, beta),
}
"""(step size, momentum) -> an optimizer of stacked blocks."""

OF_ADAM = {"look-ahead": _nadam, "rotation": _rotated_adam}
"""Methods with a special optimizer: (step size, momentum, updates) -> optimizer."""


def late_stages(
    optimizer: str, method: str, updates: int, shape: Callable[[Any], Any]
) -> Any:
    """Trains the stages of a pipeline that never wait for each other.

    The axes are `learning_rate`, `momentum` and `stages`, which is never traced and is
    1 by default.

    Args:
        optimizer: one of `OPTIMIZERS`; a method of `OF_ADAM` replaces it.
        method: one of `METHODS`.
        updates: the number of updates of the run.
        shape: step -> factor of the learning rate.
    """

    def make(parts, learning_rate, momentum, stages=1):
        def rate(step):
            return learning_rate * shape(step)

        def make():
            if method in OF_ADAM:
                return OF_ADAM[method](rate, momentum, updates)
            return OPTIMIZERS[optimizer](rate, momentum)

        return METHODS[method](parts, make, stages, updates)

    return pipelined(make)
