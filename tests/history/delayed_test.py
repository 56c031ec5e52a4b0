import collections
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

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

    The newest is first. The losses have a deque too. `delays` (functions of the step)
    and `bounds` have an entry for each leaf; with `one`, all leaves have one staleness.
    """

    def __init__(
        self, inner, delays, bounds, *, one, warmup="fresh", keep_params=False
    ):
        self.inner, self.delays, self.bounds = inner, delays, bounds
        self.one, self.warmup, self.keep_params = one, warmup, keep_params

    def init(self, params):
        self.queues = [collections.deque(maxlen=bound + 1) for bound in self.bounds]
        self.losses = collections.deque(maxlen=max(self.bounds) + 1)
        if self.warmup == "zeros":
            for queue, p in zip(self.queues, jax.tree.leaves(params), strict=True):
                queue.extend([(0 * p, 0, 0 * p)] * (queue.maxlen - 1))
            self.losses.extend([jnp.zeros(())] * (self.losses.maxlen - 1))
        self.step = 0
        return self.inner.init(params)

    def update(
        self,
        grads,
        state,
        params,
        *,
        staleness=0,
        stale_params=None,
        value=None,
        **extra_args,
    ):
        g = jax.tree.leaves(grads)
        a = jax.tree.leaves(jax.tree.broadcast(staleness, grads))
        p = jax.tree.leaves(params if stale_params is None else stale_params)
        late, taus = [], []
        for i, queue in enumerate(self.queues):
            queue.appendleft((g[i], a[i], p[i]))
            tau = min(max(math.floor(self.delays[i](self.step)), 0), len(queue) - 1)
            gradient, age, old = queue[tau]
            late.append((gradient, jnp.int32(age + tau), old))
            taus.append(tau)
        unflatten = jax.tree.structure(grads).unflatten
        grads, ages, olds = map(unflatten, zip(*late, strict=True))
        self.losses.appendleft(value)
        self.step += 1
        if self.warmup == "skip" and self.step <= max(self.bounds):
            return jax.tree.map(jnp.zeros_like, grads), state
        extra_args["staleness"] = jax.tree.leaves(ages)[0] if self.one else ages
        if value is not None:
            extra_args["value"] = self.losses[max(taus)]
        if self.keep_params:
            extra_args["stale_params"] = olds
        return self.inner.update(grads, state, params, **extra_args)


def gradients(step):
    rng = np.random.default_rng(step)
    return jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), PARAMS
    )


# with weight decay, so that the updates depend on the parameters
INNER = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.5))


def follow(wrap, *, args=lambda step: {}, gradients=gradients, steps=8):
    """For each step, what an optimizer inside of `wrap` receives, and the updates."""
    rows = []

    def spy(updates, state, params=None, **extra):
        rows[-1]["gradients"] = updates
        rows[-1].update(extra)
        return INNER.update(updates, state, params)

    tx = wrap(optax.GradientTransformationExtraArgs(INNER.init, spy))
    params = PARAMS
    state = tx.init(params)
    for step in range(steps):
        rows.append({})
        updates, state = tx.update(gradients(step), state, params, **args(step))
        rows[-1]["updates"] = updates
        if hasattr(state, "staleness"):  # of the library
            chex.assert_trees_all_equal(dj.staleness(state), rows[-1]["staleness"])
        params = optax.apply_updates(params, updates)
    return rows


def assert_same(got, expected):
    """Equal bit for bit; gradients only at steps at which the oracle updates."""
    for row, wanted in zip(got, expected, strict=True):
        if "gradients" not in wanted:
            row = {"updates": row["updates"]}
        chex.assert_trees_all_equal(row, wanted, strict=True)


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
    "beyond all integers": ((lambda t: jnp.float32(1e12), 3), (always(3), 3)),
    "infinite": ((lambda t: jnp.float32(np.inf), 3), (always(3), 3)),
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
    """The wrapper of the library and that of the oracle, for one case."""
    (delay, max_delay), (delays, bounds), one = CASES[case]
    others = {k: v for k, v in options.items() if k != "history"}
    return (
        lambda inner: dj.delayed(inner, delay, max_delay=max_delay, **options),
        lambda inner: Oracle(inner, delays, bounds, one=one, **others),
    )


def nothing(step):
    return {}


def late_and_more(step):
    """Extra arguments: a gradient's age, its loss, and one that `delayed` ignores."""
    loss = jnp.float32(1 + 0.25 * step)
    return {"staleness": jnp.int32(7 * step % 5), "value": loss, "weather": step}


def a_tree_of_ages(step):
    return {"staleness": {"layer": {"b": step, "w": 2}, "scale": 7 * step % 5}}


def snapshot(step):
    old = jax.tree.map(lambda p: p + jnp.asarray(step, p.dtype), PARAMS)
    return {"staleness": jnp.int32(3), "stale_params": old}


SOME = ["no history", "constant", "random", *TREES]
FOLLOWED = [
    *((case, {"keep_params": True}, nothing) for case in CASES),
    *((case, {"warmup": w}, nothing) for case in SOME for w in ("skip", "zeros")),
    *((case, {}, late_and_more) for case in SOME),
    ("constant", {"warmup": "zeros"}, late_and_more),
    *((case, {}, a_tree_of_ages) for case in TREES),
    ("random", {"keep_params": True}, snapshot),
]


@pytest.mark.parametrize(("case", "options", "args"), FOLLOWED)
def test_delayed_is_a_deque_of_gradients_and_what_comes_with_them(case, options, args):
    library, oracle = both(case, **options)
    assert_same(follow(library, args=args), follow(oracle, args=args))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("constant", "one"),
        ("one", "random"),
        ("random", "constant"),
        ("one", "a delay a part"),
        ("a leaf without history", "one delay"),
    ],
)
def test_producers_inside_one_another_add_their_ages(outer, inner):
    library_o, oracle_o = both(outer, keep_params=True)
    library_i, oracle_i = both(inner, keep_params=True)
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
    none = dj.delayed(optax.sgd(0.1), 0, keep_params=True).init(PARAMS)
    assert jax.tree.leaves((none.gradients.slots, none.origins.slots)) == []


@pytest.mark.parametrize("inner", [optax.adamw(0.1), optax.contrib.muon(0.1)])
def test_compiled_a_delay_of_zero_is_the_inner_optimizer_but_for_rounding(inner):
    """The delay is traced, so that the compiler does not know that it is zero."""

    def steps(delay):
        late, params = dj.delayed(inner, delay, max_delay=3), PARAMS
        plain_state, state = inner.init(params), late.init(params)
        for step in range(3):
            expected, plain_state = inner.update(gradients(step), plain_state, params)
            updates, state = late.update(gradients(step), state, params)
            params = optax.apply_updates(params, updates)
        return (updates, state.inner_state), (expected, plain_state)

    def close(a, b):
        few = 4 * float(jnp.finfo(a.dtype).eps) if a.dtype != jnp.int32 else 0
        np.testing.assert_allclose(a.astype(float), b.astype(float), few, few)

    jax.tree.map(close, *jax.jit(steps)(jnp.int32(0)))


def test_a_delay_that_is_no_number_gives_no_number():
    tx = dj.delayed(INNER, lambda t: jnp.where(t == 2, jnp.nan, 1.0), max_delay=4)
    state = tx.init(PARAMS)
    for update in (tx.update, tx.update, jax.jit(tx.update)):
        updates, after = update(PARAMS, state, PARAMS)
        is_nan = [np.isnan(x.astype(float)).all() for x in jax.tree.leaves(updates)]
        assert is_nan == 3 * [state.gradients.pushed == 2]
        state = after


def test_one_delay_of_a_tree_that_is_no_number_spoils_its_part_alone():
    delay = {"layer": lambda step: jnp.nan * step, "scale": 1}
    tx = dj.delayed(optax.sgd(0.1), delay, max_delay=2)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert np.isnan(updates["layer"]["w"]).all()
    assert np.isfinite(updates["scale"])


ADAM = optax.adam(0.1)
PARTS = {"trained": 1.0, "held": {"a": 1.0, "b": 1.0}}
LABELS = {"trained": "train", "held": {"a": "frozen", "b": "train"}}
FROZEN = {"trained": False, "held": {"a": True, "b": False}}


def spread(scale):
    return jax.tree.map(lambda x: scale * x * jnp.arange(1.0, 4.0), PARTS)


@pytest.mark.parametrize(
    "frozen", [FROZEN, lambda path, leaf: path == "held/a" and leaf.shape == (3,)]
)
@pytest.mark.parametrize("warmup", ["fresh", "skip", "zeros"])
@pytest.mark.parametrize("keep_params", [False, True])
def test_frozen_leaves_are_as_a_frozen_part_beside_a_delayed_part(
    frozen, warmup, keep_params
):
    """History, updates and staleness agree: the norm counts frozen leaves as zeros."""
    rule = dj.compensate_delay(0.5) if keep_params else optax.identity()
    inner = optax.chain(rule, optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    options = dict(warmup=warmup, keep_params=keep_params)
    whole = dj.delayed(inner, 2, frozen=frozen, **options)
    parts = {"train": dj.delayed(inner, 2, **options), "frozen": optax.set_to_zero()}
    part = optax.partition(parts, LABELS)
    params = spread(1.0)
    states = [tx.init(params) for tx in (whole, part)]
    kept = states[1].inner_states["train"].inner_state
    for one, other in zip(states[0][1:3], kept[1:3], strict=True):
        sizes = [[x.shape for x in jax.tree.leaves(ring)] for ring in (one, other)]
        assert sizes[0] == sizes[1]
    for t in range(6):
        # NaN in a frozen leaf
        gradients = spread(1.0 + t) | {"held": {"a": jnp.full(3, jnp.nan)}}
        gradients["held"]["b"] = jnp.full(3, 2.0 - t)
        moves = []
        for i, tx in enumerate((whole, part)):
            update, states[i] = tx.update(gradients, states[i], params)
            moves.append(update)
        chex.assert_trees_all_equal(*moves)
        assert jnp.all(moves[0]["held"]["a"] == 0)
        staleness = 2 if warmup == "zeros" else min(t, 2)
        assert dj.staleness(states[0]) == dj.staleness(states[1]) == staleness
        params = optax.apply_updates(params, moves[0])
    assert all(map(jnp.all, map(jnp.isfinite, jax.tree.leaves(states[0]))))


def test_all_leaves_frozen_keep_nothing_and_do_not_move():
    tx = dj.delayed(ADAM, 3, frozen=True)
    update, state = tx.update(spread(1.0), tx.init(spread(1.0)), spread(1.0))
    assert jax.tree.leaves((state.gradients.slots, state.origins.slots)) == []
    assert all(map(jnp.all, (x == 0 for x in jax.tree.leaves(update))))


def test_leaves_with_delays_of_their_own_may_be_frozen_too():
    delay = {"trained": 2, "held": 1}
    tx = dj.delayed(optax.sgd(1.0), delay, frozen=FROZEN)
    state = tx.init(spread(1.0))
    for t in range(5):
        update, state = tx.update(spread(1.0 + t), state)
    late = {"trained": -3.0, "held": {"a": 0.0, "b": -4.0}}
    expected = jax.tree.map(lambda x: x * jnp.arange(1.0, 4.0), late)
    chex.assert_trees_all_equal(update, expected)
    staleness = {"trained": 2, "held": {"a": 0, "b": 1}}
    assert jax.tree.map(int, dj.staleness(state)) == staleness
    depths = [x.shape[0] for x in jax.tree.leaves(state.gradients.slots)]
    assert depths == [2, 3]


def test_a_leaf_is_thawed_by_resize_history():
    """The gradients of the trained leaves are kept, but all leaves warm up again."""
    held, thawed = (dj.delayed(ADAM, 2, frozen=f) for f in (FROZEN, None))
    params = spread(1.0)
    state = held.init(params)
    for _ in range(5):
        _, state = held.update(params, state, params)
    state = dj.resize_history(state, thawed.init(params))
    update, state = thawed.update(params, state, params)
    assert dj.staleness(state) == 0 and jnp.all(update["held"]["a"] != 0)
    back = dj.resize_history(state, held.init(params))
    chex.assert_trees_all_equal_shapes_and_dtypes(back, held.init(params))


def test_frozen_says_true_or_false_of_each_leaf():
    for frozen in ({"trained": 1, "held": 0}, lambda path, leaf: None):
        with pytest.raises(TypeError, match=r"`frozen` must say True or False .* at"):
            dj.delayed(ADAM, 1, frozen=frozen).init(spread(1.0))
    with pytest.raises(ValueError, match="`frozen` must be one value or a prefix"):
        dj.delayed(ADAM, 1, frozen={"trained": True}).init(spread(1.0))
    layers = {"trained": dj.delays.Layers((1, 0, 0)), "held": 1}
    with pytest.raises(ValueError, match="`frozen` must be left out with `Layers`"):
        dj.delayed(ADAM, layers, frozen=FROZEN)


def test_the_parts_of_a_partition_say_their_staleness_by_label():
    twice = dj.delayed(dj.delayed(ADAM, 3), 1)
    parts = {"train": dj.delayed(ADAM, 2), "frozen": twice, "none": ADAM}
    labels = {"trained": "train", "held": {"a": "frozen", "b": "none"}}
    tx = optax.chain(optax.clip(1.0), optax.partition(parts, labels))
    state = tx.init(spread(1.0))
    for t in range(6):
        _, state = tx.update(spread(1.0), state, spread(1.0))
        expected = {"train": min(t, 2), "frozen": min(t, 3 + 1)}
        assert {k: int(v) for k, v in dj.staleness(state).items()} == expected
    chain = optax.chain(dj.delayed(ADAM, 1), optax.partition(parts, labels))
    with pytest.raises(
        ValueError,
        match=r"`opt_state` must hold one staleness, got 3: pass one part of",
    ):
        dj.staleness(chain.init(spread(1.0)))
