"""Which threshold of staleness does asynchronous Muon need, if stragglers are heavy?

The times of sixteen workers are Pareto of shape 1.5, which has no variance, or regular.
A worker whose gradient reaches the threshold R of staleness stops and begins again. R
is fixed and tuned, or adaptive: max(1, floor(sqrt(k))) at update k, with a momentum of
weight a_k = 1 / sqrt(k) and a step eta (k + 1)^(-3/4), as in Ringmaster LMO (Sadiev et
al., arXiv:2605.18174). It is compared with no threshold, also with steps that are
capped at P / tau; with synchronous Muon of all workers, or of Rennala's batches; and
with normalized momentum (arXiv:2601.19379) under the same schedules. The result is the
time until a perceptron on scikit-learn's digits has a small training loss. Steps and
constant momenta are searched.

    python -m experiments.main --config=configs/ringmaster_lmo.py --workdir=runs/lmo
"""

import math

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    figures,
    percent,
)
from experiments.configs import above, at_least, positive
from experiments.tasks import digits_mlp

LIMITS = at_least(1, "workers", "width") | at_least(0, "target", "longer_seconds")
LIMITS |= positive("tolerance", "seconds") | above(1, "tail")  # a mean time of 1 s


def get_config() -> ConfigDict:
    """The config: two laws of times, and the thresholds."""
    return ConfigDict(
        dict(
            workers=16,
            tail=1.5,  # shape of the Pareto law, mean 1 s
            shape=16,  # of the gamma law of the regular times, mean 1 s
            bound=(1, 4, 16, 32),  # R, updates; the paper's code tries 1 to 16
            batch=(4, 8, 16),  # gradients of an update of Rennala
            width=16,  # hidden units
            batch_size=8,  # examples per gradient
            target=0.3,  # the training loss to reach, nats
            seconds=80.0,  # simulated
            longer_seconds=400.0,  # of the two slowest methods
            seeds=5,
            tolerance=0.03,  # tolerance of the search, as a share of the time
        )
    )


def agnostic(
    direction: optax.GradientTransformation, eta: float
) -> optax.GradientTransformation:
    """The optimizer of the adaptive schedules, with a direction for the momentum."""
    return optax.chain(
        optax.inject_hyperparams(optax.ema)(  # m <- (1 - a_k) m + a_k g
            lambda k: 1.0 - 1.0 / jnp.sqrt(jnp.maximum(k, 1.0)), debias=False
        ),
        direction,
        optax.scale_by_schedule(lambda k: eta * (k + 1.0) ** -0.75),
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each method and law of times."""
    protocols, workers = dj.cluster.protocols, config.workers
    laws = {
        "heavy tails": dj.cluster.pareto(1.0 - 1.0 / config.tail, config.tail),
        "regular": dj.cluster.gamma(1.0, config.shape),
    }
    rules = {"no threshold": protocols.k_async(1)}
    rules |= {f"R = {r}": protocols.ringmaster(r, stop=True) for r in config.bound}

    def muon(learning_rate, decay):  # decay is 1 - momentum; vectors have Adam
        return optax.contrib.muon(learning_rate, beta=1.0 - decay)

    def capped(learning_rate, decay):
        cap = dj.scale_by_staleness(dj.modulation.capped(workers))
        return optax.chain(muon(learning_rate, decay), cap)

    def adaptive_muon(learning_rate):
        muon = optax.contrib.muon(1.0, beta=0.0, nesterov=False, adam_b1=0.0)
        return agnostic(muon, learning_rate)

    def normalized(learning_rate):
        unit = optax.normalize_by_update_norm(eps=1e-10)
        return agnostic(optax.chain(unit, optax.scale(-1.0)), learning_rate)

    of_muon = {"learning_rate": Range(0.005, 0.64), "decay": Range(0.02, 1.0, off=1.0)}

    def arm(method, times, protocol, server=muon, grid=of_muon):
        cluster = dj.cluster.Cluster(workers, laws[times])
        slow = method in ("synchronous", "normalized")
        return Arm(
            training=along(Simulation(cluster, protocol), server),
            labels=dict(method=method, times=times),
            grid=grid,
            seconds=config.longer_seconds if slow else config.seconds,
        )

    adaptive = protocols.ringmaster(lambda k: max(1, math.isqrt(k)), stop=True)
    heavy = [
        ("adaptive R", adaptive, adaptive_muon, {"learning_rate": Range(0.125, 2.0)}),
        ("normalized", adaptive, normalized, {"learning_rate": Range(0.25, 4.0)}),
        ("capped", protocols.k_async(1), capped),
        ("synchronous", protocols.hardsync()),
        *((f"batch {b}", protocols.rennala(b)) for b in config.batch),
    ]
    time = figures.TimeTo("train_loss", config.target)
    compared = dict(against={"method": "no threshold"}, where={"times": "heavy tails"})
    return Experiment(
        question="Which threshold of staleness does asynchronous Muon need?",
        task=digits_mlp(width=config.width, batch_size=config.batch_size),
        arms=[
            *(arm(name, "heavy tails", *rest) for name, *rest in heavy),
            *(arm(name, times, rules[name]) for times in laws for name in rules),
        ],
        seeds=config.seeds,
        tuned_by=time,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        evaluations=80,
        answer=Effect(metric=time, size=percent(10), **compared),
        figures=[figures.bars(time, color="times", title="How soon is it there?")],
    )
