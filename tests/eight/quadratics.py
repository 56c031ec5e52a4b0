"""Quadratics with different minima, whose workers exchange gradients or models."""

import numpy as np
import optax

import delayjax as dj
from tests.averaging.methods import methods  # whose key is on a device

STEPS, WORKERS = 50, 8
RATE, DELAY = 0.1, 2
# arguments of the loop in `tests.exchange.oracle` for each exchange
OPTIONS = {
    "mean": {},
    "late and overlapped": {
        "overlapped": True,
        "delay": lambda worker, step: DELAY,
    },
    "a delay a worker": {
        "delay": lambda worker, step: worker % 4,
        "weight": lambda tau: 0.5**tau,
    },
}
# each way of sending: sums, gathers, permutations that are switched, sums in branches,
# a slice a step
NAMES = [
    *("easgd", "easgd, in turn", "wagma, late", "gossip", "d_psgd", "sgp"),
    *("local_sgd", "delayed_average", "dga", "eager_outer"),
]


def of_gradients():
    """{name: transformation}; Adam behind the exchange."""
    adam = optax.adam(RATE)
    weighted = dj.exchange.mean(adam, weight=lambda tau: 0.5**tau)
    per_worker = dj.delays.per_worker(np.arange(WORKERS) % 4)
    return {
        "mean": dj.exchange.mean(adam),
        "late and overlapped": dj.delayed(dj.exchange.overlapped_mean(adam), DELAY),
        "a delay a worker": dj.delayed(weighted, per_worker, max_delay=3),
    }


def of_models():
    """The same; momentum on each worker."""
    table = methods(WORKERS)
    return {name: table[name](optax.sgd(0.1, momentum=0.5), 2) for name in NAMES}


# name: (transformations, what the workers share of parameters and state)
TASKS = {"gradients": (of_gradients, None), "models": (of_models, False)}


def minima():
    """The centers of the workers' quadratics at each step, [T, P, 5]."""
    return np.random.default_rng(1).normal(size=(STEPS, WORKERS, 5))


def gradient(x, minimum):
    """The gradient of a worker at x [5]; the oracle calls it, too."""
    return x - minimum


def step_of(tx):
    """A worker's step."""

    def step(state, minimum):
        x, opt_state = state
        grads = gradient(dj.workers.vary(x), minimum)
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    return step
