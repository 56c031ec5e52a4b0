"""Quadratics with minima of their own, whose workers average their models."""

import numpy as np
import optax

from tests.eight.processes import WORKERS

STEPS = 20
SHARED = False  # parameters are replicas


def transformations():
    """Each method, and those that order or delay; made once the devices are known."""
    from tests.averaging.methods import methods  # its key is on a device

    return {
        name: make(optax.sgd(0.1, momentum=0.5), 2)
        for name, make in methods(WORKERS).items()
        if "," not in name or name in ("easgd, in turn", "wagma, late")
    }


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
