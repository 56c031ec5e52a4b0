"""The training step of one worker, of a gradient that a test says."""

from collections.abc import Callable
from typing import Any

import optax


def step_with(tx: Any, gradient: Callable[[Any, Any], Any]) -> Callable:
    """((params, state), batch) -> ((params, state), {}), with gradient(params, batch).

    The parameters are as they are held: take gradients at `dj.workers.vary(params)`.
    """

    def step(state, batch):
        params, opt_state = state
        updates, opt_state = tx.update(gradient(params, batch), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    return step
