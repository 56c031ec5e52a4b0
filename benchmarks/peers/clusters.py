"""Compares a simulated cluster and training along it with ringmaster-lmo's loop."""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from benchmarks.peers.common import RATE, checkout, difference
from benchmarks.side_by_side import Run, medians
from benchmarks.tables import Row

COLUMNS = {
    "method": "{}",
    "workers": "{}",
    "us an update": "{:.1f}",
    "ours, us": "{:.2f}",
    "/ ours": "{:.1f}",
    "difference": "{:.1g}",
}


CURVATURES = np.linspace(0.1, 1.0, 100)


class Bowl:
    """The function 1/2 sum_i a_i x_i^2 in NumPy, in the form for ringmaster-lmo."""

    def stochastic_gradient(self, point: np.ndarray) -> np.ndarray:
        """The gradient, without noise."""
        return CURVATURES * point


def rows(rounds: int, source: str | None) -> Iterator[Row]:
    """Rows of asynchronous SGD and Ringmaster, with constant times: nothing random."""
    file = checkout(source, "ringmaster_lmo", "src/asynchronous/algorithm.py")
    sys.path.insert(0, str(file.parents[2]))
    for workers in (8, 100, 1000):
        max_delay = max(workers // 2, 2)
        protocols = dj.cluster.protocols
        # it restarts a worker whose gradient would be `max_delay` updates old
        ringmaster = protocols.bounded_staleness(max_delay - 1, late="restart")
        for method, how, protocol in (
            ("AsynchronousSGD", {}, protocols.k_async(1)),
            ("RingmasterASGD", {"max_delay": max_delay}, ringmaster),
        ):
            updates = max(10 * workers, 5000)
            theirs = in_their_loop(method, workers, **how)
            ours = along_cluster(protocol, workers, updates)
            first = theirs(updates), ours()
            contenders = {
                "theirs": Run(functools.partial(theirs, updates)),
                "ours": Run(ours),
            }
            t = medians(contenders, rounds=max(rounds // 4, 3), warmup=1)
            yield {
                "method": method,
                "workers": workers,
                "us an update": 1e6 * t["theirs"] / updates,
                "ours, us": 1e6 * t["ours"] / updates,
                "/ ours": t["theirs"] / t["ours"],
                "difference": difference(*first),
            }


def seconds_of(workers: int) -> np.ndarray:
    """The constant time of each worker."""
    return 1.0 + 0.37 * np.sqrt(np.arange(workers))


def in_their_loop(method: str, workers: int, **how: Any) -> Callable[[int], Any]:
    """A function that runs a method of ringmaster-lmo: further updates -> the point."""
    algorithm = importlib.import_module("src.asynchronous.algorithm")
    transport = importlib.import_module("src.asynchronous.asynchronous_transport")
    signature = importlib.import_module("src.signature")
    node = algorithm.StochasticGradientNodeAlgorithm
    nodes = [signature.Signature(node, Bowl()) for _ in range(workers)]
    between = transport.RandomDelayedAsynchronousTransport(
        nodes, seconds_of(workers), lambda index: 0.0
    )
    point = np.ones(len(CURVATURES))
    peer = getattr(algorithm, method)(between, point, gamma=RATE / workers, **how)

    def run(updates):
        for _ in range(updates):
            peer.step()
        return peer.get_point()

    return run


def along_cluster(protocol: Any, workers: int, updates: int) -> Callable[[], Any]:
    """A function that simulates a cluster and trains along it: () -> the point."""
    times = [dj.cluster.constant(seconds) for seconds in seconds_of(workers)]
    cluster = dj.cluster.Cluster(workers, times)

    def grad_fn(params, batch, key):
        return {}, jnp.asarray(CURVATURES, jnp.float32) * params

    @functools.cache
    def training():  # compiled once
        trace = dj.cluster.simulate(cluster, protocol, updates, seed=0)
        return dj.replay(trace, grad_fn, optax.sgd(RATE / workers))

    def run():
        # the same trace again, because their loop simulates in each run too
        dj.cluster.simulate(cluster, protocol, updates, seed=0)
        trainer = training()
        state = trainer.init(jnp.ones(len(CURVATURES)), jax.random.key(0))
        return trainer.run(state, np.zeros((updates, 1, 1), np.float32))[0].params

    return run
