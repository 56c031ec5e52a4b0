"""Quadratics with minima of their own, whose workers average their models."""

import numpy as np
import optax

from tests.eight.processes import WORKERS

STEPS = 20
SHARED = False  # parameters are replicas


# each way of sending: sums, gathers, permutations that are switched, sums in branches
NAMES = [
    *("easgd", "easgd, in turn", "wagma, late", "gossip", "d_psgd", "sgp"),
    *("local_sgd", "delayed_average", "dga"),
]


def transformations():
    """By name; made once the devices are known."""
    from tests.averaging.methods import methods  # its key is on a device

    made = methods(WORKERS)
    return {name: made[name](optax.sgd(0.1, momentum=0.5), 2) for name in NAMES}


def data():
    """Minima of the workers' quadratics, [T, P, 5]."""
    return np.random.default_rng(1).normal(size=(STEPS, WORKERS, 5))


def start():
    """A model [5]."""
    return np.ones(5)


def step_of(tx):
    """A worker's step."""

    def step(state, minimum):
        x, opt_state = state
        updates, opt_state = tx.update(x - minimum, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    return step
