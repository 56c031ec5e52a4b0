"""Every method that averages, for so many workers."""

import jax
import numpy as np
import optax

import delayjax as dj
from delayjax import averaging

KEY = jax.random.key(1)
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def some(step):
    """Two of three workers, others at each step."""
    return (jax.lax.axis_index("workers") + step) % 3 > 0


def methods(workers):
    """{name: (inner, period) -> transformation}; a name's first part is the method."""
    seconds = np.random.default_rng(0).random((9, workers))
    late = np.random.default_rng(1).integers(0, 2, (9, workers))
    return {
        "easgd": lambda inner, h: averaging.easgd(inner, period=h),
        "easgd, in turn": lambda inner, h: averaging.easgd(
            inner, period=h, order=averaging.first_come(seconds)
        ),
        "easgd, lock_free": lambda inner, h: averaging.easgd(
            inner,
            period=h,
            order=averaging.by_rank(),
            lock_free=averaging.races(KEY, 2, lost=0.1),
        ),
        "downpour": lambda inner, h: averaging.downpour(inner, period=h),
        "downpour, averaged": lambda inner, h: averaging.downpour(
            inner,
            period=h,
            server=optax.trace(0.5),
            average=0.1,
            order=averaging.first_come(seconds),
        ),
        "downpour, lock_free": lambda inner, h: averaging.downpour(
            inner,
            period=h,
            server=optax.trace(0.5),
            order=averaging.first_come(seconds),
            lock_free=averaging.races(KEY, 2, lost=0.1),
        ),
        "wagma": lambda inner, h: averaging.wagma(inner, period=h),
        "wagma, late": lambda inner, h: averaging.wagma(
            inner, period=h, lateness=dj.delays.per_worker(late)
        ),
        "gossip": lambda inner, h: averaging.gossip(inner, key=KEY, period=h),
        "gossip, push": lambda inner, h: averaging.gossip(
            inner, key=KEY, push=True, period=h
        ),
        "d_psgd": lambda inner, h: averaging.d_psgd(inner, period=h),
        "d_psgd, after the step": lambda inner, h: averaging.d_psgd(
            inner, overlap=False, period=h
        ),
        "ad_psgd": lambda inner, h: averaging.ad_psgd(inner, key=KEY, period=h),
        "sgp": lambda inner, h: averaging.sgp(inner, period=h),
        "sgp, some silent": lambda inner, h: averaging.sgp(
            inner, peers=2, participates=some, period=h
        ),
        "local_sgd": lambda inner, h: averaging.local_sgd(inner, period=h),
        "adaptive_period": lambda inner, h: averaging.adaptive_period(
            inner, 0.1, sampling_steps=3, period=h
        ),
        "delayed_average": lambda inner, h: averaging.delayed_average(
            inner, 1, period=h
        ),
        "delayed_average, at once": lambda inner, h: averaging.delayed_average(
            inner, 0, period=h
        ),
        "dga": lambda inner, h: averaging.dga(inner, h),
        "outer": lambda inner, h: averaging.outer(inner, NESTEROV, period=h),
        "outer, in fragments": lambda inner, h: averaging.outer(
            inner, NESTEROV, period=2 * h, delay=1, fragments=2
        ),
        "eager_outer": lambda inner, h: averaging.eager_outer(
            inner, NESTEROV, period=h
        ),
        "outer, compressed": lambda inner, h: averaging.outer(
            inner,
            NESTEROV,
            period=h,
            merge=averaging.blended(0.5),
            compress=dj.exchange.random_blocks(KEY, 0.5),
        ),
    }
