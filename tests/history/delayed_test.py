import collections
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

AxisType = jax.sharding.AxisType
KEY = jax.random.key(0)
PARAMS = {
    "layer": {
        "b": jnp.array([0.5, -2.0], jnp.bfloat16),
        "w": jnp.arange(6, dtype=jnp.float32).reshape(3, 2) / 8,
    },
    "scale": jnp.array(1.0, jnp.float32),
}


class Oracle:
    """`delayed` from its definition: a deque of (gradient, age, params) for each leaf.

    Newest first. `delays` (functions of the step) and `bounds` have one entry a leaf;
    `one` says whether a single staleness is told for all of them.
    """

    def __init__(
        self, inner, delays, bounds, *, one, warmup="fresh", keep_params=False
    ):
        self.inner, self.delays, self.bounds = inner, delays, bounds
        self.one, self.warmup, self.keep_params = one, warmup, keep_params

    def init(self, params):
        self.queues = [collections.deque(maxlen=bound + 1) for bound in self.bounds]
        if self.warmup == "zeros":
            for queue, p in zip(self.queues, jax.tree.leaves(params), strict=True):
                queue.extend([(0 * p, 0, 0 * p)] * (queue.maxlen - 1))
        self.step = 0
        return self.inner.init(params)

    def update(self, grads, state, params, *, staleness=0, stale_params=None):
        g = jax.tree.leaves(grads)
        a = jax.tree.leaves(jax.tree.broadcast(staleness, grads))
        p = jax.tree.leaves(params if stale_params is None else stale_params)
        late = []
        for i, queue in enumerate(self.queues):
            queue.appendleft((g[i], a[i], p[i]))
            tau = min(max(math.floor(self.delays[i](self.step)), 0), len(queue) - 1)
            gradient, age, old = queue[tau]
            late.append((gradient, jnp.int32(age + tau), old))
        unflatten = jax.tree.structure(grads).unflatten
        grads, ages, olds = map(unflatten, zip(*late, strict=True))
        self.step += 1
        if self.warmup == "skip" and self.step <= max(self.bounds):
            return jax.tree.map(jnp.zeros_like, grads), state
        told = {"staleness": jax.tree.leaves(ages)[0] if self.one else ages}
        if self.keep_params:
            told["stale_params"] = olds
        return self.inner.update(grads, state, params, **told)


def gradients(step):
    rng = np.random.default_rng(step)
    return jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), PARAMS
    )


def follow(wrap, *, told=lambda step: {}, gradients=gradients, steps=8):
    """What reaches Adam inside of `wrap` at each step, and the updates it returns."""
    rows = []
    inner = optax.adam(0.1)

    def spy(updates, state, params=None, **extra):
        rows[-1]["gradients"] = updates
        rows[-1].update(extra)
        return inner.update(updates, state, params)

    tx = wrap(optax.GradientTransformationExtraArgs(inner.init, spy))
    params = PARAMS
    state = tx.init(params)
    for step in range(steps):
        rows.append({})
        updates, state = tx.update(gradients(step), state, params, **told(step))
        rows[-1]["updates"] = updates
        params = optax.apply_updates(params, updates)
    return rows


def assert_same(got, expected):
    """Bit for bit; where the oracle calls no optimizer, its call is not compared."""
    for row, wanted in zip(got, expected, strict=True):
        if "gradients" not in wanted:
            row = {"updates": row["updates"]}
        chex.assert_trees_all_equal(row, wanted, strict=True)


def assert_rounds(got, expected):
    """Two programs, which XLA may fuse or contract differently: a few roundings."""

    def close(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        is_float = jnp.issubdtype(a.dtype, jnp.floating)
        few = 4 * float(jnp.finfo(a.dtype).eps) if is_float else 0
        a, b = (np.asarray(x, float) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=few, atol=few)

    jax.tree.map(close, got, expected)


def always(tau):
    return lambda step: tau


def draw(low, high):
    delay = dj.delays.uniform(KEY, low, high)
    return delay, lambda step: int(delay(step))


LATE, LATE_INT = draw(0, 5)

# name: (delay, max_delay), (delays, bounds) of the leaves b, w, scale
SINGLE = {
    "no history": ((0, None), (always(0), 0)),
    "zero": ((0, 3), (always(0), 3)),
    "one": ((1, None), (always(1), 1)),
    "constant": ((3, None), (always(3), 3)),
    "beyond the bound": ((always(5), 2), (always(5), 2)),
    "an array": ((jnp.asarray(2), 4), (always(2), 4)),
    "floored": ((lambda t: 0.75 * t, 4), (lambda t: 0.75 * t, 4)),
    "falling below zero": ((lambda t: 3.5 - t, 4), (lambda t: 3.5 - t, 4)),
    "an Optax schedule": (
        (optax.linear_schedule(0, 4, 4), 4),
        (lambda t: min(t, 4), 4),
    ),
    "random": ((LATE, 4), (LATE_INT, 4)),
}
TREES = {
    "a delay a part": (
        ({"layer": 3, "scale": 1}, None),
        ([always(3), always(3), always(1)], [3, 3, 1]),
    ),
    "a leaf without history": (
        ({"layer": 2, "scale": 0}, None),
        ([always(2), always(2), always(0)], [2, 2, 0]),
    ),
    "one bound": (
        ({"layer": LATE, "scale": 1}, 3),
        ([LATE_INT, LATE_INT, always(1)], [3, 3, 3]),
    ),
    "one delay": (
        (LATE, {"layer": {"b": 0, "w": 4}, "scale": 2}),
        ([LATE_INT] * 3, [0, 4, 2]),
    ),
}
CASES = {
    **{n: (a, ([d] * 3, [b] * 3), True) for n, (a, (d, b)) in SINGLE.items()},
    **{n: (a, b, False) for n, (a, b) in TREES.items()},
}


def both(case, **options):
    """The library's wrapper of a case and the oracle's."""
    (delay, max_delay), (delays, bounds), one = CASES[case]
    told = {k: v for k, v in options.items() if k != "history"}
    return (
        lambda inner: dj.delayed(inner, delay, max_delay=max_delay, **options),
        lambda inner: Oracle(inner, delays, bounds, one=one, **told),
    )


@pytest.mark.parametrize("case", CASES)
def test_delayed_is_a_deque_of_gradients_and_snapshots(case):
    library, oracle = both(case, keep_params=True)
    assert_same(follow(library), follow(oracle))


@pytest.mark.parametrize("warmup", ["skip", "zeros"])
@pytest.mark.parametrize("case", ["no history", "constant", "random", *TREES])
def test_delayed_warms_up_as_a_deque_does(case, warmup):
    library, oracle = both(case, warmup=warmup)
    assert_same(follow(library), follow(oracle))


@pytest.mark.parametrize("case", ["no history", "constant", "random", *TREES])
def test_the_age_handed_in_is_added(case):
    library, oracle = both(case)

    def told(step):
        return {"staleness": jnp.int32(7 * step % 5)}

    assert_same(follow(library, told=told), follow(oracle, told=told))


@pytest.mark.parametrize("case", TREES)
def test_an_age_for_each_leaf_is_added_to_each(case):
    library, oracle = both(case)

    def told(step):
        return {"staleness": {"layer": {"b": step, "w": 2}, "scale": 7 * step % 5}}

    assert_same(follow(library, told=told), follow(oracle, told=told))


def test_a_snapshot_handed_in_stays_with_its_gradient():
    library, oracle = both("random", keep_params=True)

    def told(step):
        old = jax.tree.map(lambda p: p + jnp.asarray(step, p.dtype), PARAMS)
        return {"staleness": jnp.int32(3), "stale_params": old}

    assert_same(follow(library, told=told), follow(oracle, told=told))


@pytest.mark.parametrize(
    ("outer", "inside"),
    [
        ("constant", "one"),
        ("one", "random"),
        ("random", "constant"),
        ("one", "a delay a part"),
        ("a leaf without history", "one delay"),
    ],
)
def test_producers_inside_one_another_add_their_ages(outer, inside):
    library_o, oracle_o = both(outer, keep_params=True)
    library_i, oracle_i = both(inside, keep_params=True)
    assert_same(
        follow(lambda inner: library_o(library_i(inner))),
        follow(lambda inner: oracle_o(oracle_i(inner))),
    )


@pytest.mark.parametrize("case", ["constant", "random", "one bound"])
def test_a_cast_history_rounds_gradients_and_nothing_else(case):
    def rounded(step):
        grads = gradients(step)
        return optax.tree.cast_like(optax.tree.cast(grads, jnp.bfloat16), grads)

    history = dj.ring.cast(jnp.bfloat16)
    library, oracle = both(case, keep_params=True, history=history)
    assert_same(follow(library), follow(oracle, gradients=rounded))


def test_a_leaf_without_delay_is_not_stored():
    tx = dj.delayed(optax.sgd(0.1), {"layer": 2, "scale": 0}, keep_params=True)
    state = tx.init(PARAMS)
    assert state.gradients.slots["scale"] is None
    assert state.origins.slots.params["scale"] is None
    chex.assert_tree_shape_prefix(state.gradients.slots["layer"], (3,))


def test_without_delay_nothing_is_stored():
    state = dj.delayed(optax.sgd(0.1), 0, keep_params=True).init(PARAMS)
    assert jax.tree.leaves(state.gradients.slots) == []
    assert jax.tree.leaves(state.origins.slots) == []


@pytest.mark.parametrize("delay", [0, 2])
def test_an_empty_tree_is_fine(delay):
    tx = dj.delayed(optax.adam(0.1), delay, keep_params=True)
    state = tx.init({})
    for expected in (0, min(1, delay), delay):
        updates, state = tx.update({}, state, {})
        assert updates == {}
        assert dj.staleness(state) == expected


def test_unknown_extra_arguments_pass_through():
    seen = []

    def update(updates, state, params=None, *, value, **extra):
        seen.append(value)
        return updates, state

    inner = optax.GradientTransformationExtraArgs(lambda params: (), update)
    tx = dj.delayed(inner, 1)
    tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=3)
    assert seen == [3]


OPTIMIZERS = {
    "sgd": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
    "adamw": optax.adamw,
    "lion": optax.lion,
    "muon": optax.contrib.muon,
}


@pytest.mark.parametrize(
    ("transform", "assert_alike"),
    [
        # the same operations, one after the other: the same bits
        (lambda f: f, functools.partial(chex.assert_trees_all_equal, strict=True)),
        (jax.jit, assert_rounds),
    ],
    ids=["eager", "jit"],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zero_staleness_is_the_inner_optimizer(name, transform, assert_alike):
    inner = OPTIMIZERS[name](0.1)

    # traced, so that the compiler cannot know that it is zero
    def late(grads, state, params, delay):
        return dj.delayed(inner, delay, max_delay=3).update(grads, state, params)

    plain, delayed = transform(inner.update), transform(late)
    params = PARAMS
    plain_state = inner.init(params)
    state = dj.delayed(inner, 0, max_delay=3).init(params)
    for step in range(3):
        expected, plain_state = plain(gradients(step), plain_state, params)
        updates, state = delayed(gradients(step), state, params, jnp.int32(0))
        assert_alike(updates, expected)
        assert_alike(state.inner_state, plain_state)
        params = optax.apply_updates(params, updates)


@pytest.mark.parametrize("delay", [0, 1, 5])
@pytest.mark.parametrize("slack", [0, 3])
def test_after_the_warm_up_a_constant_delay_uses_every_gradient_once(delay, slack):
    tx = dj.delayed(optax.identity(), delay, max_delay=delay + slack)
    steps = jnp.arange(20.0)
    state = tx.init(steps[0])
    _, used = jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], state, steps)
    np.testing.assert_array_equal(used[delay:], steps[: 20 - delay])


def typed(tree):
    return jax.tree.map(jax.typeof, tree)


TYPED = {
    "constant": dict(delay=2),
    "no history": dict(delay=0),
    "random": dict(delay=dj.delays.geometric(KEY, 2.0), max_delay=4),
    "schedule": dict(delay=optax.linear_schedule(0, 4, 4), max_delay=4),
    "snapshots": dict(delay=2, keep_params=True),
    "skip": dict(delay=2, warmup="skip"),
    "zeros": dict(delay=2, warmup="zeros"),
    "cast": dict(delay=2, history=dj.ring.cast(jnp.bfloat16)),
    "tree": dict(delay={"layer": 2, "scale": 0}, keep_params=True),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_step_returns_the_types_that_init_gave(name):
    tx = dj.delayed(dj.delayed(optax.adam(0.1), **TYPED[name]), **TYPED[name])
    state = tx.init(PARAMS)
    updates, after = tx.update(
        gradients(0), state, PARAMS, staleness=1, stale_params=PARAMS
    )
    assert typed(after) == typed(state)
    assert typed(updates) == typed(PARAMS)
    shapes = jax.eval_shape(tx.init, PARAMS)
    assert typed(jax.eval_shape(tx.update, PARAMS, shapes, PARAMS)[1]) == typed(shapes)


def test_a_late_gradient_without_its_snapshot_is_refused():
    """Today's parameters are not those that a gradient of age 2 was taken at."""
    tx = dj.delayed(dj.delayed(optax.sgd(1.0), 1, keep_params=True), 2)
    with pytest.raises(TypeError, match=r"`stale_params`.*keep_params=True as well"):
        tx.update(gradients(0), tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_history_is_sharded_as_its_parameters(axis_type, dtype):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    sharding = jax.NamedSharding(mesh, jax.P(None, "data"))
    params = {"w": jax.device_put(jnp.ones((2, 8), dtype), sharding)}
    tx = dj.delayed(optax.adam(0.1), 2, keep_params=True)
    with jax.set_mesh(mesh):
        state = tx.init(params)
        updates, after = jax.jit(tx.update)(params, state, params)
    slots = jax.NamedSharding(mesh, jax.P(None, None, "data"))
    for rings in (state, after):
        kept = rings.gradients.slots, rings.origins.slots.params
        for leaf in jax.tree.leaves(kept):
            assert leaf.sharding.is_equivalent_to(slots, 3)
    assert updates["w"].sharding.is_equivalent_to(sharding, 2)
    assert typed(after) == typed(state)


def train(rate, delay, seed, steps=8, max_delay=4):
    """Delayed Adam on a noisy bowl, in a scan; all that a grid may hold is traced."""
    tx = dj.delayed(optax.adam(rate), delay, max_delay=max_delay, keep_params=True)
    key, params = jax.random.key(seed), {"w": jnp.ones(3), "b": jnp.zeros(())}

    def step(carry, t):
        params, state = carry
        noise = jax.random.normal(jax.random.fold_in(key, t), (3,))
        grads = {"w": params["w"] + noise, "b": params["b"] - 1.0}
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), dj.staleness(state)

    carry, staleness = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))
    return carry[0], staleness


def test_step_size_delay_and_seed_may_be_one_grid():
    rates, delays, seeds = jnp.array([0.1, 0.01, 0.1]), jnp.array([0, 3, 9]), range(3)
    params, staleness = jax.jit(jax.vmap(train))(rates, delays, jnp.arange(3))
    for i, delay in enumerate(delays.tolist()):
        assert staleness[i].tolist() == [min(delay, t, 4) for t in range(8)]
        alone, _ = jax.jit(train)(rates[i], delays[i], seeds[i])
        cell = jax.tree.map(lambda x, i=i: x[i], params)
        # XLA may fuse the two programs differently
        chex.assert_trees_all_close(cell, alone, rtol=1e-5, atol=1e-6)


def test_a_donated_scan_is_the_loop():
    tx = dj.delayed(optax.sgd(0.1, momentum=0.9), LATE, max_delay=4)
    grads = jax.tree.map(lambda *g: jnp.stack(g), *map(gradients, range(8)))
    params, state = PARAMS, tx.init(PARAMS)

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), dj.staleness(state)

    looped, seen = (params, state), []
    for t in range(8):
        looped, staleness = step(looped, gradients(t))
        seen.append(int(staleness))
    scan = jax.jit(
        lambda carry, grads: jax.lax.scan(step, carry, grads), donate_argnums=0
    )
    carry, staleness = scan(jax.tree.map(jnp.copy, (params, state)), grads)
    assert staleness.tolist() == seen == [min(LATE_INT(t), t, 4) for t in range(8)]
    assert_rounds(carry, looped)


def test_one_trace_serves_every_delay():
    traces = []

    @jax.jit
    def step(grads, state, delay):
        traces.append(delay)
        return dj.delayed(optax.identity(), delay, max_delay=4).update(grads, state)

    state = dj.delayed(optax.identity(), 0, max_delay=4).init(jnp.zeros(()))
    used = []
    for t, delay in enumerate([0, 1, 2, 0, 3, 9]):
        update, state = step(jnp.asarray(float(t)), state, delay)
        used.append(float(update))
    assert used == [t - min(d, t, 4) for t, d in enumerate([0, 1, 2, 0, 3, 9])]
    assert len(traces) == 1


def slope(params, target):
    """The gradient of a bowl at `target` that also couples its two leaves."""
    return jax.grad(lambda p: jnp.sum((p["w"] - p["s"] * target) ** 2))(params)


@pytest.mark.parametrize(
    ("inner", "start", "history", "rtol"),
    [
        # another order of the sum over workers, and another fusion
        (optax.sgd(0.1), lambda params: params, None, 1e-5),
        (optax.sgd(0.1), lambda params: params, dj.ring.cast(jnp.bfloat16), 2**-6),
        # momentum of its own on each worker: its state differs from worker to worker
        (optax.sgd(0.1, momentum=0.9), dj.workers.vary, None, 1e-5),
    ],
    ids=["sgd", "cast", "momentum"],
)
def test_each_device_delays_its_own_gradient(inner, start, history, rtol):
    delays, steps = [0, 1, 3, 2], 7
    params = {"w": jnp.array([1.0, -2.0]), "s": jnp.array(3.0)}
    targets = np.random.default_rng(0).normal(size=(4, steps, 2)).astype(np.float32)
    late = dj.delays.per_worker(delays)
    tx = dj.delayed(inner, late, max_delay=3, keep_params=True, history=history)

    def worker(params, targets):
        def step(carry, target):
            params, state = carry
            updates, state = tx.update(
                slope(dj.workers.vary(params), target), state, params
            )
            updates = jax.lax.pmean(updates, "workers")
            return (optax.apply_updates(params, updates), state), dj.staleness(state)

        carry = (params, tx.init(start(params)))
        (params, _), staleness = jax.lax.scan(step, carry, targets[0])
        return params, staleness[None]

    workers = jax.P("workers")
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
    run = jax.shard_map(
        worker, mesh=mesh, in_specs=(jax.P(), workers), out_specs=(jax.P(), workers)
    )
    got, staleness = jax.jit(run)(params, targets)
    assert staleness.tolist() == [[min(d, t) for t in range(steps)] for d in delays]

    inner = optax.with_extra_args_support(inner)
    oracles = [Oracle(inner, [always(d)] * 2, [3, 3], one=True) for d in delays]
    states = [oracle.init(params) for oracle in oracles]
    for t in range(steps):
        updates = []
        for p, oracle in enumerate(oracles):
            grads = slope(params, targets[p, t])
            update, states[p] = oracle.update(grads, states[p], params)
            updates.append(update)
        params = jax.tree.map(lambda x, *u: x + sum(u) / 4, params, *updates)
    chex.assert_trees_all_close(got, params, rtol=rtol)


def test_staleness_is_what_was_handed_on():
    tx = dj.delayed(optax.sgd(0.1), 2, max_delay=4)
    state = tx.init(PARAMS)
    for step in range(4):
        _, state = tx.update(PARAMS, state, staleness=3 * step)
        tau = min(2, step)
        assert dj.staleness(state) == tau + 3 * (step - tau)


def test_staleness_is_a_tree_where_each_leaf_has_its_own():
    tx = optax.chain(dj.delayed(optax.sgd(0.1), {"layer": 2, "scale": 0}))
    state = tx.init(PARAMS)
    for step in range(4):
        _, state = tx.update(PARAMS, state)
        tau = min(2, step)
        expected = {"layer": {"b": tau, "w": tau}, "scale": 0}
        chex.assert_trees_all_equal(dj.staleness(state), expected)


def test_staleness_of_producers_inside_one_another_is_the_innermost_sum():
    tx = optax.chain(optax.clip(9.0), dj.delayed(dj.delayed(optax.sgd(0.1), 1), 2))
    state = tx.init(PARAMS)
    for step in range(5):
        _, state = tx.update(PARAMS, state)
        inside = min(1, step)
        assert dj.staleness(state) == inside + min(2, step - inside)


@pytest.mark.parametrize(
    ("tx", "message"),
    [
        (optax.adam(0.1), r"`opt_state` must hold one staleness, got 0.*`delayed`"),
        (
            optax.chain(dj.delayed(optax.identity(), 1), dj.delayed(optax.sgd(0.1), 1)),
            r"`opt_state` must hold one staleness, got 2: pass the state of one",
        ),
    ],
)
def test_staleness_of_no_producer_or_of_two_is_refused(tx, message):
    with pytest.raises(ValueError, match=message):
        dj.staleness(tx.init(PARAMS))


@pytest.mark.parametrize("warmup", ["fresh", "zeros"])
def test_a_delayed_identity_before_an_optimizer_is_delayed_around_it(warmup):
    options = dict(delay=LATE, max_delay=3, warmup=warmup)
    element = optax.chain(dj.delayed(optax.identity(), **options), optax.adam(0.1))
    wrapper = dj.delayed(optax.adam(0.1), **options)
    states = element.init(PARAMS), wrapper.init(PARAMS)
    for step in range(6):
        got, first = element.update(gradients(step), states[0], PARAMS)
        expected, second = wrapper.update(gradients(step), states[1], PARAMS)
        states = first, second
        chex.assert_trees_all_equal(got, expected, strict=True)


@pytest.mark.parametrize("warmup", ["skip", "zeros"])
def test_a_delayed_identity_emits_zeros_while_it_warms_up(warmup):
    tx = dj.delayed(optax.identity(), 2, warmup=warmup)
    state, emitted = tx.init(jnp.zeros(())), []
    for grad in (1.0, 2.0, 3.0, 4.0):
        update, state = tx.update(jnp.asarray(grad), state)
        emitted.append(float(update))
    assert emitted == [0.0, 0.0, 1.0, 2.0]


def test_a_delayed_identity_keeps_a_cast_history():
    history = dj.ring.cast(jnp.bfloat16)
    state = dj.delayed(optax.identity(), 3, history=history).init(
        jnp.zeros(8, jnp.float32)
    )
    stored = jax.tree.leaves(state.gradients.slots)
    assert sum(slots.nbytes for slots in stored) == 4 * 8 * 2


def update(delay, given=PARAMS, params=PARAMS, staleness=None, **options):
    """One step of delayed SGD."""
    tx = dj.delayed(optax.sgd(0.1), delay, **options)
    return tx.update(given, tx.init(PARAMS), params, staleness=staleness)


def late(step):
    return step


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dj.delayed(3, 1), TypeError, r"`inner` .* got 3: pass .*optax\.sgd"),
        (lambda: dj.delayed(optax.sgd, 1), TypeError, r"`inner` .* got <function sgd"),
        (lambda: update(-1), ValueError, r"`delay` must be .*non-negative, got -1"),
        (lambda: update(1.0), ValueError, r"`max_delay` must be given .* got 1\.0"),
        (lambda: update("1"), TypeError, r"`delay` .* got '1'"),
        (
            lambda: update(jnp.asarray(-2), max_delay=3),
            ValueError,
            r"`delay` must be .*non-negative, got -2",
        ),
        (
            lambda: update(np.array([1, 2]), max_delay=3),
            TypeError,
            r"`delay` must be a number, got array\(\[1, 2\]\)",
        ),
        (
            lambda: update(lambda t: jnp.arange(3), max_delay=3),
            ValueError,
            r"`delay\(step\)` must be a scalar, got shape \(3,\)",
        ),
        (
            lambda: update({"layer": 1}, max_delay=3),
            ValueError,
            r"`delay` must be one value or a prefix .* got \{'layer'",
        ),
        (lambda: update(1, max_delay=-3), ValueError, r"`max_delay` .* got -3"),
        (lambda: update(1, max_delay=3.0), TypeError, r"`max_delay` .* got 3\.0"),
        (
            lambda: jax.jit(lambda bound: update(1, max_delay=bound))(3),
            TypeError,
            r"`max_delay` must be a static integer",
        ),
        (
            lambda: update(1, max_delay={"layer": 1, "scale": -1}),
            ValueError,
            r"`max_delay` .* got -1",
        ),
        (
            lambda: update(1, max_delay={"layer": 1}),
            ValueError,
            r"`max_delay` must be one value or a prefix .* got \{'layer': 1\}",
        ),
        (
            lambda: update(late),
            ValueError,
            r"`max_delay` must be given .*<function late",
        ),
        (
            lambda: update(jnp.asarray(2)),
            ValueError,
            r"`max_delay` must be given .* got Array\(2",
        ),
        (
            lambda: update({"layer": 1, "scale": late}),
            ValueError,
            r"`max_delay` must be given .*<function late",
        ),
        (
            lambda: update(1, warmup="cold"),
            ValueError,
            r"`warmup` must be \"fresh\", \"skip\" or \"zeros\", got 'cold'",
        ),
        (
            lambda: dj.delayed(optax.identity(), 1, warmup="cold"),
            ValueError,
            r"`warmup` .* got 'cold'",
        ),
        (
            lambda: update(1, given={**PARAMS, "scale": jnp.int32(1)}),
            TypeError,
            r"`delayed` needs floating-point gradients, got int32 at \['scale'\]",
        ),
        (
            lambda: update(1, given={"layer": PARAMS["layer"]}),
            ValueError,
            r"`updates` must have the structure of the parameters, .*'scale'",
        ),
        (
            lambda: update(1, given={**PARAMS, "scale": jnp.ones(2)}),
            ValueError,
            r"like the ring's items: \['scale'\] is .*\[2\], and its slots hold .*\[\]",
        ),
        (
            lambda: update(1, keep_params=True, params=None),
            TypeError,
            r"`delayed\(keep_params=True\)` needs .*`params`.*update\(grads, state, p",
        ),
        (
            lambda: update(1, staleness={"layer": 1, "scale": 2}),
            ValueError,
            r"`tree` must have the structure of the history's items.*'layer'",
        ),
        (
            lambda: update({"layer": 1, "scale": 2}, staleness={"layer": 1}),
            ValueError,
            r"`staleness` must be one value or a prefix .* got \{'layer'",
        ),
        (
            lambda: update(1, staleness=1.0),
            ValueError,
            r"`staleness` handed to `delayed` must be .* got 1\.0",
        ),
        (
            lambda: update(1, staleness=-1),
            ValueError,
            r"`staleness` handed to `delayed` must be .* got -1",
        ),
        (
            lambda: update(1, staleness=np.array([1, 2])),
            ValueError,
            r"`staleness` .*\[1, 2\]",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("delay", "max_delay", "bound"),
    [
        (8, 4, 4),
        (np.int32(8), 4, 4),
        (jnp.float32(8.5), 4, 4),
        ({"w": 1, "b": 8}, 4, 4),
        (8, {"w": 9, "b": 4}, 4),
        ({"w": 1, "b": 8}, {"w": 1, "b": 4}, 4),
    ],
    ids=str,
)
def test_a_known_delay_beyond_the_largest_is_refused(delay, max_delay, bound):
    """It would run with the largest: a grid's rows would be equal, by other names."""
    message = rf"`delay` must be at most `max_delay` = {bound}, got 8"
    with pytest.raises(ValueError, match=message):
        dj.delayed(optax.sgd(0.1), delay, max_delay=max_delay)
