"""One table of every public transformation, and what each of them promises."""

import functools
import inspect

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from delayjax import testing
from delayjax._src.testing import comparing
from tests.support.cases import shortened

STEPS = 5
DEPTH = 3


def strongly_typed(staleness):
    return 1 / (1 + staleness.astype(jnp.float32))


def nothing(tau, params):
    return {}


def age(tau, params):
    return {"staleness": tau}


def snapshot(tau, params):
    return {"stale_params": optax.tree.scale(0.5**tau, params)}


def sent(tau, params):
    """A gradient of worker 0 or 2."""
    return snapshot(tau, params) | {"worker": tau}


def of_worker(tau, params):
    return {"worker": tau}


def age_and_snapshot(tau, params):
    return age(tau, params) | snapshot(tau, params)


def of_head(params):
    """A verification loss of the float32 leaf."""
    squares = [jnp.sum(jnp.abs(leaf) ** 2) for leaf in jax.tree.leaves(params["head"])]
    return sum(squares, jnp.zeros(()))


def loss(tau, params):
    """Below every verification loss: where that falls, all batches are consistent."""
    return {"value": -1.0 - of_head(params)}


def weigh(law):
    """The law before a momentum, which would carry its type from step to step."""
    return lambda tau: optax.chain(dj.scale_by_staleness(law), optax.trace(0.5))


def every_other(gradients, seen, params, **extra_args):
    return seen % 2 == 0, gradients, seen + 1


def nothing_yet(params):
    return jnp.zeros((), jnp.int32)


def sgd():
    return optax.sgd(0.1)


def momentum():
    return optax.sgd(0.1, momentum=0.5)


def adam():
    return optax.adam(0.1)  # made late: tests exchange it


def late(inner, *, max_delay=DEPTH, **options):
    """tau -> what `inner` makes, under this delay."""
    return lambda tau: dj.delayed(inner(), tau, max_delay=max_delay, **options)


LAYERS = dj.delays.Layers((2, 0, 0))
BY_LAYER = {"layer": 1, "head": LAYERS}


def by_leaf(rule):
    """tau -> SGD and a rule, late by tau in the layer and by 1 in the head."""
    return lambda tau: dj.delayed(
        optax.chain(momentum(), rule),
        {"layer": tau, "head": 1},
        max_delay={"layer": DEPTH, "head": 1},
    )


def rescheduled(delay):
    rule = dj.pipelines.reschedule_by_delay(
        delay, annealing_steps=jnp.int32(10), microbatches=jnp.float32(2)
    )
    return optax.chain(momentum(), rule)


def corrected(tau, delay):
    # in bfloat16 half of a gradient is exact, so a fused move is no other
    return dj.pipelines.discrepancy_correction(
        late(lambda: optax.sgd(0.5))(tau),
        delay,
        decay=jnp.float32(0.5),
        microbatches=jnp.float32(2),
    )


def compensated_adam():
    return dj.drop_stale(
        optax.chain(
            dj.compensate_delay(0.5, adaptive=True),
            dj.gap_aware(0.1),
            optax.adam(0.1, eps=0.1),
            dj.scale_by_staleness(dj.modulation.polynomial(0.5)),
        ),
        2,
    )


# name: (delay or staleness tau -> transformation, (tau, params) -> extra arguments)
TABLE = {
    "delayed": (late(adam), nothing),
    "delayed, without a history": (
        lambda tau: dj.delayed(momentum(), lambda step: tau, max_delay=0),
        nothing,
    ),
    "delayed, by a schedule": (
        lambda tau: dj.delayed(
            momentum(), lambda step: tau * (step % 2), max_delay=DEPTH
        ),
        nothing,
    ),
    "delayed, at random": (
        lambda tau: dj.delayed(
            sgd(), dj.delays.uniform(jax.random.key(1), 0, tau), max_delay=2
        ),
        nothing,
    ),
    "delayed, leaf by leaf": (
        by_leaf(dj.scale_by_staleness(dj.modulation.exponential(0.2))),
        nothing,
    ),
    "delayed, layer by layer": (
        lambda tau: dj.delayed(
            optax.chain(momentum(), weigh(dj.modulation.inverse)(tau)), BY_LAYER
        ),
        nothing,
    ),
    "delayed, with parameters, layer by layer": (
        lambda tau: dj.delayed(
            optax.chain(momentum(), dj.correct_late_updates()),
            BY_LAYER,
            keep_params=True,
        ),
        nothing,
    ),
    "delayed, skip": (late(adam, warmup="skip"), nothing),
    "delayed, zeros": (late(momentum, warmup="zeros"), nothing),
    "delayed, history in bfloat16": (
        late(sgd, history=dj.ring.cast(jnp.bfloat16)),
        nothing,
    ),
    "delayed, in delayed": (
        late(lambda: dj.delayed(sgd(), 1, keep_params=True), keep_params=True),
        nothing,
    ),
    "delayed, of gradients that are late": (
        lambda tau: dj.delayed(
            optax.chain(sgd(), dj.scale_by_staleness(dj.modulation.inverse)), 1
        ),
        age,
    ),
    "delayed, identity": (
        lambda tau: optax.chain(late(optax.identity)(tau), momentum()),
        nothing,
    ),
    "delivered": (
        lambda tau: dj.delivered(adam(), tau, max_delay=DEPTH),
        nothing,
    ),
    "delivered, at random": (
        lambda tau: dj.delivered(
            optax.chain(
                dj.compensate_delay(0.5),
                momentum(),
                dj.scale_by_staleness(dj.modulation.inverse),
            ),
            dj.delays.uniform(jax.random.key(2), 0, tau),
            max_delay=DEPTH,
            keep_params=True,
        ),
        age_and_snapshot,
    ),
    "delivered, zeros": (
        lambda tau: dj.delivered(momentum(), tau, max_delay=DEPTH, idle="zeros"),
        nothing,
    ),
    "delivered, in delayed": (late(lambda: dj.delivered(sgd(), 1)), age),
    "scale_by_staleness, inverse": (weigh(dj.modulation.inverse), age),
    "scale_by_staleness, polynomial": (weigh(dj.modulation.polynomial(0.5)), age),
    "scale_by_staleness, hinge": (weigh(dj.modulation.hinge(2.0, 1)), age),
    "scale_by_staleness, exponential": (weigh(dj.modulation.exponential(0.2)), age),
    "scale_by_staleness, capped": (weigh(dj.modulation.capped(1)), age),
    "scale_by_staleness, delay_adaptive": (
        weigh(dj.modulation.delay_adaptive(jnp.float32(0.5), 1)),
        age,
    ),
    "scale_by_staleness, strongly typed": (weigh(strongly_typed), age),
    "inject_staleness": (
        lambda tau: dj.inject_staleness(weigh(dj.modulation.inverse)(tau)),
        nothing,
    ),
    "inject_staleness, around delayed": (
        lambda tau: dj.inject_staleness(
            late(lambda: weigh(dj.modulation.inverse)(tau))(tau)
        ),
        age,
    ),
    "drop_stale": (lambda tau: dj.drop_stale(adam(), 1), age),
    "refusing": (
        lambda tau: dj.refusing(adam(), every_other, begin=nothing_yet),
        nothing,
    ),
    # arrays, as in a grid: a strong type, unlike Python's floats
    "compensate_delay": (lambda tau: dj.compensate_delay(jnp.float32(0.5)), snapshot),
    "compensate_delay, adaptive": (
        lambda tau: dj.compensate_delay(
            jnp.float32(0.5), adaptive=True, decay=jnp.float32(0.9)
        ),
        snapshot,
    ),
    "correct_late_updates": (
        lambda tau: optax.chain(optax.trace(0.5), dj.correct_late_updates()),
        age,
    ),
    "correct_late_updates, leaf by leaf": (
        by_leaf(dj.correct_late_updates()),
        nothing,
    ),
    "fedasync": (lambda tau: dj.fedasync(jnp.float32(0.5)), age_and_snapshot),
    "fedasync, with a law": (
        lambda tau: dj.fedasync(jnp.float32(0.5), law=strongly_typed),
        age_and_snapshot,
    ),
    "gap_aware": (
        lambda tau: dj.gap_aware(jnp.float32(0.1), decay=jnp.float32(0.9)),
        snapshot,
    ),
    "gap_aware, by a schedule": (
        lambda tau: dj.gap_aware(optax.cosine_decay_schedule(0.1, 10)),
        snapshot,
    ),
    "predict_weights": (
        lambda tau: dj.predict_weights(adam(), jnp.float32(2), share=jnp.float32(0.5)),
        nothing,
    ),
    "predict_weights, layer by layer": (
        lambda tau: dj.predict_weights(
            dj.delayed(momentum(), BY_LAYER), BY_LAYER, share=jnp.float32(0.5)
        ),
        nothing,
    ),
    "predict_weights, by the momentum": (
        lambda tau: dj.predict_weights(
            late(momentum)(tau),
            jnp.float32(2),
            direction=dj.pipelines.sgd_direction(jnp.float32(0.1), jnp.float32(0.5)),
        ),
        nothing,
    ),
    "predict_weights, by Adam's moments": (
        lambda tau: dj.predict_weights(
            adam(),
            2,
            direction=dj.pipelines.adam_direction(
                optax.cosine_decay_schedule(0.1, 10),
                b1=jnp.float32(0.9),
                b2=jnp.float32(0.999),
            ),
        ),
        nothing,
    ),
    "pipelines.reschedule_by_delay": (lambda tau: rescheduled(jnp.float32(3)), nothing),
    "pipelines.reschedule_by_delay, layer by layer": (
        lambda tau: rescheduled({"layer": jnp.float32(3), "head": LAYERS}),
        nothing,
    ),
    "pipelines.discrepancy_correction": (
        lambda tau: corrected(tau, jnp.float32(3)),
        nothing,
    ),
    "pipelines.discrepancy_correction, layer by layer": (
        lambda tau: corrected(tau, {"layer": jnp.float32(3), "head": LAYERS}),
        nothing,
    ),
    "step_sizes.share_of_budget": (
        lambda tau: dj.step_sizes.share_of_budget(
            jnp.float32(0.5), 2, share=jnp.float32(0.8)
        ),
        age,
    ),
    "step_sizes.inverse_within_budget": (
        lambda tau: dj.step_sizes.inverse_within_budget(jnp.float32(0.5), DEPTH),
        age,
    ),
    "step_sizes.adadelay": (
        lambda tau: dj.step_sizes.adadelay(jnp.float32(2.0), jnp.float32(0.5)),
        age,
    ),
    "step_sizes.adadelay, per coordinate": (
        lambda tau: dj.step_sizes.adadelay(
            jnp.float32(2.0), jnp.float32(0.5), per_coordinate=True
        ),
        age,
    ),
    "step_sizes.distance_capped": (
        lambda tau: dj.step_sizes.distance_capped(jnp.float32(0.1), jnp.float32(0.5)),
        snapshot,
    ),
    "step_sizes.dasa": (
        lambda tau: dj.step_sizes.dasa(jnp.float32(0.1), jnp.float32(20.0)),
        snapshot,
    ),
    "step_sizes.dasgd": (
        lambda tau: dj.step_sizes.dasgd(dj.step_sizes.harmonic(jnp.float32(0.5))),
        nothing,
    ),
    "step_sizes.dasgd, in a box": (
        lambda tau: dj.step_sizes.dasgd(
            jnp.float32(0.5),
            project=lambda x: jax.tree.map(
                lambda leaf: leaf / jnp.maximum(1.0, 2.0 * jnp.abs(leaf)), x
            ),
        ),
        nothing,
    ),
    "attack": (
        lambda tau: dj.attack(optax.sgd(-10.0, momentum=0.5), attackers=[2]),
        sent,
    ),
    "kardam": (
        lambda tau: dj.kardam(adam(), workers=3, attackers=1, patience=jnp.int32(2)),
        sent,
    ),
    "kardam, one filter": (
        lambda tau: dj.kardam(adam(), workers=3, attackers=1, lipschitz=False),
        sent,
    ),
    "zeno_plus_plus": (
        lambda tau: dj.zeno_plus_plus(
            adam(),
            lambda params: optax.tree.scale(2.0, params),
            **dict.fromkeys(("learning_rate", "rho", "eps"), jnp.float32(0.1)),
            refresh_every=jnp.int32(2),
        ),
        nothing,
    ),
    "guided": (
        lambda tau: optax.chain(
            dj.guided(of_head, period=jnp.int32(2), replays=2),
            momentum(),
        ),
        loss,
    ),
    "guided, in delayed": (
        late(lambda: optax.chain(dj.guided(of_head, period=3), sgd())),
        loss,
    ),
    "dana": (lambda tau: dj.dana(jnp.float32(0.9), workers=3), of_worker),
    "ordered_momentum": (
        lambda tau: dj.ordered_momentum(jnp.float32(0.9), workers=2),
        age,
    ),
    "ordered_momentum, leaf by leaf": (
        by_leaf(dj.ordered_momentum(0.5, workers=3)),
        nothing,
    ),
    "delayed_nesterov": (
        lambda tau: dj.delayed_nesterov(
            jnp.float32(0.5), period=2, share=jnp.float32(0.25)
        ),
        nothing,
    ),
    "primal_averaging": (
        lambda tau: dj.primal_averaging(
            optax.sgd(0.5),
            decay=jnp.float32(0.5),
            interpolation=jnp.float32(0.7),
        ),
        nothing,
    ),
    "yellowfin": (
        lambda tau: dj.yellowfin(
            decay=jnp.float32(0.9),
            factor=jnp.float32(0.5),
            smoothing=jnp.float32(0.5),
            clip=True,
        ),
        nothing,
    ),
    "yellowfin, closed loop": (
        # steps so large that their differences keep digits
        lambda tau: dj.yellowfin(
            window=1, factor=10.0, closed_loop=True, gain=jnp.float32(0.01)
        ),
        age_and_snapshot,
    ),
    "closed_loop_momentum": (
        lambda tau: dj.closed_loop_momentum(
            jnp.float32(0.1), jnp.float32(0.5), gain=jnp.float32(0.1)
        ),
        age_and_snapshot,
    ),
    "closed_loop_momentum, by a schedule": (
        lambda tau: dj.closed_loop_momentum(
            optax.cosine_decay_schedule(0.1, 10), 0.5, coordinates=2
        ),
        age_and_snapshot,
    ),
    "closed_loop_momentum, in delayed": (
        late(lambda: dj.closed_loop_momentum(0.1, 0.5, gain=0.1), keep_params=True),
        nothing,
    ),
    "pipelines.nadam": (
        lambda tau: dj.pipelines.nadam(
            **dict.fromkeys(("b1", "b2", "momentum_decay"), jnp.float32(0.9)),
            **dict.fromkeys(("learning_rate", "eps"), jnp.float32(0.1)),
            weight_decay=jnp.float32(0.1),
        ),
        nothing,
    ),
    "pipelines.nadam, in delayed": (
        late(lambda: dj.pipelines.nadam(optax.cosine_decay_schedule(0.1, 10))),
        nothing,
    ),
    # one side: of both, rounding chooses a part of the first basis of 4 x 2 numbers
    "pipelines.rotated_adam": (
        lambda tau: dj.pipelines.rotated_adam(
            **dict.fromkeys(("b1", "b2"), jnp.float32(0.9)),
            **dict.fromkeys(("learning_rate", "weight_decay"), jnp.float32(0.1)),
            eps=jnp.float32(1e-3),
            refresh_every=jnp.int32(2),
            sides="one",
        ),
        nothing,
    ),
    "pipelines.rotated_adam, in delayed": (
        late(
            lambda: dj.pipelines.rotated_adam(
                optax.cosine_decay_schedule(0.1, 10), refresh_every=2, sides="one"
            )
        ),
        nothing,
    ),
    "all in one chain": (late(compensated_adam, keep_params=True), nothing),
}

members = pytest.mark.parametrize("name", TABLE)
# of each transformation the first row: in the costliest tests the others are long
FIRST = tuple({name.split(",")[0]: name for name in reversed(TABLE)}.values())
# neither these transformations nor their arguments know a delay
WITHOUT_DELAY = (
    *("refusing", "predict_weights", "predict_weights, by Adam's moments"),
    *(name for name in TABLE if name.startswith("pipelines.reschedule_by_delay")),
    *("step_sizes.dasgd", "step_sizes.dasgd, in a box", "zeno_plus_plus", "guided"),
    *("predict_weights, layer by layer", "delayed_nesterov", "yellowfin"),
    *("pipelines.nadam", "pipelines.rotated_adam", "inject_staleness"),
    *("delayed, layer by layer", "delayed, with parameters, layer by layer"),
)
WITH_DELAY = tuple(name for name in TABLE if name not in WITHOUT_DELAY)


@functools.cache
def tree(seed, names=("a", "b", "c"), shape=()):
    """Matrix, bfloat16 vector and scalar in a layer, and a head, of normal numbers."""
    keys = jax.random.split(jax.random.key(seed), 4)
    shapes = ((4, 2), jnp.float32), ((4,), jnp.bfloat16), ((), jnp.float32)
    leaves = [
        jax.random.normal(key, (*shape, *leaf), dtype)
        for key, (leaf, dtype) in zip(keys, shapes, strict=False)
    ]
    head = jax.random.normal(keys[-1], (*shape, 3), jnp.float32)
    return {"layer": dict(zip(names, leaves, strict=True)), "head": head}


PARAMS = tree(0)
GRADS = tree(1, shape=(STEPS,))
EMPTY = {"layer": {}, "head": ()}


def stepper(name, tau=2):
    """(params, state, grads) -> (params, state, updates), as users write a step."""
    make, extra_args = TABLE[name]
    tx = make(tau)

    def step(params, state, grads):
        extras = extra_args(tau, params)
        updates, state = tx.update(grads, state, params, **extras)
        return optax.apply_updates(params, updates), state, updates

    return tx, step


def test_the_table_has_every_public_transformation():
    # the tables of exchange and averaging are their own
    modules = {"": dj, "step_sizes.": dj.step_sizes, "pipelines.": dj.pipelines}
    transformations = {
        f"{prefix}{name}"
        for prefix, module in modules.items()
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_")
        and inspect.signature(value).return_annotation
        is optax.GradientTransformationExtraArgs
    }
    assert transformations == {name.split(",")[0] for name in TABLE} - {
        "all in one chain"
    }


@pytest.mark.parametrize(
    ("name", "devices"),
    shortened(
        # all devices ask what one asks, and more: of a first row, one has no case
        [(name, 4) for name in TABLE] + [(n, 1) for n in TABLE if n not in FIRST],
        *((name, 4 if name in FIRST else 1) for name in TABLE),
    ),
)
def test_a_transformation_keeps_its_contract(name, devices):
    make, extra_args = TABLE[name]
    testing.check(
        make(2),
        PARAMS,
        extra_args=lambda step, params: extra_args(2, params),
        devices=jax.devices()[:devices],
        tolerance=1e-6,
    ).require()


def eager(name, tau):
    """The whole run, one operation after another."""
    tx, step = stepper(name, tau)
    params, state, updates = PARAMS, tx.init(PARAMS), PARAMS
    for t in range(STEPS):
        grads = jax.tree.map(lambda g, t=t: g[t], GRADS)
        params, state, updates = step(params, state, grads)
    return params, state, updates


def scanned(name, tau):
    """The whole run as one scan, which refuses a carry whose type changes."""
    tx, step = stepper(name, tau)

    def body(carry, grads):
        params, state, _ = carry
        return step(params, state, grads), None

    return jax.lax.scan(body, (PARAMS, tx.init(PARAMS), PARAMS), GRADS)[0]


@functools.cache
def at_every_delay(names):
    """Members' runs at two delays, in one program: compiled in half the time of many.

    And the delays of its traces.
    """
    traced = []

    @jax.jit
    def runs(tau):
        traced.append(tau)
        return {name: scanned(name, tau) for name in names}

    return {tau: runs(tau) for tau in (0, 2)}, traced


@pytest.mark.parametrize(
    "name", shortened(WITH_DELAY, *(n for n in WITH_DELAY if n in FIRST))
)
def test_one_trace_serves_every_delay(name):
    members = tuple(n for n in WITH_DELAY if (n in FIRST) == (name in FIRST))
    at_delays, traced = at_every_delay(members)
    for tau, runs in at_delays.items():
        comparing.check_close(runs[name], eager(name, tau), 1e-6, "traced and known")
    assert len(traced) == 1
