"""The counters in the states of cells: gradients that arrived and were used."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.running import execution


class Counters(NamedTuple):
    """The counters of a state; leaves are [seeds, cells, ...] on the host."""

    diverged_step: np.ndarray  # as in `State`
    staleness_counts: np.ndarray  # of all workers
    arrived: np.ndarray  # gradients that reached the optimizer and its rules, int32
    dropped: np.ndarray  # gradients that these rules refused, int32
    dropped_in_row: np.ndarray  # since the last one accepted, int32


def read(state: Any) -> Counters:
    """Reads the counters of a state at any depth."""
    several = isinstance(state, dj.workers.WorkerState)
    state = execution.held(state)
    seeds_and_cells = state.diverged_step.shape

    def counts_of(name, besides=""):
        """The counts of this name, [seeds, cells, workers or replicas of each]."""
        for path, count in optax.tree.get_all_with_path(state.memory, name):
            if getattr(path[-1], "tuple_name", None) == besides:
                continue
            if several:  # the axis of the workers comes first, except in shared leaves
                yield jnp.moveaxis(count.reshape(-1, *seeds_and_cells), 0, -1)
            else:
                yield count.reshape(*seeds_and_cells, -1)

    nothing = jnp.zeros(seeds_and_cells, jnp.int32)
    ages = state.staleness_counts
    used = ages.reshape(-1, *seeds_and_cells, ages.shape[-1]).sum(0)
    # `refusing` counts refused means, the loop counts the gradients in them
    refused = state.refused.reshape(-1, *seeds_and_cells).sum(0)
    others = [count.sum(-1) for count in counts_of("dropped", besides="RefusingState")]
    return Counters(
        diverged_step=state.diverged_step,
        staleness_counts=used,
        arrived=used.sum(-1) + refused,
        dropped=sum(others, start=refused),
        dropped_in_row=functools.reduce(
            jnp.maximum,
            (count.max(-1) for count in counts_of("dropped_in_row")),
            nothing,
        ),
    )
