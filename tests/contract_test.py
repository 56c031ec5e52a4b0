"""One table of every public transformation, and what each of them promises."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
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


def compensated_adam(tau):
    return dj.delayed(
        dj.drop_stale(
            optax.chain(
                dj.compensate_delay(0.5, adaptive=True),
                dj.gap_aware(0.1),
                optax.adam(0.1, eps=0.1),
                dj.scale_by_staleness(dj.modulation.polynomial(0.5)),
            ),
            2,
        ),
        tau,
        max_delay=DEPTH,
        keep_params=True,
    )


# name: (delay or staleness tau -> transformation, (tau, params) -> extra arguments)
TABLE = {
    "delayed": (lambda tau: dj.delayed(optax.adam(0.1), tau, max_delay=DEPTH), nothing),
    "delayed, without a history": (
        lambda tau: dj.delayed(
            optax.sgd(0.1, momentum=0.5), lambda step: tau, max_delay=0
        ),
        nothing,
    ),
    "delayed, by a schedule": (
        lambda tau: dj.delayed(
            optax.sgd(0.1, momentum=0.5), lambda step: tau * (step % 2), max_delay=DEPTH
        ),
        nothing,
    ),
    "delayed, at random": (
        lambda tau: dj.delayed(
            optax.sgd(0.1), dj.delays.uniform(jax.random.key(1), 0, tau), max_delay=2
        ),
        nothing,
    ),
    "delayed, leaf by leaf": (
        lambda tau: dj.delayed(
            optax.chain(
                optax.sgd(0.1, momentum=0.5),
                dj.scale_by_staleness(dj.modulation.exponential(0.2)),
            ),
            {"layer": tau, "head": 1},
            max_delay={"layer": DEPTH, "head": 1},
        ),
        nothing,
    ),
    "delayed, skip": (
        lambda tau: dj.delayed(optax.adam(0.1), tau, max_delay=DEPTH, warmup="skip"),
        nothing,
    ),
    "delayed, zeros": (
        lambda tau: dj.delayed(
            optax.sgd(0.1, momentum=0.5), tau, max_delay=DEPTH, warmup="zeros"
        ),
        nothing,
    ),
    "delayed, history in bfloat16": (
        lambda tau: dj.delayed(
            optax.sgd(0.1), tau, max_delay=DEPTH, history=dj.ring.cast(jnp.bfloat16)
        ),
        nothing,
    ),
    "delayed, in delayed": (
        lambda tau: dj.delayed(
            dj.delayed(optax.sgd(0.1), 1, keep_params=True),
            tau,
            max_delay=DEPTH,
            keep_params=True,
        ),
        nothing,
    ),
    "delayed, of gradients that are late": (
        lambda tau: dj.delayed(
            optax.chain(optax.sgd(0.1), dj.scale_by_staleness(dj.modulation.inverse)),
            1,
        ),
        age,
    ),
    "delayed, identity": (
        lambda tau: optax.chain(
            dj.delayed(optax.identity(), tau, max_delay=DEPTH),
            optax.sgd(0.1, momentum=0.5),
        ),
        nothing,
    ),
    "delivered": (
        lambda tau: dj.delivered(optax.adam(0.1), tau, max_delay=DEPTH),
        nothing,
    ),
    "delivered, at random": (
        lambda tau: dj.delivered(
            optax.chain(
                dj.compensate_delay(0.5),
                optax.sgd(0.1, momentum=0.5),
                dj.scale_by_staleness(dj.modulation.inverse),
            ),
            dj.delays.uniform(jax.random.key(2), 0, tau),
            max_delay=DEPTH,
            keep_params=True,
        ),
        age_and_snapshot,
    ),
    "delivered, zeros": (
        lambda tau: dj.delivered(
            optax.sgd(0.1, momentum=0.5), tau, max_delay=DEPTH, idle="zeros"
        ),
        nothing,
    ),
    "delivered, in delayed": (
        lambda tau: dj.delayed(dj.delivered(optax.sgd(0.1), 1), tau, max_delay=DEPTH),
        age,
    ),
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
            dj.delayed(weigh(dj.modulation.inverse)(tau), tau, max_delay=DEPTH)
        ),
        age,
    ),
    "drop_stale": (lambda tau: dj.drop_stale(optax.adam(0.1), 1), age),
    "refusing": (
        lambda tau: dj.refusing(optax.adam(0.1), every_other, begin=nothing_yet),
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
        lambda tau: dj.delayed(
            optax.chain(optax.sgd(0.1, momentum=0.5), dj.correct_late_updates()),
            {"layer": tau, "head": 1},
            max_delay={"layer": DEPTH, "head": 1},
        ),
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
    "step_sizes.adaptive_1": (
        lambda tau: dj.step_sizes.adaptive_1(
            jnp.float32(0.5), 2, share=jnp.float32(0.8)
        ),
        age,
    ),
    "step_sizes.adaptive_2": (
        lambda tau: dj.step_sizes.adaptive_2(jnp.float32(0.5), DEPTH),
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
        lambda tau: dj.kardam(
            optax.adam(0.1), workers=3, attackers=1, patience=jnp.int32(2)
        ),
        sent,
    ),
    "kardam, one filter": (
        lambda tau: dj.kardam(optax.adam(0.1), workers=3, attackers=1, lipschitz=False),
        sent,
    ),
    "zeno_plus_plus": (
        lambda tau: dj.zeno_plus_plus(
            optax.adam(0.1),
            lambda params: optax.tree.scale(2.0, params),
            **dict.fromkeys(("learning_rate", "rho", "eps"), jnp.float32(0.1)),
            refresh_every=jnp.int32(2),
        ),
        nothing,
    ),
    "guided": (
        lambda tau: optax.chain(
            dj.guided(of_head, period=jnp.int32(2), replays=2),
            optax.sgd(0.1, momentum=0.5),
        ),
        loss,
    ),
    "guided, in delayed": (
        lambda tau: dj.delayed(
            optax.chain(dj.guided(of_head, period=3), optax.sgd(0.1)),
            tau,
            max_delay=DEPTH,
        ),
        loss,
    ),
    "dana": (lambda tau: dj.dana(jnp.float32(0.9), workers=3), of_worker),
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
        lambda tau: dj.delayed(
            dj.closed_loop_momentum(0.1, 0.5, gain=0.1),
            tau,
            max_delay=DEPTH,
            keep_params=True,
        ),
        nothing,
    ),
    "all in one chain": (compensated_adam, nothing),
}

members = pytest.mark.parametrize("name", TABLE)
# of each transformation the first row: in the costliest tests the others are long
FIRST = tuple({name.split(",")[0]: name for name in reversed(TABLE)}.values())
few = pytest.mark.parametrize("name", shortened(TABLE, *FIRST))


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


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def types(tree):
    return jax.tree.map(jax.typeof, tree)


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def assert_close(ours, theirs):
    """Equal but for XLA's fusions, which round products and sums of floats once less.

    That is 1e-6 in float32 near 1; in bfloat16 one unit in the last of 8 bits, for each
    of the few steps.
    """

    def close(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        tolerance = 2.0**-6 if a.dtype == jnp.bfloat16 else 1e-6
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(close, ours, theirs)


@functools.cache
def compiled(name):
    return jax.jit(stepper(name)[1])


@functools.cache
def eager(name, tau=2):
    """The whole run, one operation after another."""
    tx, step = stepper(name, tau)
    params, state, updates = PARAMS, tx.init(PARAMS), PARAMS
    for t in range(STEPS):
        grads = jax.tree.map(lambda g, t=t: g[t], GRADS)
        params, state, updates = step(params, state, grads)
    return params, state, updates


def run(name, tau, params, grads):
    """The whole run as one scan, which refuses a carry whose type changes."""
    tx, step = stepper(name, tau)

    def body(carry, grads):
        params, state, _ = carry
        return step(params, state, grads), None

    return jax.lax.scan(body, (params, tx.init(params), params), grads)[0]


@functools.cache
def scanned(name):
    """(delay, params, grads) -> the run, compiled; and the delays of its traces."""
    traced = []

    def at(tau, params, grads):
        traced.append(tau)
        return run(name, tau, params, grads)

    return jax.jit(at), traced


def test_the_table_has_every_public_transformation():
    # the tables of exchange and averaging are their own
    modules = {"": dj, "step_sizes.": dj.step_sizes}
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


@members
def test_a_step_keeps_every_type(name):
    tx, _ = stepper(name)
    state = tx.init(PARAMS)
    params, new_state, updates = compiled(name)(PARAMS, state, tree(1))
    assert types(new_state) == types(state)
    assert types(updates) == types(PARAMS)
    assert types(params) == types(PARAMS)


@members
def test_init_needs_shapes_alone(name):
    tx, _ = stepper(name)
    shapes = jax.eval_shape(lambda: PARAMS)
    state = tx.init(PARAMS)
    assert types(tx.init(shapes)) == types(state)
    assert types(jax.eval_shape(tx.init, shapes)) == types(state)


@few
def test_jit_is_eager(name):
    tx, _ = stepper(name)
    run = PARAMS, tx.init(PARAMS)
    for t in range(STEPS):
        *run, updates = compiled(name)(*run, jax.tree.map(lambda g, t=t: g[t], GRADS))
    assert_close((*run, updates), eager(name))


@members
def test_scan_is_the_loop(name):
    at, _ = scanned(name)
    assert_close(at(2, PARAMS, GRADS), eager(name))


@functools.cache
def cells():
    """Parameters and gradients of three seeds."""
    return [(tree(seed), tree(seed + 3, shape=(STEPS,))) for seed in (1, 2, 3)]


@functools.cache
def over_seeds(names):
    """Members' runs, in one program: it is compiled in half the time of many."""

    def runs(params, grads):
        return {name: run(name, 2, params, grads) for name in names}

    return jax.jit(jax.vmap(runs))(*stack(cells()))


@few
def test_vmap_over_seeds_is_each_seed_apart(name):
    at, _ = scanned(name)
    others = tuple(other for other in TABLE if other not in FIRST)
    together = over_seeds(FIRST if name in FIRST else others)
    assert_close(together[name], stack([at(2, *cell) for cell in cells()]))


@few
def test_one_trace_serves_every_delay(name):
    at, traced = scanned(name)
    for tau in (0, 2):
        assert_close(at(tau, PARAMS, GRADS), eager(name, tau))
    assert len(traced) == 1


@members
def test_unknown_extra_arguments_are_ignored(name):
    make, extra_args = TABLE[name]
    tx = make(2)
    state, grads, extras = tx.init(PARAMS), tree(1), extra_args(2, PARAMS)
    assert_equal(
        tx.update(grads, state, PARAMS, weather="fair", **extras),
        tx.update(grads, state, PARAMS, **extras),
    )


@members
def test_an_empty_tree_stays_empty(name):
    tx, step = stepper(name)
    state = tx.init(EMPTY)
    params, new_state, updates = step(EMPTY, state, EMPTY)
    assert params == updates == EMPTY
    assert types(new_state) == types(state)


@members
def test_permuting_leaves_changes_nothing(name):
    """Dictionaries are flattened by name: other names mean another order."""
    tx, step = stepper(name)

    def leaves(names):
        params, grads = tree(0, names), tree(1, names)
        params, _, updates = step(params, tx.init(params), grads)
        return [
            [x["head"], *(x["layer"][name] for name in names)]
            for x in (params, updates)
        ]

    assert_equal(leaves(("c", "a", "b")), leaves(("a", "b", "c")))


@few
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_tree_stays_sharded(name, axis_type):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    specs = {"layer": {"a": P("data"), "b": P("data"), "c": P()}, "head": P()}

    def place(tree):
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        return jax.device_put(tree, shardings)

    def shards(tree):
        return jax.tree.map(lambda x: x.sharding.shard_shape(x.shape), tree)

    tx, step = stepper(name)
    params, grads = place(PARAMS), place(tree(1))
    with jax.set_mesh(mesh):
        state = tx.init(params)
        new_params, new_state, updates = jax.jit(step)(params, state, grads)
    assert types(new_state) == types(state)
    assert shards(new_state) == shards(state)
    assert shards(new_params) == shards(updates) == shards(params)
    matrix = PARAMS["layer"]["a"].shape
    for leaf in jax.tree.leaves(new_state):
        whole, shard = leaf.shape, leaf.sharding.shard_shape(leaf.shape)
        assert whole[-2:] != matrix or shard == (*whole[:-2], 1, 2)
    alone = compiled(name)(PARAMS, tx.init(PARAMS), tree(1))
    assert_close((new_params, new_state, updates), alone)


@members
def test_a_worker_under_shard_map_keeps_every_type(name):
    """Per-worker state begins as what it becomes: varying over the workers."""
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
    tx, step = stepper(name)

    def worker(params, grads):
        params, grads = dj.workers.vary(params), dj.workers.vary(grads)
        state = tx.init(params)
        new_params, new_state, updates = step(params, state, grads)
        assert types(new_state) == types(state)
        assert types(new_params) == types(updates) == types(params)
        return ()

    # tracing shows the types: nothing is compiled
    everywhere = jax.shard_map(worker, mesh=mesh, in_specs=P(), out_specs=P())
    jax.eval_shape(everywhere, PARAMS, tree(1))


AROUND = {
    "alone": lambda tx: tx,
    "in MultiSteps": lambda tx: optax.MultiSteps(tx, 2),
    "in apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
}


def assert_buffers_differ(*trees):
    """Also between trees: parameters and state are donated together."""
    leaves = [x for x in jax.tree.leaves(trees) if x.size]
    where = [x.unsafe_buffer_pointer() for x in leaves]
    assert len(set(where)) == len(where)


@pytest.mark.parametrize(
    ("name", "around"),
    shortened(
        [(name, around) for around in AROUND for name in TABLE],
        *((name, "alone") for name in TABLE),
        *((name, around) for around in AROUND for name in FIRST),
    ),
)
def test_no_two_leaves_of_a_state_are_one_buffer(name, around):
    make, extra_args = TABLE[name]
    tx = AROUND[around](make(2))
    params, grads = jax.tree.map(jnp.copy, (PARAMS, tree(1)))
    state = tx.init(params)
    assert_buffers_differ(params, state)
    _, state = tx.update(grads, state, params, **extra_args(2, params))
    assert_buffers_differ(params, grads, state)


@few
def test_parameters_and_state_may_be_donated(name):
    params = jax.tree.map(jnp.copy, PARAMS)
    state = stepper(name)[0].init(params)
    donated = jax.jit(stepper(name)[1], donate_argnums=(0, 1))
    for _ in range(2):
        params, state, _ = donated(params, state, tree(1))
    assert_buffers_differ(params, state)
