"""A valid call of every public function, and invalid values of each argument."""

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
    pipelines,
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
STARTS = 2.0 * np.arange(WORKERS) + SECONDS
RECORDED = cluster.Recorded(SECONDS)
TRACE = cluster.simulate(CLUSTER, protocols.k_async(1), 400, seed=0)
TIMES = cluster.exponential(2.0)
LINK = cluster.Communication(1.0, message_bytes=40.0, bytes_per_second=10.0)
MESH = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))


class Call(NamedTuple):
    label: str
    function: Callable[..., Any]
    use: Callable[[Any], Any]  # is called with what the function returns
    arguments: dict[str, tuple[Any, st.SearchStrategy]]  # a valid value, invalid ones


def nothing(result):
    return result


def evaluated(function, *args):
    """The shapes of the result, by tracing alone: errors are raised while tracing."""
    return jax.eval_shape(function, *args)


# the public modules, by the prefix of their names in labels
MODULES = {
    "": dj,
    "workers.": dj.workers,
    "extend.": dj.extend,
    "averaging.": averaging,
    "cluster.": cluster,
    "delays.": delays,
    "exchange.": exchange,
    "modulation.": modulation,
    "pipelines.": pipelines,
    "protocols.": protocols,
    "ring.": ring,
    "stability.": stability,
    "step_sizes.": step_sizes,
}
LABELS = {
    value: f"{prefix}{name}"
    for prefix, module in MODULES.items()
    for name, value in vars(module).items()
    if callable(value)
}


def call(function, use=nothing, /, *, label="", **arguments):
    """A row. Methods, and the second row of a function, need a `label`."""
    return Call(label or LABELS[function], function, use, arguments)


def or_none(kind):
    return kind.filter(lambda value: value is not None)


def steps(tx, workers=None, axes=("workers",)):
    """Two updates of one worker, or of `workers` workers along the last of `axes`."""

    def run(params):
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(params, state, params)
        return updates, state

    if workers is None:
        return evaluated(run, PARAMS)
    innermost, *outer = reversed(axes)
    mapped = jax.vmap(run, axis_name=innermost, axis_size=workers, in_axes=None)
    for name in outer:
        mapped = jax.vmap(mapped, axis_name=name, axis_size=1, in_axes=None)
    return evaluated(mapped, PARAMS)


def always(gradients, memory, params, **extra_args):
    """Accepts all gradients."""
    return jnp.ones((), bool), gradients, memory


def to_the_mean(step, memory, before, model):
    return jax.lax.pmean(model, "workers"), memory


def pair(tx):
    """Two updates, with the staleness, the worker and so on of their gradients."""

    def run(params):
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(
                params,
                state,
                params,
                **{"staleness": 2, "stale_params": params, "worker": 1, "value": 1.0},
            )
        return updates, state

    return evaluated(run, PARAMS)


over_workers = functools.partial(steps, workers=WORKERS)
in_a_group = functools.partial(over_workers, axes=("groups", "members"))


def asked(schedule):
    """The value of a function of the step on each worker."""

    def ask(_):
        return schedule(jnp.int32(1))

    return evaluated(jax.vmap(ask, axis_name="workers"), jnp.zeros(WORKERS))


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
EXCHANGED = INNER | AXES
AVERAGED = EXCHANGED | {"period": (2, no.count)}
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
TASKS = LOG.with_name("tasks.csv")
TASKS.write_text("worker,step,seconds,start\n0,0,1.5,1.0\n1,0,1.75,1.0\n")
SCHEDULE = no.some(*no.ODD, math.nan, -1.0, 1j, [0.1])
NO_SCHEDULE = SCHEDULE | no.answers("2", None, 1j, np.ones(7))
NO_LAW = no.function("2", None, 1j, np.ones(7))
NO_GRADIENT = no.function(None, 3, (1, 2, 3), (None, {}), ("2", {}))
NO_LOSS = no.function("2", None, 1j, np.ones(2))
OF_LOSS = {
    "loss": (loss, NO_LOSS),
    "params": (PARAMS, no.some({}, "2", {"w": 1j})),
    "batch": (None, st.nothing()),
}
TRAINED = {"grad_fn": (gradient, NO_GRADIENT), "tx": (SGD, no.transformation)}
NO_SECONDS = (no.non_negative | no.answers("2", None, -1.0)).filter(
    lambda value: value is not int
)
EXCHANGE_SECONDS = {"exchange_seconds": (0.5, NO_SECONDS)}
KEYED = {"key": (KEY, no.key)}
SEED = {"seed": (0, no.seed)}
TABLE = {"seconds": (SECONDS, no.table)}


def of_kind(bad):
    """Makes rows of arguments of one kind: `bad` are the invalid values of the kind."""
    return lambda **good: {name: (value, bad) for name, value in good.items()}


positive = of_kind(no.positive)
non_negative = of_kind(no.non_negative)
count = of_kind(no.count)
bound = of_kind(no.bound)
share = of_kind(no.share)
fraction = of_kind(no.fraction)
up_to_one = of_kind(no.up_to_one)


FROZEN = (None, or_none(no.some(3, "w", {"w": 1, "b": 0}, {"v": True})))


def delayed_arguments(**others):
    return {
        "delay": (2, no.delay),
        "max_delay": (3, or_none(no.bound)),
        "warmup": ("fresh", no.choice("fresh", "skip", "zeros")),
        "history": (None, or_none(no.no_storage)),
        "frozen": FROZEN,
    } | others


ROWS = (
    call(dj.delayed, steps, **INNER, **delayed_arguments()),
    call(
        lambda delay: dj.delayed(SGD, delay, max_delay=2),
        steps,
        label="delayed, by a schedule",
        delay=(lambda step: 1, no.answers("2", None, 1j, np.ones(2))),
    ),
    call(
        dj.delivered,
        steps,
        **INNER,
        delay=(2, no.delay | no.some({"w": 1, "b": 2})),
        max_delay=(3, or_none(no.bound)),
        frozen=FROZEN,
        idle=("hold", no.choice("hold", "zeros")),
    ),
    call(dj.scale_by_staleness, pair, law=(modulation.inverse, NO_LAW)),
    call(dj.drop_stale, pair, **INNER, **bound(bound=2)),
    call(
        dj.refusing,
        pair,
        **INNER,
        accept=(always, no.function(None, True, (True, 1.0), (0.5, 1.0, ()))),
        begin=(None, or_none(no.some(3, "zeros", ()))),
    ),
    call(dj.compensate_delay, pair, **non_negative(strength=0.5), **share(decay=0.9)),
    call(
        dj.gap_aware,
        pair,
        learning_rate=(0.1, NO_SCHEDULE),
        **share(decay=0.9),
        **positive(eps=1e-8),
    ),
    call(
        dj.predict_weights,
        pair,
        **INNER,
        **non_negative(horizon=2.0),
        **non_negative(share=0.5),
        direction=(None, or_none(no.function(None, 1.0, (1.0,), (1.0, (), ())))),
    ),
    call(
        pipelines.sgd_direction,
        lambda direction: pair(
            dj.predict_weights(optax.sgd(0.1, 0.9), 2, direction=direction)
        ),
        learning_rate=(0.1, NO_SCHEDULE),
        **share(momentum=0.9),
    ),
    call(
        pipelines.adam_direction,
        lambda direction: pair(
            dj.predict_weights(optax.adam(0.1), 2, direction=direction)
        ),
        learning_rate=(0.1, NO_SCHEDULE),
        **share(b1=0.9, b2=0.999),
    ),
    call(
        pipelines.reschedule_by_delay,
        pair,
        **non_negative(delay=2.0),
        **positive(annealing_steps=10, microbatches=1),
    ),
    call(
        pipelines.discrepancy_correction,
        pair,
        **INNER,
        **non_negative(delay=2.0),
        **share(decay=0.5),
        **positive(microbatches=1),
    ),
    call(
        dj.gradient_params,
        opt_state=(
            dj.predict_weights(SGD, 1).init(PARAMS),
            no.some(None, (), SGD.init(PARAMS)),
        ),
        params=(PARAMS, no.some(3, {"w": jnp.ones((2, 2))}, "2")),
    ),
    call(
        pipelines.backward_params,
        opt_state=(
            pipelines.discrepancy_correction(SGD, 1, decay=0.5).init(PARAMS),
            no.some(None, (), SGD.init(PARAMS)),
        ),
        params=(PARAMS, no.some(3, {"w": jnp.ones((2, 2))}, "2")),
    ),
    call(dj.fedasync, pair, **fraction(mixing=0.5), law=(None, or_none(NO_LAW))),
    call(
        dj.local_training,
        lambda trained: evaluated(trained, PARAMS, jnp.ones((6, 2)), KEY),
        **TRAINED,
        **count(steps=3),
        **non_negative(proximal=0.0),
    ),
    call(
        step_sizes.share_of_budget,
        pair,
        **positive(budget=0.5),
        **bound(max_delay=4),
        share=(0.9, no.number(low=0.0, high=1.0)),
    ),
    call(
        step_sizes.inverse_within_budget,
        pair,
        **positive(budget=0.5),
        **bound(max_delay=4),
    ),
    call(
        step_sizes.adadelay, pair, **positive(smoothness=1.0), **non_negative(scale=0.5)
    ),
    call(step_sizes.distance_capped, pair, **positive(learning_rate=0.1, reach=1.0)),
    call(
        step_sizes.dasa,
        pair,
        learning_rate=(
            0.1,
            SCHEDULE | no.some(0.0) | no.answers("2", None, 1j, np.ones(7)),
        ),
        **positive(reach=1.0),
        **AXES,
    ),
    call(
        step_sizes.dasgd,
        pair,
        learning_rate=(0.1, NO_SCHEDULE),
        project=(None, or_none(no.function(None, 1.5, np.ones(7)))),
    ),
    call(step_sizes.harmonic, asked, **positive(scale=1.0), **bound(logarithms=1)),
    call(
        dj.attack,
        pair,
        **INNER,
        attackers=([1, 2], no.some(*no.ODD, 3, 1.5, [-1], [0.5], [True], [[1]])),
    ),
    call(
        dj.kardam,
        pair,
        **INNER,
        workers=(WORKERS, no.integer(3)),
        **bound(attackers=1),
        **count(window=26),
        patience=(None, or_none(no.count)),
    ),
    call(
        dj.zeno_plus_plus,
        pair,
        **INNER,
        grad_fn=(lambda x: x, NO_LAW),
        **positive(learning_rate=0.1),
        **non_negative(rho=0.1, eps=0.1),
        **count(refresh_every=10),
    ),
    call(
        dj.guided,
        pair,
        loss_fn=(lambda params: loss(params, None), NO_LAW),
        **count(period=2, replays=4),
    ),
    call(dj.dana, pair, **share(decay=0.9), **count(workers=3)),
    call(
        dj.delayed_nesterov,
        pair,
        **share(decay=0.9),
        **count(period=2),
        share=(0.25, no.number(least=0.0, most=0.5)),
    ),
    call(
        dj.primal_averaging,
        pair,
        **INNER,
        **share(decay=0.9),
        interpolation=(0.7, no.number(least=0.0, most=1.0)),
    ),
    call(dj.ordered_momentum, pair, **share(decay=0.9), **count(workers=3)),
    call(
        dj.yellowfin,
        pair,
        **share(decay=0.9, smoothing=0.0),
        **count(window=20, coordinates=8),
        **positive(factor=1.0),
        **non_negative(gain=0.01),
    ),
    call(
        dj.closed_loop_momentum,
        pair,
        learning_rate=(0.1, NO_SCHEDULE),
        target=(0.5, no.number(low=-1.0, high=1.0)),
        **non_negative(gain=0.01),
        **count(coordinates=8),
    ),
    call(
        pipelines.nadam,
        pair,
        learning_rate=(0.1, NO_SCHEDULE),
        **share(b1=0.9, b2=0.99),
        **positive(eps=1e-8),
        **non_negative(weight_decay=0.1, momentum_decay=0.004),
    ),
    call(
        pipelines.rotated_adam,
        pair,
        learning_rate=(0.1, NO_SCHEDULE),
        **share(b1=0.9, b2=0.99),
        **positive(eps=1e-8),
        **non_negative(weight_decay=0.1),
        **count(refresh_every=10),
        sides=("both", no.choice("both", "one")),
        is_rotated=(
            {"w": True, "b": False},
            no.some(3, "w", 1.5, True, {"w": 1, "b": 0}, {"v": True}, np.ones(2))
            | no.answers("2", None, 1j, np.ones(7)),
        ),
    ),
    call(
        dj.staleness, opt_state=(dj.delayed(SGD, 1).init(PARAMS), no.some(None, 3, ()))
    ),
    call(dj.strip_history, state=((), st.nothing())),
    call(
        dj.resize_history,
        state=(
            dj.delayed(SGD, 1).init(PARAMS),
            no.some(3, optax.adam(0.1).init(PARAMS)),
        ),
        like=(
            dj.delayed(SGD, 4).init(PARAMS),
            no.some(None, optax.adam(0.1).init(PARAMS)),
        ),
        reset=(None, or_none(no.some(3, False, "w", lambda path, leaf: None))),
    ),
    call(
        dj.replay,
        lambda training: training.run(
            training.init(PARAMS, KEY), jnp.ones((2, TRACE.max_gradients))
        ),
        trace=(TRACE, no.some(None, 3, [], TRACE.staleness, "trace", [3])),
        **TRAINED,
        each=(None, or_none(no.transformation)),
        aggregation=(None, no.some(3, "mean", SGD, len)),
        chunk=(None, or_none(no.count)),
        max_versions=(None, or_none(no.count)),
        **up_to_one(read_spread=0.0),
    ),
    call(
        dj.adasync,
        lambda training: evaluated(
            training.step, training.init(PARAMS, KEY), jnp.ones(WORKERS)
        ),
        cluster=(CLUSTER, no.some(None, 3, TRACE, "four")),
        **TRAINED,
        scheme=(
            protocols.k_async(2),
            no.some(*no.ODD, "k_sync", protocols.hardsync(), protocols.k_sync(9)),
        ),
        interval_seconds=(
            1.0,
            st.one_of(st.floats(max_value=0), no.some(math.nan, *no.NO_NUMBER)),
        ),
        loss=(lambda metrics: metrics["loss"], no.function("2", None, np.ones(7))),
        **SEED,
        max_staleness=(8, or_none(no.bound)),
        **count(draws=16),
    ),
    # rings
    call(ring.init, tree=(PARAMS, no.some("2", object())), **count(capacity=3)),
    call(
        ring.push,
        ring=(ring.init(PARAMS, 2), no.some(None, 3, PARAMS, "2")),
        tree=(PARAMS, no.some(None, 3, {"w": jnp.ones((2, 2))}, {**PARAMS, "b": 1.0})),
    ),
    call(
        ring.read,
        ring=(ring.init(PARAMS, 2), no.some(None, 3, PARAMS, "2")),
        like=(PARAMS, no.some(None, 3, {"w": jnp.ones((2, 2))})),
        age=(
            1,
            # True equals 1; of a float beyond int32, NumPy warns
            no.integer(0, 1).filter(lambda v: not isinstance(v, (bool, np.bool, float)))
            | no.some({"w": 1}, jnp.ones(7, int)),
        ),
    ),
    call(
        ring.cast,
        lambda storage: storage.init(PARAMS, 2),
        dtype=(jnp.bfloat16, no.some(3, "2", jnp.int32, jnp.complex64, object())),
        storage=(None, or_none(no.no_storage)),
    ),
    call(ring.on_host),
    call(
        ring.sharded,
        lambda storage: storage.init(PARAMS, 2),
        axis_name=("data", no.axes),
        mesh=(MESH, no.some(None, 3, "data", jax.devices())),
        **bound(bucket_bytes=64),
    ),
    call(
        ring.sharded,
        lambda storage: storage.init(PARAMS, 2),
        label="ring.sharded, over workers",
        axis_name=("workers", no.axes),
        **count(num_workers=4),
    ),
    call(ring.vmap_axes, tree=((), st.nothing())),
    # delays
    call(
        delays.uniform,
        asked,
        **KEYED,
        low=(1, no.integer(0, 4)),
        high=(4, no.integer(1)),
        axis_name=("workers", or_none(no.axes)),
    ),
    call(
        delays.geometric,
        asked,
        **KEYED,
        **non_negative(mean=2.0),
        axis_name=("workers", or_none(no.axes)),
    ),
    call(
        delays.poisson,
        asked,
        **KEYED,
        **non_negative(mean=2.0),
        axis_name=("workers", or_none(no.axes)),
    ),
    call(
        delays.from_trace,
        asked,
        staleness=([0, 1, 2], no.integers | no.some([[1, 2], [2, 3]], 3)),
    ),
    call(
        delays.per_worker,
        asked,
        delays=([0, 1, 2, 3], no.integers | no.some([1, 2, 3], 3, [[[0, 1, 2, 3]]])),
        **AXES,
    ),
    # laws
    call(modulation.inverse, staleness=(3, no.some("2", None))),
    call(modulation.polynomial, of_law, **non_negative(power=0.5)),
    call(modulation.hinge, of_law, **non_negative(slope=1.0, knee=4)),
    call(modulation.capped, of_law, **positive(workers=4)),
    call(
        modulation.delay_adaptive,
        of_law,
        **positive(learning_rate=0.1, bound=1.0),
        **non_negative(concurrency=4),
    ),
    call(modulation.exponential, of_law, **non_negative(rate=0.2)),
    *(
        call(
            protocol.aggregation,
            lambda rule: rule.init(PARAMS),
            label=f"protocols.{protocol.name}.aggregation",
            **count(num_workers=2),
        )
        for protocol in (
            protocols.ia2sgd(),
            protocols.malenia(1.0),
            protocols.ringleader(),
        )
    ),
    # exchange
    call(exchange.mean, over_workers, **EXCHANGED, weight=WEIGHT),
    call(exchange.overlapped_mean, over_workers, **EXCHANGED, weight=WEIGHT),
    call(
        exchange.late_between_groups,
        in_a_group,
        **INNER,
        **count(num_members=WORKERS),
        axis_name=(("groups", "members"), no.axes),
    ),
    call(exchange.a2sgd, over_workers, **EXCHANGED),
    call(
        exchange.partial_mean,
        over_workers,
        **EXCHANGED,
        participates=(lambda step: True, no.function("2", None, 1.5, np.ones(2, bool))),
    ),
    call(exchange.solo, asked, **AXES, **TABLE),
    call(exchange.majority, asked, **AXES, **KEYED, **TABLE),
    call(
        exchange.error_feedback,
        over_workers,
        **EXCHANGED,
        compress=(
            exchange.random_blocks(KEY, 0.5),
            no.function("2", None, (1, 2), (PARAMS, lambda m: None)),
        ),
    ),
    call(
        exchange.random_blocks,
        lambda compress: evaluated(lambda: compress(PARAMS, jnp.int32(0))[0]),
        **KEYED,
        **fraction(fraction=0.5),
    ),
    call(
        exchange.quantized,
        lambda compress: evaluated(lambda: compress(PARAMS, jnp.int32(0))[0]),
        bits=(8, no.integer(2, 16)),
    ),
    call(
        exchange.detached,
        **AXES,
        params=(PARAMS, no.some(3, {"w": jnp.ones((2, 2))}, "2")),
        opt_state=(
            exchange.error_feedback(SGD, exchange.random_blocks(KEY, 0.5)).init(PARAMS),
            no.some(None, (), SGD.init(PARAMS)),
        ),
        strength=(
            0.5,
            no.up_to_one.filter(lambda v: v is not int)  # it answers a step
            | no.answers("2", None, np.ones(7)),
        ),
    ),
    # averaging
    call(
        averaging.easgd,
        over_workers,
        **AVERAGED,
        moving_rate=(0.1, or_none(no.non_negative)),
        order=(averaging.by_rank(), or_none(ORDER)),
        lock_free=(averaging.races(KEY, 2), no.some(3, "2", object(), KEY)),
    ),
    call(
        averaging.downpour,
        over_workers,
        **AVERAGED,
        server=(None, or_none(no.transformation)),
        average=(
            0.1,
            or_none(no.fraction).filter(lambda v: v is not int)  # int(step) is valid
            | no.answers("2", None, np.ones(7)),
        ),
        order=(averaging.by_rank(), or_none(ORDER)),
        lock_free=(averaging.races(KEY, 2), no.some(3, "2", object(), KEY)),
    ),
    call(
        averaging.wagma,
        over_workers,
        **AVERAGED,
        group_size=(2, or_none(no.count) | no.some(3, 8)),
        lateness=(lambda step: 1, or_none(ORDER)),
        **count(max_lateness=2),
    ),
    call(averaging.gossip, over_workers, **KEYED, **AVERAGED),
    call(averaging.ad_psgd, over_workers, **KEYED, **AVERAGED),
    call(averaging.d_psgd, over_workers, **AVERAGED),
    call(
        averaging.sgp,
        over_workers,
        **AVERAGED,
        peers=(2, no.integer(1, 2)),
        participates=(
            lambda step: True,
            or_none(no.function("2", None, 1.5, np.ones(2, bool))),
        ),
    ),
    call(
        dj.extend.averaged,
        over_workers,
        **EXCHANGED,
        mix=(to_the_mean, no.function(None, 1.0, (1.0,), (1.0, (), ()))),
        begin=(None, or_none(no.some(3, "zeros", ()))),
    ),
    call(averaging.local_sgd, over_workers, **AVERAGED),
    call(
        averaging.adaptive_period,
        over_workers,
        **AVERAGED,
        learning_rate=(
            0.1,
            no.positive.filter(lambda v: v is not int)  # it answers a step
            | no.answers("2", None, np.ones(7)),
        ),
        **count(sampling_steps=2),
    ),
    call(
        averaging.delayed_average,
        over_workers,
        **EXCHANGED,
        delay=(1, no.integer(0, 2)),
        **count(period=2),
        merge=(averaging.corrected, no.function("2", None, np.ones(7))),
    ),
    call(averaging.dga, over_workers, **EXCHANGED, **count(delay=2)),
    call(
        averaging.outer,
        over_workers,
        **INNER,
        server=(SGD, no.transformation),
        period=(2, no.count),
        delay=(1, no.integer(0, 1)),
        merge=(averaging.overwriting, no.function("2", None, np.ones(7))),
        fragments=(1, no.some(0, -1, 1.5, None, {"v": 0}, {"w": 1, "b": 2}, True)),
        compress=(
            exchange.random_blocks(KEY, 0.5),
            or_none(no.function("2", None, (1, 2), (PARAMS, lambda m: None))),
        ),
        history=(None, or_none(no.no_storage)),
        axis_name=("workers", or_none(no.axes)),
    ),
    call(
        averaging.eager_outer,
        over_workers,
        **EXCHANGED,
        server=(SGD, no.transformation),
        **count(period=2),
    ),
    call(
        averaging.mean_of_state,
        over_workers,
        **AXES,
        inner=(optax.trace(0.9), no.transformation),
        periods=({"trace": 2}, no.some(3, None, {}, "trace", {"mu": 2}, {"trace": 0})),
    ),
    call(averaging.reset_every, over_workers, **INNER, **count(period=2)),
    call(
        averaging.only_on_visit,
        over_workers,
        **EXCHANGED,
        order=(averaging.by_rank(), ORDER),
    ),
    call(averaging.blended, **share(share=0.5)),
    call(
        averaging.races,
        lambda races: evaluated(lambda: races.ages(0, 0, PARAMS)),
        **KEYED,
        **bound(max_age=2),
        **share(lost=0.1),
    ),
    call(
        averaging.by_rank,
        asked,
        axis_name=("workers", no.some("", "w", ("workers", "w"))),
    ),
    call(averaging.first_come, asked, **AXES, **TABLE),
    call(
        cluster.visits_to_rounds,
        workers=([0, 1, 0], no.integers),
        num_workers=(2, no.integer(2)),
    ),
    call(
        averaging.moving_rate_limit,
        **count(num_workers=4),
        step_size=(0.5, no.number(least=0.0, high=2.0)),
    ),
    call(
        averaging.look_ahead,
        params=(PARAMS, no.some(3, {"w": jnp.ones((2, 2))}, "2")),
        opt_state=(optax.trace(0.9).init(PARAMS), no.some(None, (), SGD.init(PARAMS))),
        **share(momentum=0.9),
    ),
    call(
        cluster.waits_for_all,
        lambda waits: waits(0, 4),
        **count(period=2),
    ),
    call(
        cluster.finish_times,
        seconds=(SECONDS, no.table | no.some(-SECONDS, SECONDS * math.inf)),
        waits=(
            cluster.waits_for_neighbors(),
            no.function("2", None, np.ones(2), np.ones((3, 3))),
        ),
        **bound(lag=1),
        **EXCHANGE_SECONDS,
    ),
    call(
        cluster.wait_avoiding,
        **TABLE,
        **count(period=2),
        **non_negative(slack_seconds=0.1),
        **EXCHANGE_SECONDS,
    ),
    call(
        LINK.all_reduce_seconds,
        label="cluster.Communication.all_reduce_seconds",
        **count(workers=4, fragments=2),
        **fraction(fraction=0.5),
    ),
    # workers
    call(dj.workers.vary, **AXES, tree=((), st.nothing())),
    call(
        dj.workers.simulate,
        lambda held: held.step(
            held.init(jnp.zeros(2), jnp.ones(WORKERS)), jnp.ones(WORKERS)
        ),
        step=(lambda x, b: (x, b), no.function("2", None, (1, 2, 3))),
        **count(num_workers=WORKERS),
        **AXES,
    ),
    call(
        dj.workers.run,
        lambda held: held.step(held.init(jnp.zeros(2), jnp.ones(1)), jnp.ones(1)),
        step=(lambda x, b: (x, b), no.function("2", None, (1, 2, 3))),
        mesh=(MESH, no.some(*no.ODD, 3, jax.devices())),
        axis_name=("data", no.axes | no.some("workers")),
    ),
    call(
        dj.workers.WorkerState(jnp.arange(4), (("workers",),)).one,
        label="workers.WorkerState.one",
        worker=(2, no.some(-1, 4, 7)),
    ),
    call(
        dj.workers.WorkerState(jnp.arange(4), (("data",),)).shardings,
        label="workers.WorkerState.shardings",
        mesh=(MESH, no.some(*no.ODD, 3, jax.devices())),
    ),
    # clusters
    call(
        cluster.Cluster,
        lambda cluster: simulated(protocols.k_async(1), cluster),
        **count(workers=WORKERS),
        service=(
            cluster.exponential(1.0),
            no.function("2", None, [-1.0], [np.ones(1)], iter([np.ones(2) * math.nan]))
            | no.some([cluster.exponential(1.0)] * 3, cluster.exponential),
        ),
        slowdown=([1.0] * WORKERS, or_none(no.function()) | SLOWDOWNS),
        communication=(None, or_none(no.some(*no.ODD, 1.0))),
    ),
    call(
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
    call(
        cluster.Communication,
        lambda link: simulated(
            protocols.k_async(1),
            cluster.Cluster(WORKERS, cluster.constant(1.0), communication=link),
        ),
        **non_negative(latency_seconds=1.0, message_bytes=4.0),
        bytes_per_second=(1.0, no.finite(no.positive)),
    ),
    call(
        CLUSTER.draw,
        label="cluster.Cluster.draw",
        worker=(0, no.integer(0, 3)),
        **bound(size=4),
        **SEED,
        stream=(0, no.seed),
    ),
    call(
        CLUSTER.step_seconds,
        label="cluster.Cluster.step_seconds",
        **bound(steps=4),
        **SEED,
    ),
    call(
        CLUSTER.exchange_cost,
        label="cluster.Cluster.exchange_cost",
        period=(4, no.count | no.some(1, 3)),
        delay=(1, no.integer(0, 1)),
        **count(fragments=2),
        **fraction(fraction=0.5),
        **SEED,
    ),
    call(
        CLUSTER.shortest_period,
        label="cluster.Cluster.shortest_period",
        cost=(0.5, no.number(low=0.0, high=1.0)),
        **count(fragments=2),
        **fraction(fraction=0.5),
        **SEED,
    ),
    call(
        CLUSTER.shortest_delay,
        label="cluster.Cluster.shortest_delay",
        cost=(0.5, no.number(low=0.0, high=1.0)),
        **count(fragments=2),
        **fraction(fraction=0.5),
        **SEED,
    ),
    call(cluster.constant, drawn, **positive(seconds=1.0)),
    call(cluster.exponential, drawn, **positive(mean_seconds=1.0)),
    call(
        cluster.shifted_exponential,
        drawn,
        **non_negative(shift_seconds=1.0),
        **positive(mean_seconds=1.0),
    ),
    call(cluster.gamma, drawn, **positive(mean_seconds=1.0, shape=2.0)),
    call(cluster.lognormal, drawn, **positive(mean_seconds=1.0, cv=0.5)),
    call(cluster.pareto, drawn, **positive(scale_seconds=1.0, shape=2.0)),
    call(
        cluster.uniform,
        drawn,
        low_seconds=(1.0, no.number(least=0.0, high=2.0)),
        high_seconds=(2.0, no.number(low=1.0)),
    ),
    call(
        cluster.from_scipy,
        drawn,
        distribution=(stats.expon(), no.some(*no.ODD, 1.0, stats.norm())),
    ),
    call(
        TIMES.kth_mean,
        label="cluster.ServiceTime.kth_mean",
        k=(2, no.integer(1, WORKERS)),
        workers=(WORKERS, no.integer(2)),
    ),
    call(TIMES.scaled, label="cluster.ServiceTime.scaled", **positive(factor=2.0)),
    call(
        cluster.infinite_bernoulli,
        drawn,
        **positive(seconds=1.0),
        **share(hang_probability=0.5),
    ),
    call(
        cluster.markov_stragglers,
        drawn,
        service=(cluster.constant(1.0), no.function("2", None, [-1.0])),
        **positive(slowdown=5.0),
        **up_to_one(enter=0.1, leave=0.4),
    ),
    call(
        cluster.sleepers,
        drawn,
        **positive(seconds=1.0, sleep_seconds=1.0),
        **count(workers=4),
        **bound(asleep=2),
    ),
    call(cluster.empirical, drawn, samples=([1.0, 2.0], no.numbers)),
    call(
        cluster.Recorded,
        lambda recorded: recorded.cluster(),
        seconds=(SECONDS, no.table | no.some(-SECONDS, SECONDS * math.inf)),
        starts=(STARTS, no.table.filter(lambda v: v is not None) | no.some(-STARTS)),
        steps=(None, or_none(no.integers) | no.some([2, 1, 0, 3], range(3))),
    ),
    call(
        RECORDED.service,
        label="cluster.Recorded.service",
        resample=("wrap", no.some(*no.ODD, 0, -1, 5, 1.5, True, "wrong", [1], ())),
    ),
    call(
        RECORDED.law,
        label="cluster.Recorded.law",
        worker=(2, or_none(no.integer(0, len(SECONDS) - 1))),
    ),
    call(
        RECORDED.unexplained,
        label="cluster.Recorded.unexplained",
        step_seconds=(
            2.0,
            no.some(*no.ODD, 1j, [1.0], -1.0, 0.0, 1e-9, math.nan, math.inf),
        ),
    ),
    call(cluster.fit, times=([1.0, 2.0, 4.0], no.numbers)),
    call(
        cluster.by_batch,
        drawn,
        seconds_of=(
            lambda worker, batches: 1.0 + 0.0 * batches,
            no.function(None, np.ones(3), -np.ones(3)),
        ),
    ),
    call(
        cluster.independent,
        drawn,
        draw=(
            lambda rng, size: rng.random(size),
            no.function("2", None, 1j, -np.ones(3), np.ones((2, 2))),
        ),
    ),
    call(
        cluster.simulate,
        cluster=(CLUSTER, no.some(*no.ODD, 4, TIMES)),
        protocol=(
            protocols.k_async(1),
            no.function("2", None) | no.some(protocols.k_async, protocols.hardsync),
        ),
        num_updates=(5, no.count.filter(lambda v: v is not None)),
        **SEED,
        seconds=(9.0, no.finite(no.positive)),
    ),
    call(
        cluster.staleness_law,
        cluster=(
            CLUSTER,
            no.some(*no.ODD, 4, TIMES, cluster.Cluster(2, TIMES, communication=LINK)),
        ),
    ),
    call(
        cluster.arrival_rate,
        **count(workers=4),
        mean_seconds=(1.0, no.positive.filter(lambda v: not is_numbers(v))),
        **non_negative(server_seconds=0.1),
        **fraction(sent=0.5),
    ),
    call(
        cluster.run_time,
        **positive(target=0.1),
        rates=([0.5, 1.0], no.some(*no.ODD, [math.nan], ["a"], 1j)),
        start=(1.0, no.some(*no.ODD, math.nan, math.inf, [1.0] * 3, 1j)),
    ),
    call(cluster.StalenessLaw, pmf=([0.5, 0.5], PMF)),
    call(
        STALENESS.filtered_at_random,
        label="cluster.StalenessLaw.filtered_at_random",
        **fraction(probability=0.5),
    ),
    call(
        STALENESS.filtered_by_bound,
        label="cluster.StalenessLaw.filtered_by_bound",
        **bound(bound=1),
    ),
    call(
        cluster.load_trace,
        path=(LOG, no.some(*no.ODD[:3], 3, 1.5, "log.txt", LOG.parent, BROKEN)),
        num_workers=(2, or_none(no.count)),
    ),
    call(
        cluster.load_recorded,
        path=(TASKS, no.some(*no.ODD[:3], 3, 1.5, "log.txt", LOG.parent, LOG, BROKEN)),
        columns=(None, or_none(no.some(*no.ODD, 3, {"worker": "rank"}, {"a": "step"}))),
        operations=(None, no.some(["a"], "a", (), 3)),
        start_seconds=(
            0.0,
            no.number(least=0.0, high=2.0).filter(lambda v: v is not None),
        ),
    ),
    call(
        TRACE.arrivals,
        label="cluster.Trace.arrivals",
        start=(0, no.integer(0, 4)),
        stop=(4, no.integer(0, 400)),
        **bound(width=1),
    ),
    call(
        TRACE.staleness_law,
        label="cluster.Trace.staleness_law",
        burn_in=(2, no.integer(0, 399)),
    ),
    call(
        TRACE.save,
        label="cluster.Trace.save",
        path=(LOG.with_name("saved.npz"), no.some(None, 3, "log.txt", "log", b"x.npz")),
    ),
    call(
        protocols.fedbuff,
        simulated,
        **count(buffer=2),
        concurrency=(2, no.integer(1, WORKERS)),
    ),
    call(protocols.ssp, simulated, bound=(2, BOUND_OR_INF)),
    call(
        protocols.psp,
        simulated,
        **bound(sample=2),
        bound=(2, BOUND_OR_INF),
        poll_seconds=(1.0, no.finite(no.positive)),
    ),
    call(
        protocols.bounded_staleness,
        simulated,
        # `int` would be valid: it is a function of the version
        bound=(3, no.bound.filter(lambda value: value is not int)),
        late=("drop", no.choice("drop", "restart", "wait")),
        **count(batch=1),
    ),
    call(
        protocols.ringmaster,
        simulated,
        bound=(3, no.count.filter(lambda value: value is not int)),
    ),
    call(protocols.event_triggered, simulated, **fraction(probability=0.5)),
    call(
        protocols.gradient_coding,
        simulated,
        num_clusters=(2, no.integer(1, WORKERS)),
        load=(2, no.integer(1, 2)),
    ),
    call(
        protocols.groups,
        simulated,
        num_groups=(2, no.integer(1, WORKERS)),
        data=("dynamic", no.choice("dynamic", "static")),
    ),
    call(
        protocols.progressive_groups,
        simulated,
        max_groups=(2, no.integer(1, WORKERS)),
        **positive(tolerance=0.2),
        **count(every=20),
    ),
    call(
        protocols.malenia,
        simulated,
        harmonic_mean=(1.5, no.positive),
    ),
    call(
        protocols.mindflayer,
        simulated,
        trials=(2, no.count | no.some([1] * 3, [0] * 4, [1.5] * 4, [-1] * 4)),
        allotted_seconds=(
            9.0,
            no.finite(no.positive).filter(lambda v: not is_numbers(v))
            | no.some([1.0] * 3, [0.0] * 4),
        ),
    ),
    call(protocols.rennala, simulated, **count(batch=2)),
    *(
        call(protocol, simulated, **{argument: (2, no.integer(1, WORKERS))})
        for protocol, argument in {
            protocols.k_sync: "k",
            protocols.k_async: "k",
            protocols.k_batch_sync: "k",
            protocols.k_batch_async: "k",
            protocols.n_softsync: "n",
        }.items()
    ),
    # stability
    call(stability.Dynamics, delay=(2, DELAY_OF_STABILITY), **RECURSION),
    call(
        stability.Dynamics(2).step_limit,
        label="stability.Dynamics.step_limit",
        criterion=CRITERION,
    ),
    call(
        stability.Dynamics(2).spectral_radius,
        label="stability.Dynamics.spectral_radius",
        **non_negative(step=0.1),
    ),
    call(
        stability.Dynamics(2).roots,
        label="stability.Dynamics.roots",
        **non_negative(step=0.1),
    ),
    call(
        stability.Dynamics(2).stationary_variance,
        label="stability.Dynamics.stationary_variance",
        **non_negative(step=0.1, noise=1.0),
    ),
    call(
        stability.TraceDynamics, staleness=(TRACE.staleness, no.integers), **RECURSION
    ),
    call(
        stability.TraceDynamics(TRACE.staleness).growth,
        label="stability.TraceDynamics.growth",
        step=(0.1, no.non_negative.filter(lambda v: not is_numbers(v))),
    ),
    call(
        stability.learning_rate_limit,
        sharpness=(10.0, no.some(math.nan, *no.NO_NUMBER)),
        dynamics=(stability.Dynamics(2), st.nothing()),
        criterion=CRITERION,
    ),
    call(
        stability.predict_step_limit,
        **OF_LOSS,
        dynamics=(stability.Dynamics(2), st.nothing()),
    ),
    call(
        stability.sharpness,
        **OF_LOSS,
        preconditioner=(
            PARAMS,
            no.some(3, "2", {"w": 1.0}, optax.tree.scale(-1, PARAMS)),
        ),
    ),
    call(stability.hessian_eigenvalues, **OF_LOSS, count=(2, no.integer(1, 6))),
    call(
        stability.pipeline_step_limit,
        hessian=(np.eye(2), no.table | no.some(-np.eye(2), [[1.0, 2.0], [0.0, 1.0]])),
        delays=([1, 0], no.integers | no.some([1, 0, 0], 3)),
        **share(momentum=0.9),
    ),
    call(
        stability.adam_preconditioner,
        second_moment=(PARAMS, no.some("2", {"w": 1j})),
        **non_negative(eps=1e-8, eps_root=0.0),
    ),
    call(
        stability.error_bound,
        seconds=(9.0, no.finite(no.non_negative).filter(lambda v: not is_numbers(v))),
        **positive(update_seconds=1.0),
        **count(k=2),
        learning_rate=(0.1, no.number(low=0.0, most=0.25)),
        smallest=(1.0, no.number(low=0.0, most=2.0)),
        largest=(2.0, no.number(least=1.0)),
        **non_negative(noise=1.0, start=1.0),
        **fraction(agreement=1.0),
    ),
    call(
        stability.explicit_momentum,
        total=(0.5, no.number(low=-1.0, high=1.0)),
        **count(workers=4),
    ),
    call(stability.DelayEquation, service_time=(TIMES, NO_TIMES)),
    call(
        EQUATION.half_update_earlier,
        label="stability.DelayEquation.half_update_earlier",
        **count(workers=4),
    ),
    call(
        EQUATION.roots,
        label="stability.DelayEquation.roots",
        **non_negative(gain=0.1),
        **count(number=2),
    ),
    call(
        EQUATION.decay_rate,
        label="stability.DelayEquation.decay_rate",
        **non_negative(gain=0.1),
    ),
    call(
        EQUATION.gain_limit,
        label="stability.DelayEquation.gain_limit",
        workers=(4, no.finite(no.count)),
    ),
    call(
        stability.workers_decay_rate,
        step=(0.1, no.non_negative.filter(lambda v: not is_numbers(v))),
        **count(workers=4),
        service_time=(TIMES, NO_TIMES),
    ),
    call(
        stability.optimal_workers,
        step=(0.1, no.number(least=1e-15)),
        service_time=(cluster.constant(1.0), NO_TIMES),
        condition=(2.0, no.number(least=1.0)),
    ),
    call(
        EQUATION.variance,
        label="stability.DelayEquation.variance",
        **non_negative(gain=0.1, noise=1.0),
    ),
    call(
        EQUATION.paths,
        label="stability.DelayEquation.paths",
        **non_negative(gain=0.1, noise=1.0),
        **count(paths=2, steps=8, every=2),
        step_seconds=(0.1, no.number(low=0.0, high=2.5)),
        **SEED,
    ),
    *(
        call(
            scheme.update_seconds,
            label=f"protocols.{scheme.name}.update_seconds",
            workers=(WORKERS, no.integer(2)),
            service_time=(TIMES, NO_TIMES.filter(lambda times: times is not HEAVY)),
        )
        for scheme in (
            protocols.k_sync(2),
            protocols.k_async(2),
            protocols.k_batch_sync(2),
            protocols.k_batch_async(2),
        )
    ),
    call(dj.inject_staleness, steps, inner=(SGD, no.transformation)),
    call(
        exchange.late_reduce,
        inner=(SGD, no.transformation),
        mesh=(MESH, no.some(*no.ODD, 4, jax.devices())),
        axis_name=("data", no.axes),
    ),
)
CALLS = {row.label: row for row in ROWS}
