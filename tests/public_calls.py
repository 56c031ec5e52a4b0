"""A good call of every public function, and what none of its arguments can be."""

import functools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st
from jax.sharding import AxisType
from scipy import stats

import delayjax as dj
from delayjax import (
    averaging,
    cluster,
    delays,
    exchange,
    modulation,
    ring,
    stability,
    step_sizes,
)
from delayjax.cluster import protocols
from tests import bad_values as no

WORKERS = 4
SGD = optax.sgd(0.1)
KEY = jax.random.key(0)
PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
SECONDS = np.random.default_rng(0).random((6, WORKERS))
CLUSTER = cluster.Cluster(WORKERS, cluster.exponential(1.0))
TRACE = cluster.simulate(CLUSTER, protocols.k_async(1), 400, seed=0)
TIMES = cluster.exponential(2.0)
LINK = cluster.Communication(1.0, message_bytes=40.0, bytes_per_second=10.0)
MESH = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))


class Call(NamedTuple):
    function: Callable[..., Any]
    use: Callable[[Any], Any]  # of what the function returns
    arguments: dict[str, tuple[Any, st.SearchStrategy]]  # good value, bad values


def nothing(result):
    return result


def call(function, use=nothing, /, **arguments):
    return Call(function, use, arguments)


def or_none(kind):
    return kind.filter(lambda value: value is not None)


def steps(tx, workers=None, axes=("workers",)):
    """Two updates of one worker, or of several along the last axis."""

    def run(params):
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(params, state, params)
        return updates

    # tracing alone: what is refused is refused by then
    if workers is None:
        return jax.eval_shape(run, PARAMS)
    own, *outer = reversed(axes)
    mapped = jax.vmap(run, axis_name=own, axis_size=workers, in_axes=None)
    for name in outer:
        mapped = jax.vmap(mapped, axis_name=name, axis_size=1, in_axes=None)
    return jax.eval_shape(mapped, PARAMS)


def always(gradients, memory, params, **extra_args):
    """Accepts all gradients."""
    return jnp.ones((), bool), gradients, memory


def to_the_mean(step, memory, before, model):
    return jax.lax.pmean(model, "workers"), memory


def told(tx):
    """Two updates that are told where their gradients come from."""

    def run(params):
        state = tx.init(params)
        for _ in range(2):
            _, state = tx.update(
                params,
                state,
                params,
                **{"staleness": 2, "stale_params": params, "worker": 1, "value": 1.0},
            )
        return state

    return jax.eval_shape(run, PARAMS)


over_workers = functools.partial(steps, workers=WORKERS)
in_a_group = functools.partial(over_workers, axes=("groups", "members"))


def asked(schedule):
    """What a function of the step says on each worker."""

    def ask(_):
        return schedule(jnp.int32(1))

    return jax.eval_shape(jax.vmap(ask, axis_name="workers"), jnp.zeros(WORKERS))


def simulated(protocol, workers=CLUSTER):
    return cluster.simulate(workers, protocol, 5, seed=0)


def is_numbers(value):
    return isinstance(value, (np.ndarray, jax.Array, list, tuple))


def drawn(service):
    return cluster.Cluster(WORKERS, service).draw(0, 8, seed=0)


def of_law(law):
    return law(jnp.int32(3))


def loss(params, batch):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def gradient(params, batch, key):
    return {"loss": loss(params, batch)}, params


INNER = {"inner": (SGD, no.transformation)}
AXES = {"axis_name": ("workers", no.axes)}
PERIOD = {"period": (2, no.count)}
MODULATION = (None, or_none(no.function(*no.wrong_answers)))
RECURSION = {
    "momentum": (0.5, no.share),
    "modulation": MODULATION,
    "compensation": (0.0, no.non_negative),
    "extrapolation": (0.0, no.non_negative),
}
DELAY_OF_STABILITY = st.one_of(
    no.integer(0).filter(lambda v: not isinstance(v, (jax.Array, list))),
    no.some([0.5, 0.6], [], [-1.0, 2.0], [math.nan], [[1.0]]),
)
CRITERION = ("mean", no.choice("mean", "mean_square"))
WEIGHT = (None, or_none(no.function("2", None, 1j, np.ones(2))))
ORDER = no.function("2", None, 1.5, np.ones(2, int))
HEAVY = cluster.pareto(1.0, 0.5)
NO_TIMES = no.some(*no.ODD, 1, cluster.infinite_bernoulli(1.0, 0.5), HEAVY)
STALENESS = cluster.StalenessLaw([0.5, 0.5])
EQUATION = stability.DelayEquation(TIMES)
PMF = no.some(*no.ODD, [], [0.5, 0.6], [-1.0, 2.0], [math.nan], [[1.0]], [1j], 1.0)
SLOWDOWNS = no.some([], [1.0] * 3, [math.nan] * 4, [0.0] * 4, ["a"] * 4, 1j)
BOUND_OR_INF = no.finite(no.bound)
LOG = Path(tempfile.mkdtemp()) / "log.csv"
LOG.write_text("update,time_s,worker,read_version\n0,1.5,0,0\n1,1.75,1,0\n")
BROKEN = LOG.with_name("broken.csv")
BROKEN.write_text("update,time_s,worker,read_version\n0,1.5,0,7\n")
SCHEDULE = no.some(*no.ODD, math.nan, -1.0, 1j, [0.1])


def delayed_arguments(**others):
    return {
        "delay": (2, no.delay),
        "max_delay": (3, or_none(no.bound)),
        "warmup": ("fresh", no.choice("fresh", "skip", "zeros")),
        "history": (None, or_none(no.no_storage)),
    } | others


CALLS = (
    {
        "delayed": call(dj.delayed, steps, **INNER, **delayed_arguments()),
        "delayed, by a schedule": call(
            lambda delay: dj.delayed(SGD, delay, max_delay=2),
            steps,
            delay=(lambda step: 1, no.answers("2", None, 1j, np.ones(2))),
        ),
        "delivered": call(
            dj.delivered,
            steps,
            **INNER,
            delay=(2, no.delay | no.some({"w": 1, "b": 2})),
            max_delay=(3, or_none(no.bound)),
            idle=("hold", no.choice("hold", "zeros")),
        ),
        "scale_by_staleness": call(
            dj.scale_by_staleness,
            told,
            law=(modulation.inverse, no.function("2", None, 1j, np.ones(7))),
        ),
        "drop_stale": call(dj.drop_stale, told, **INNER, bound=(2, no.bound)),
        "refusing": call(
            dj.refusing,
            told,
            **INNER,
            accept=(always, no.function(None, True, (True, 1.0), (0.5, 1.0, ()))),
            begin=(None, or_none(no.some(3, "zeros", ()))),
        ),
        "compensate_delay": call(
            dj.compensate_delay,
            told,
            strength=(0.5, no.non_negative),
            decay=(0.9, no.share),
        ),
        "gap_aware": call(
            dj.gap_aware,
            told,
            learning_rate=(0.1, SCHEDULE | no.answers("2", None, 1j, np.ones(7))),
            decay=(0.9, no.share),
            eps=(1e-8, no.positive),
        ),
        "fedasync": call(
            dj.fedasync,
            told,
            mixing=(0.5, no.fraction),
            law=(None, or_none(no.function("2", None, 1j, np.ones(7)))),
        ),
        "local_training": call(
            dj.local_training,
            lambda trained: jax.eval_shape(trained, PARAMS, jnp.ones((6, 2)), KEY),
            grad_fn=(gradient, no.function(None, 3, (1, 2, 3), (None, {}), ("2", {}))),
            tx=(SGD, no.transformation),
            steps=(3, no.count),
            proximal=(0.0, no.non_negative),
        ),
        "step_sizes.adaptive_1": call(
            step_sizes.adaptive_1,
            told,
            budget=(0.5, no.positive),
            max_delay=(4, no.bound),
            share=(0.9, no.number(low=0.0, high=1.0)),
        ),
        "step_sizes.adaptive_2": call(
            step_sizes.adaptive_2,
            told,
            budget=(0.5, no.positive),
            max_delay=(4, no.bound),
        ),
        "step_sizes.adadelay": call(
            step_sizes.adadelay,
            told,
            smoothness=(1.0, no.positive),
            scale=(0.5, no.non_negative),
        ),
        "step_sizes.distance_capped": call(
            step_sizes.distance_capped,
            told,
            learning_rate=(0.1, no.positive),
            reach=(1.0, no.positive),
        ),
        "step_sizes.dasa": call(
            step_sizes.dasa,
            told,
            learning_rate=(
                0.1,
                SCHEDULE | no.some(0.0) | no.answers("2", None, 1j, np.ones(7)),
            ),
            reach=(1.0, no.positive),
            **AXES,
        ),
        "step_sizes.dasgd": call(
            step_sizes.dasgd,
            told,
            learning_rate=(0.1, SCHEDULE | no.answers("2", None, 1j, np.ones(7))),
            project=(None, or_none(no.function(None, 1.5, np.ones(7)))),
        ),
        "step_sizes.harmonic": call(
            step_sizes.harmonic,
            asked,
            scale=(1.0, no.positive),
            logarithms=(1, no.bound),
        ),
        "attack": call(
            dj.attack,
            told,
            **INNER,
            attackers=([1, 2], no.some(*no.ODD, 3, 1.5, [-1], [0.5], [True], [[1]])),
        ),
        "kardam": call(
            dj.kardam,
            told,
            **INNER,
            workers=(WORKERS, no.integer(3)),
            attackers=(1, no.bound),
            window=(26, no.count),
            patience=(None, or_none(no.count)),
        ),
        "zeno_plus_plus": call(
            dj.zeno_plus_plus,
            told,
            **INNER,
            grad_fn=(lambda x: x, no.function("2", None, 1j, np.ones(7))),
            learning_rate=(0.1, no.positive),
            rho=(0.1, no.non_negative),
            eps=(0.1, no.non_negative),
            refresh_every=(10, no.count),
        ),
        "guided": call(
            dj.guided,
            told,
            loss_fn=(
                lambda params: loss(params, None),
                no.function("2", None, 1j, np.ones(7)),
            ),
            period=(2, no.count),
            replays=(4, no.count),
        ),
        "dana": call(dj.dana, told, decay=(0.9, no.share), workers=(3, no.count)),
        "yellowfin": call(
            dj.yellowfin,
            told,
            decay=(0.9, no.share),
            window=(20, no.count),
            factor=(1.0, no.positive),
            smoothing=(0.0, no.share),
            gain=(0.01, no.non_negative),
            coordinates=(8, no.count),
        ),
        "closed_loop_momentum": call(
            dj.closed_loop_momentum,
            told,
            learning_rate=(0.1, SCHEDULE | no.answers("2", None, 1j, np.ones(7))),
            target=(0.5, no.number(low=-1.0, high=1.0)),
            gain=(0.01, no.non_negative),
            coordinates=(8, no.count),
        ),
        "staleness": call(
            dj.staleness,
            opt_state=(dj.delayed(SGD, 1).init(PARAMS), no.some(None, 3, ())),
        ),
        "strip_history": call(dj.strip_history, state=((), st.nothing())),
        "resize_history": call(
            dj.resize_history,
            state=(dj.delayed(SGD, 1).init(PARAMS), no.some(3, SGD.init(PARAMS))),
            like=(dj.delayed(SGD, 4).init(PARAMS), no.some(None, SGD.init(PARAMS))),
        ),
        "replay": call(
            dj.replay,
            lambda training: training.run(
                training.init(PARAMS, KEY), jnp.ones((2, TRACE.max_gradients))
            ),
            trace=(TRACE, no.some(None, 3, [], TRACE.staleness, "trace", [3])),
            grad_fn=(gradient, no.function(None, 3, (1, 2, 3), (None, {}), ("2", {}))),
            tx=(SGD, no.transformation),
            each=(None, or_none(no.transformation)),
            aggregation=(None, no.some(3, "mean", SGD, len)),
            chunk=(None, or_none(no.count)),
            max_staleness=(None, or_none(no.bound)),
            read_spread=(0.0, no.up_to_one),
        ),
        "adasync": call(
            dj.adasync,
            lambda training: jax.eval_shape(
                training.step, training.init(PARAMS, KEY), jnp.ones(WORKERS)
            ),
            cluster=(CLUSTER, no.some(None, 3, TRACE, "four")),
            grad_fn=(gradient, no.function(None, 3, (1, 2, 3), (None, {}), ("2", {}))),
            tx=(SGD, no.transformation),
            scheme=(
                protocols.k_async(2),
                no.some(*no.ODD, "k_sync", protocols.hardsync(), protocols.k_sync(9)),
            ),
            interval_seconds=(
                1.0,
                st.one_of(st.floats(max_value=0), no.some(math.nan, *no.NO_NUMBER)),
            ),
            loss=(lambda metrics: metrics["loss"], no.function("2", None, np.ones(7))),
            seed=(0, no.seed),
            max_staleness=(8, or_none(no.bound)),
            draws=(16, no.count),
        ),
        # rings
        "ring.init": call(
            ring.init, tree=(PARAMS, no.some("2", object())), capacity=(3, no.count)
        ),
        "ring.push": call(
            ring.push,
            ring=(ring.init(PARAMS, 2), no.some(None, 3, PARAMS, "2")),
            tree=(
                PARAMS,
                no.some(None, 3, {"w": jnp.ones((2, 2))}, {**PARAMS, "b": 1.0}),
            ),
        ),
        "ring.read": call(
            ring.read,
            ring=(ring.init(PARAMS, 2), no.some(None, 3, PARAMS, "2")),
            like=(PARAMS, no.some(None, 3, {"w": jnp.ones((2, 2))})),
            age=(
                1,
                # True is 1; a float beyond int32 is NumPy's to warn of
                no.integer(0, 1).filter(
                    lambda v: not isinstance(v, (bool, np.bool, float))
                )
                | no.some({"w": 1}, jnp.ones(7, int)),
            ),
        ),
        "ring.cast": call(
            ring.cast,
            lambda storage: storage.init(PARAMS, 2),
            dtype=(
                jnp.bfloat16,
                no.some(3, "2", jnp.int32, jnp.complex64, object()),
            ),
            storage=(None, or_none(no.no_storage)),
        ),
        "ring.on_host": call(ring.on_host),
        "ring.sharded": call(
            ring.sharded,
            lambda storage: storage.init(PARAMS, 2),
            axis_name=("data", no.axes),
            mesh=(MESH, no.some(None, 3, "data", jax.devices())),
            bucket_bytes=(64, no.bound),
        ),
        "ring.sharded, over workers": call(
            ring.sharded,
            lambda storage: storage.init(PARAMS, 2),
            axis_name=("workers", no.axes),
            num_workers=(4, no.count),
        ),
        "ring.vmap_axes": call(ring.vmap_axes, tree=((), st.nothing())),
        # delays
        "delays.uniform": call(
            delays.uniform,
            asked,
            key=(KEY, no.key),
            low=(1, no.integer(0, 4)),
            high=(4, no.integer(1)),
            axis_name=("workers", or_none(no.axes)),
        ),
        "delays.geometric": call(
            delays.geometric,
            asked,
            key=(KEY, no.key),
            mean=(2.0, no.non_negative),
            axis_name=("workers", or_none(no.axes)),
        ),
        "delays.poisson": call(
            delays.poisson,
            asked,
            key=(KEY, no.key),
            mean=(2.0, no.non_negative),
            axis_name=("workers", or_none(no.axes)),
        ),
        "delays.from_trace": call(
            delays.from_trace,
            asked,
            staleness=([0, 1, 2], no.integers | no.some([[1, 2], [2, 3]], 3)),
        ),
        "delays.per_worker": call(
            delays.per_worker,
            asked,
            delays=(
                [0, 1, 2, 3],
                no.integers | no.some([1, 2, 3], 3, [[[0, 1, 2, 3]]]),
            ),
            **AXES,
        ),
        # laws
        "modulation.inverse": call(
            modulation.inverse, staleness=(3, no.some("2", None))
        ),
        "modulation.polynomial": call(
            modulation.polynomial, of_law, power=(0.5, no.non_negative)
        ),
        "modulation.hinge": call(
            modulation.hinge,
            of_law,
            slope=(1.0, no.non_negative),
            knee=(4, no.non_negative),
        ),
        "modulation.capped": call(modulation.capped, of_law, workers=(4, no.positive)),
        "modulation.delay_adaptive": call(
            modulation.delay_adaptive,
            of_law,
            learning_rate=(0.1, no.positive),
            concurrency=(4, no.non_negative),
            bound=(1.0, no.positive),
        ),
        "modulation.exponential": call(
            modulation.exponential, of_law, rate=(0.2, no.non_negative)
        ),
        "protocols.Ringleader.aggregation": call(
            protocols.ringleader().aggregation,
            lambda rule: rule.init(PARAMS),
            num_workers=(2, no.count),
        ),
        # exchange
        "exchange.mean": call(
            exchange.mean, over_workers, **INNER, **AXES, weight=WEIGHT
        ),
        "exchange.overlapped_mean": call(
            exchange.overlapped_mean,
            over_workers,
            **INNER,
            **AXES,
            weight=WEIGHT,
        ),
        "exchange.late_between_groups": call(
            exchange.late_between_groups,
            in_a_group,
            **INNER,
            num_members=(WORKERS, no.count),
            axis_name=(("groups", "members"), no.axes),
        ),
        "exchange.a2sgd": call(exchange.a2sgd, over_workers, **INNER, **AXES),
        "exchange.partial_mean": call(
            exchange.partial_mean,
            over_workers,
            **INNER,
            **AXES,
            participates=(
                lambda step: True,
                no.function("2", None, 1.5, np.ones(2, bool)),
            ),
        ),
        "exchange.solo": call(
            exchange.solo, asked, **AXES, seconds=(SECONDS, no.table)
        ),
        "exchange.majority": call(
            exchange.majority,
            asked,
            **AXES,
            key=(KEY, no.key),
            seconds=(SECONDS, no.table),
        ),
        "exchange.error_feedback": call(
            exchange.error_feedback,
            over_workers,
            **INNER,
            **AXES,
            compress=(
                exchange.random_blocks(KEY, 0.5),
                no.function("2", None, (1, 2), (PARAMS, lambda m: None)),
            ),
        ),
        "exchange.random_blocks": call(
            exchange.random_blocks,
            lambda compress: jax.eval_shape(lambda: compress(PARAMS, jnp.int32(0))[0]),
            key=(KEY, no.key),
            fraction=(0.5, no.fraction),
        ),
        "exchange.detached": call(
            exchange.detached,
            **AXES,
            params=(PARAMS, no.some(3, {"w": jnp.ones((2, 2))}, "2")),
            opt_state=(
                exchange.error_feedback(SGD, exchange.random_blocks(KEY, 0.5)).init(
                    PARAMS
                ),
                no.some(None, (), SGD.init(PARAMS)),
            ),
            strength=(
                0.5,
                no.up_to_one.filter(lambda v: v is not int)  # it answers a step
                | no.answers("2", None, np.ones(7)),
            ),
        ),
        # averaging
        "averaging.easgd": call(
            averaging.easgd,
            over_workers,
            **INNER,
            **AXES,
            **PERIOD,
            moving_rate=(0.1, or_none(no.non_negative)),
            order=(averaging.by_rank(), or_none(ORDER)),
            lock_free=(averaging.races(KEY, 2), no.some(3, "2", object(), KEY)),
        ),
        "averaging.downpour": call(
            averaging.downpour,
            over_workers,
            **INNER,
            **AXES,
            **PERIOD,
            server=(None, or_none(no.transformation)),
            average=(
                0.1,
                or_none(no.fraction).filter(lambda v: v is not int)  # as above
                | no.answers("2", None, np.ones(7)),
            ),
            order=(averaging.by_rank(), or_none(ORDER)),
            lock_free=(averaging.races(KEY, 2), no.some(3, "2", object(), KEY)),
        ),
        "averaging.wagma": call(
            averaging.wagma,
            over_workers,
            **INNER,
            **AXES,
            **PERIOD,
            group_size=(2, or_none(no.count) | no.some(3, 8)),
            lateness=(lambda step: 1, or_none(ORDER)),
            max_lateness=(2, no.count),
        ),
        "averaging.gossip": call(
            averaging.gossip, over_workers, key=(KEY, no.key), **INNER, **AXES, **PERIOD
        ),
        "averaging.ad_psgd": call(
            averaging.ad_psgd,
            over_workers,
            key=(KEY, no.key),
            **INNER,
            **AXES,
            **PERIOD,
        ),
        "averaging.d_psgd": call(
            averaging.d_psgd, over_workers, **INNER, **AXES, **PERIOD
        ),
        "averaging.sgp": call(
            averaging.sgp,
            over_workers,
            **INNER,
            **AXES,
            **PERIOD,
            peers=(2, no.integer(1, 2)),
            participates=(
                lambda step: True,
                or_none(no.function("2", None, 1.5, np.ones(2, bool))),
            ),
        ),
        "extend.averaged": call(
            dj.extend.averaged,
            over_workers,
            **INNER,
            **AXES,
            mix=(to_the_mean, no.function(None, 1.0, (1.0,), (1.0, (), ()))),
            begin=(None, or_none(no.some(3, "zeros", ()))),
        ),
        "averaging.local_sgd": call(
            averaging.local_sgd, over_workers, **INNER, **AXES, **PERIOD
        ),
        "averaging.adaptive_period": call(
            averaging.adaptive_period,
            over_workers,
            **INNER,
            **AXES,
            **PERIOD,
            learning_rate=(
                0.1,
                no.positive.filter(lambda v: v is not int)  # it answers a step
                | no.answers("2", None, np.ones(7)),
            ),
            sampling_steps=(2, no.count),
        ),
        "averaging.delayed_average": call(
            averaging.delayed_average,
            over_workers,
            **INNER,
            **AXES,
            delay=(1, no.integer(0, 2)),
            period=(2, no.count),
            merge=(averaging.corrected, no.function("2", None, np.ones(7))),
        ),
        "averaging.dga": call(
            averaging.dga, over_workers, **INNER, **AXES, delay=(2, no.count)
        ),
        "averaging.only_on_visit": call(
            averaging.only_on_visit,
            over_workers,
            **INNER,
            **AXES,
            order=(averaging.by_rank(), ORDER),
        ),
        "averaging.blended": call(averaging.blended, share=(0.5, no.share)),
        "averaging.races": call(
            averaging.races,
            lambda races: jax.eval_shape(lambda: races.ages(0, 0, PARAMS)),
            key=(KEY, no.key),
            max_age=(2, no.bound),
            lost=(0.1, no.share),
        ),
        "averaging.by_rank": call(
            averaging.by_rank,
            asked,
            axis_name=("workers", no.some("", "w", ("workers", "w"))),
        ),
        "averaging.first_come": call(
            averaging.first_come, asked, **AXES, seconds=(SECONDS, no.table)
        ),
        "cluster.visits_to_rounds": call(
            cluster.visits_to_rounds,
            workers=([0, 1, 0], no.integers),
            num_workers=(2, no.integer(2)),
        ),
        "averaging.moving_rate_limit": call(
            averaging.moving_rate_limit,
            num_workers=(4, no.count),
            step_size=(0.5, no.number(least=0.0, high=2.0)),
        ),
        "averaging.look_ahead": call(
            averaging.look_ahead,
            params=(PARAMS, no.some(3, {"w": jnp.ones((2, 2))}, "2")),
            opt_state=(
                optax.trace(0.9).init(PARAMS),
                no.some(None, (), SGD.init(PARAMS)),
            ),
            momentum=(0.9, no.share),
        ),
        "cluster.waits_for_all": call(
            cluster.waits_for_all, lambda waits: waits(0, 4), period=(2, no.count)
        ),
        "cluster.finish_times": call(
            cluster.finish_times,
            seconds=(SECONDS, no.table | no.some(-SECONDS, SECONDS * math.inf)),
            waits=(
                cluster.waits_for_self,
                no.function("2", None, np.ones(2), np.ones((3, 3))),
            ),
            lag=(1, no.bound),
            exchange_seconds=(
                0.5,
                (no.non_negative | no.answers("2", None, -1.0)).filter(
                    lambda v: v is not int
                ),
            ),
        ),
        "cluster.wait_avoiding": call(
            cluster.wait_avoiding,
            seconds=(SECONDS, no.table),
            period=(2, no.count),
            slack_seconds=(0.1, no.non_negative),
            exchange_seconds=(
                0.5,
                (no.non_negative | no.answers("2", None, -1.0)).filter(
                    lambda v: v is not int
                ),
            ),
        ),
        "cluster.Communication.all_reduce_seconds": call(
            LINK.all_reduce_seconds, workers=(4, no.count)
        ),
        "cluster.Communication.group_seconds": call(
            LINK.group_seconds, group_size=(4, no.count | no.some(3, 6))
        ),
        # workers
        "workers.vary": call(dj.workers.vary, **AXES, tree=((), st.nothing())),
        "workers.simulate": call(
            dj.workers.simulate,
            lambda held: held.step(
                held.init(jnp.zeros(2), jnp.ones(WORKERS)), jnp.ones(WORKERS)
            ),
            step=(lambda x, b: (x, b), no.function("2", None, (1, 2, 3))),
            num_workers=(WORKERS, no.count),
            **AXES,
        ),
        "workers.run": call(
            dj.workers.run,
            lambda held: held.step(held.init(jnp.zeros(2), jnp.ones(1)), jnp.ones(1)),
            step=(lambda x, b: (x, b), no.function("2", None, (1, 2, 3))),
            mesh=(MESH, no.some(*no.ODD, 3, jax.devices())),
            axis_name=("data", no.axes | no.some("workers")),
        ),
        "workers.WorkerState.one": call(
            dj.workers.WorkerState(jnp.arange(4), (("workers",),)).one,
            # a missing name is a KeyError
            worker=(2, no.some(-1, 4, 7)),
        ),
        "workers.WorkerState.shardings": call(
            dj.workers.WorkerState(jnp.arange(4), (("data",),)).shardings,
            mesh=(MESH, no.some(*no.ODD, 3, jax.devices())),
        ),
        # clusters
        "cluster.Cluster": call(
            cluster.Cluster,
            lambda cluster: simulated(protocols.k_async(1), cluster),
            workers=(WORKERS, no.count),
            service=(
                cluster.exponential(1.0),
                no.function(
                    "2", None, [-1.0], [np.ones(1)], iter([np.ones(2) * math.nan])
                )
                | no.some([cluster.exponential(1.0)] * 3, cluster.exponential),
            ),
            slowdown=([1.0] * WORKERS, or_none(no.function()) | SLOWDOWNS),
            communication=(None, or_none(no.some(*no.ODD, 1.0))),
        ),
        "cluster.Slowdown": call(
            cluster.Slowdown,
            lambda slowdown: simulated(
                protocols.k_async(1),
                cluster.Cluster(WORKERS, cluster.constant(1.0), slowdown=[slowdown]),
            ),
            workers=(0, no.some(*no.ODD, 1.5, 4, -1, [0.5], [[0], [1, 2]])),
            factor=(4.0, no.finite(no.positive)),
            start_seconds=(1.0, no.number(least=0.0, high=2.0)),
            stop_seconds=(2.0, no.finite(no.number(low=1.0))),
        ),
        "cluster.Communication": call(
            cluster.Communication,
            lambda link: simulated(
                protocols.k_async(1),
                cluster.Cluster(WORKERS, cluster.constant(1.0), communication=link),
            ),
            latency_seconds=(1.0, no.non_negative),
            message_bytes=(4.0, no.non_negative),
            bytes_per_second=(1.0, no.finite(no.positive)),
        ),
        "cluster.Cluster.draw": call(
            CLUSTER.draw,
            worker=(0, no.integer(0, 3)),
            size=(4, no.bound),
            seed=(0, no.seed),
            stream=(0, no.seed),
        ),
        "cluster.constant": call(cluster.constant, drawn, seconds=(1.0, no.positive)),
        "cluster.exponential": call(
            cluster.exponential, drawn, mean_seconds=(1.0, no.positive)
        ),
        "cluster.shifted_exponential": call(
            cluster.shifted_exponential,
            drawn,
            shift_seconds=(1.0, no.non_negative),
            mean_seconds=(1.0, no.positive),
        ),
        "cluster.gamma": call(
            cluster.gamma,
            drawn,
            mean_seconds=(1.0, no.positive),
            shape=(2.0, no.positive),
        ),
        "cluster.lognormal": call(
            cluster.lognormal,
            drawn,
            mean_seconds=(1.0, no.positive),
            cv=(0.5, no.positive),
        ),
        "cluster.pareto": call(
            cluster.pareto,
            drawn,
            scale_seconds=(1.0, no.positive),
            shape=(2.0, no.positive),
        ),
        "cluster.uniform": call(
            cluster.uniform,
            drawn,
            low_seconds=(1.0, no.number(least=0.0, high=2.0)),
            high_seconds=(2.0, no.number(low=1.0)),
        ),
        "cluster.from_scipy": call(
            cluster.from_scipy,
            drawn,
            distribution=(stats.expon(), no.some(*no.ODD, 1.0, stats.norm())),
        ),
        "cluster.ServiceTime.kth_mean": call(
            TIMES.kth_mean,
            k=(2, no.integer(1, WORKERS)),
            workers=(WORKERS, no.integer(2)),
        ),
        "cluster.ServiceTime.scaled": call(TIMES.scaled, factor=(2.0, no.positive)),
        "cluster.infinite_bernoulli": call(
            cluster.infinite_bernoulli,
            drawn,
            seconds=(1.0, no.positive),
            hang_probability=(0.5, no.share),
        ),
        "cluster.markov_stragglers": call(
            cluster.markov_stragglers,
            drawn,
            service=(cluster.constant(1.0), no.function("2", None, [-1.0])),
            slowdown=(5.0, no.positive),
            enter=(0.1, no.up_to_one),
            leave=(0.4, no.up_to_one),
        ),
        "cluster.sleepers": call(
            cluster.sleepers,
            drawn,
            seconds=(1.0, no.positive),
            sleep_seconds=(1.0, no.positive),
            workers=(4, no.count),
            asleep=(2, no.bound),
        ),
        "cluster.empirical": call(
            cluster.empirical, drawn, samples=([1.0, 2.0], no.numbers)
        ),
        "cluster.by_batch": call(
            cluster.by_batch,
            drawn,
            seconds_of=(
                lambda worker, batches: 1.0 + 0.0 * batches,
                no.function(None, np.ones(3), -np.ones(3)),
            ),
        ),
        "cluster.independent": call(
            cluster.independent,
            drawn,
            draw=(
                lambda rng, size: rng.random(size),
                no.function("2", None, 1j, -np.ones(3), np.ones((2, 2))),
            ),
        ),
        "cluster.simulate": call(
            cluster.simulate,
            cluster=(CLUSTER, no.some(*no.ODD, 4, TIMES)),
            protocol=(
                protocols.k_async(1),
                no.function("2", None) | no.some(protocols.k_async, protocols.hardsync),
            ),
            num_updates=(
                5,
                no.count.filter(lambda v: v is not None),
            ),  # the seconds end
            seed=(0, no.seed),
            seconds=(9.0, no.finite(no.positive)),
        ),
        "cluster.staleness_law": call(
            cluster.staleness_law,
            cluster=(
                CLUSTER,
                no.some(
                    *no.ODD, 4, TIMES, cluster.Cluster(2, TIMES, communication=LINK)
                ),
            ),
        ),
        "cluster.arrival_rate": call(
            cluster.arrival_rate,
            workers=(4, no.count),
            mean_seconds=(1.0, no.positive.filter(lambda v: not is_numbers(v))),
            server_seconds=(0.1, no.non_negative),
            sent=(0.5, no.fraction),
        ),
        "cluster.run_time": call(
            cluster.run_time,
            target=(0.1, no.positive),
            rates=([0.5, 1.0], no.some(*no.ODD, [math.nan], ["a"], 1j)),
            start=(1.0, no.some(*no.ODD, math.nan, math.inf, [1.0] * 3, 1j)),
        ),
        "cluster.StalenessLaw": call(cluster.StalenessLaw, pmf=([0.5, 0.5], PMF)),
        "cluster.StalenessLaw.filtered_at_random": call(
            STALENESS.filtered_at_random, probability=(0.5, no.fraction)
        ),
        "cluster.StalenessLaw.filtered_by_bound": call(
            STALENESS.filtered_by_bound, bound=(1, no.bound)
        ),
        "cluster.load_trace": call(
            cluster.load_trace,
            path=(LOG, no.some(*no.ODD[:3], 3, 1.5, "log.txt", LOG.parent, BROKEN)),
            num_workers=(2, or_none(no.count)),
        ),
        "cluster.Trace.arrivals": call(
            TRACE.arrivals,
            start=(0, no.integer(0, 4)),
            stop=(4, no.integer(0, 400)),
            width=(1, no.bound),
        ),
        "cluster.Trace.staleness_law": call(
            TRACE.staleness_law, burn_in=(2, no.integer(0, 399))
        ),
        "cluster.Trace.save": call(
            TRACE.save,
            path=(
                LOG.with_name("saved.npz"),
                no.some(None, 3, "log.txt", "log", b"x.npz"),
            ),
        ),
        "protocols.fedbuff": call(
            protocols.fedbuff,
            simulated,
            buffer=(2, no.count),
            concurrency=(2, no.integer(1, WORKERS)),
        ),
        "protocols.ssp": call(protocols.ssp, simulated, bound=(2, BOUND_OR_INF)),
        "protocols.psp": call(
            protocols.psp,
            simulated,
            sample=(2, no.bound),
            bound=(2, BOUND_OR_INF),
            poll_seconds=(1.0, no.finite(no.positive)),
        ),
        "protocols.bounded_staleness": call(
            protocols.bounded_staleness,
            simulated,
            bound=(3, no.bound),
            late=("drop", no.choice("drop", "restart", "wait")),
            batch=(1, no.count),
        ),
        "protocols.ringmaster": call(
            protocols.ringmaster, simulated, bound=(3, no.count)
        ),
        "protocols.event_triggered": call(
            protocols.event_triggered, simulated, probability=(0.5, no.fraction)
        ),
        "protocols.gradient_coding": call(
            protocols.gradient_coding,
            simulated,
            num_clusters=(2, no.integer(1, WORKERS)),
            load=(2, no.integer(1, 2)),
        ),
        "protocols.groups": call(
            protocols.groups,
            simulated,
            num_groups=(2, no.integer(1, WORKERS)),
            data=("dynamic", no.choice("dynamic", "static")),
        ),
        "protocols.progressive_groups": call(
            protocols.progressive_groups,
            simulated,
            max_groups=(2, no.integer(1, WORKERS)),
            tolerance=(0.2, no.positive),
            every=(20, no.count),
        ),
        "protocols.mindflayer": call(
            protocols.mindflayer,
            simulated,
            trials=(2, no.count | no.some([1] * 3, [0] * 4, [1.5] * 4, [-1] * 4)),
            allotted_seconds=(
                9.0,
                no.finite(no.positive).filter(lambda v: not is_numbers(v))
                | no.some([1.0] * 3, [0.0] * 4),
            ),
        ),
        "protocols.rennala": call(protocols.rennala, simulated, batch=(2, no.count)),
    }
    | {
        f"protocols.{protocol.__name__}": call(
            protocol, simulated, **{argument: (2, no.integer(1, WORKERS))}
        )
        for protocol, argument in {
            protocols.k_sync: "k",
            protocols.k_async: "k",
            protocols.k_batch_sync: "k",
            protocols.k_batch_async: "k",
            protocols.n_softsync: "n",
        }.items()
    }
    | {
        # stability
        "stability.Dynamics": call(
            stability.Dynamics, delay=(2, DELAY_OF_STABILITY), **RECURSION
        ),
        "stability.Dynamics.step_limit": call(
            stability.Dynamics(2).step_limit, criterion=CRITERION
        ),
        "stability.Dynamics.spectral_radius": call(
            stability.Dynamics(2).spectral_radius, step=(0.1, no.non_negative)
        ),
        "stability.Dynamics.roots": call(
            stability.Dynamics(2).roots, step=(0.1, no.non_negative)
        ),
        "stability.Dynamics.stationary_variance": call(
            stability.Dynamics(2).stationary_variance,
            step=(0.1, no.non_negative),
            noise=(1.0, no.non_negative),
        ),
        "stability.TraceDynamics": call(
            stability.TraceDynamics,
            staleness=(TRACE.staleness, no.integers),
            **RECURSION,
        ),
        "stability.TraceDynamics.growth": call(
            stability.TraceDynamics(TRACE.staleness).growth,
            step=(0.1, no.non_negative.filter(lambda v: not is_numbers(v))),
        ),
        "stability.learning_rate_limit": call(
            stability.learning_rate_limit,
            sharpness=(10.0, no.some(math.nan, *no.NO_NUMBER)),
            dynamics=(stability.Dynamics(2), st.nothing()),
            criterion=CRITERION,
        ),
        "stability.predict_step_limit": call(
            stability.predict_step_limit,
            loss=(loss, no.function("2", None, 1j, np.ones(2))),
            params=(PARAMS, no.some({}, "2", {"w": 1j})),
            batch=(None, st.nothing()),
            dynamics=(stability.Dynamics(2), st.nothing()),
        ),
        "stability.sharpness": call(
            stability.sharpness,
            loss=(loss, no.function("2", None, 1j, np.ones(2))),
            params=(PARAMS, no.some({}, "2", {"w": 1j})),
            batch=(None, st.nothing()),
            preconditioner=(
                PARAMS,
                no.some(3, "2", {"w": 1.0}, optax.tree.scale(-1, PARAMS)),
            ),
        ),
        "stability.hessian_eigenvalues": call(
            stability.hessian_eigenvalues,
            loss=(loss, no.function("2", None, 1j, np.ones(2))),
            params=(PARAMS, no.some({}, "2", {"w": 1j})),
            batch=(None, st.nothing()),
            count=(2, no.integer(1, 6)),
        ),
        "stability.adam_preconditioner": call(
            stability.adam_preconditioner,
            second_moment=(
                PARAMS,
                no.some("2", {"w": 1j}),
            ),
            eps=(1e-8, no.non_negative),
            eps_root=(0.0, no.non_negative),
        ),
        "stability.error_bound": call(
            stability.error_bound,
            seconds=(
                9.0,
                no.finite(no.non_negative).filter(lambda v: not is_numbers(v)),
            ),
            update_seconds=(1.0, no.positive),
            k=(2, no.count),
            learning_rate=(0.1, no.number(low=0.0, most=0.25)),
            smallest=(1.0, no.number(low=0.0, most=2.0)),
            largest=(2.0, no.number(least=1.0)),
            noise=(1.0, no.non_negative),
            start=(1.0, no.non_negative),
            agreement=(1.0, no.fraction),
        ),
        "stability.explicit_momentum": call(
            stability.explicit_momentum,
            total=(0.5, no.number(low=-1.0, high=1.0)),
            workers=(4, no.count),
        ),
        "stability.implicit_momentum": call(
            stability.implicit_momentum, workers=(4, no.count)
        ),
        "stability.DelayEquation": call(
            stability.DelayEquation, service_time=(TIMES, NO_TIMES)
        ),
        "stability.DelayEquation.half_update_earlier": call(
            EQUATION.half_update_earlier, workers=(4, no.count)
        ),
        "stability.DelayEquation.roots": call(
            EQUATION.roots, gain=(0.1, no.non_negative), number=(2, no.count)
        ),
        "stability.DelayEquation.decay_rate": call(
            EQUATION.decay_rate, gain=(0.1, no.non_negative)
        ),
        "stability.DelayEquation.gain_limit": call(
            EQUATION.gain_limit, workers=(4, no.finite(no.count))
        ),
        "stability.workers_decay_rate": call(
            stability.workers_decay_rate,
            step=(0.1, no.non_negative.filter(lambda v: not is_numbers(v))),
            workers=(4, no.count),
            service_time=(TIMES, NO_TIMES),
        ),
        "stability.optimal_workers": call(
            stability.optimal_workers,
            step=(0.1, no.number(least=1e-15)),
            service_time=(cluster.constant(1.0), NO_TIMES),
            condition=(2.0, no.number(least=1.0)),
        ),
        "stability.DelayEquation.variance": call(
            EQUATION.variance,
            gain=(0.1, no.non_negative),
            noise=(1.0, no.non_negative),
        ),
        "stability.DelayEquation.paths": call(
            EQUATION.paths,
            gain=(0.1, no.non_negative),
            paths=(2, no.count),
            steps=(8, no.count),
            step_seconds=(0.1, no.number(low=0.0, high=2.5)),
            seed=(0, no.seed),
            noise=(1.0, no.non_negative),
            every=(2, no.count),
        ),
    }
    | {
        f"protocols.{scheme.name}.update_seconds": call(
            scheme.update_seconds,
            workers=(WORKERS, no.integer(2)),
            service_time=(TIMES, NO_TIMES.filter(lambda times: times is not HEAVY)),
        )
        for scheme in (
            protocols.k_sync(2),
            protocols.k_async(2),
            protocols.k_batch_sync(2),
            protocols.k_batch_async(2),
        )
    }
)

CALLS |= {
    "inject_staleness": call(
        dj.inject_staleness, steps, inner=(SGD, no.transformation)
    ),
    "exchange.late_reduce": call(
        exchange.late_reduce,
        inner=(SGD, no.transformation),
        mesh=(MESH, no.some(*no.ODD, 4, jax.devices())),
        axis_name=("data", no.axes),
    ),
}
