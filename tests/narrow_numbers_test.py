"""A delay, an age or a staleness means the same in each dtype."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests import contract_test
from tests.support.cases import shortened

DEPTH = 300  # above what int8, uint8 and bfloat16 hold
SGD = optax.sgd(1.0)


def used(tx, steps):
    """The gradients, of 1, 2, 3 ..., that SGD uses, and the staleness it receives."""

    def step(state, gradient):
        update, state = tx.update(gradient, state)
        return state, (-update, dj.staleness(state))

    gradients = jnp.arange(1.0, steps + 1.0)
    return jax.lax.scan(step, tx.init(jnp.zeros(())), gradients)[1]


WAYS = {
    "delayed, a number": lambda tau: dj.delayed(SGD, tau, max_delay=DEPTH),
    "delayed, a function": lambda tau: dj.delayed(SGD, lambda t: tau, max_delay=DEPTH),
    "delayed, a tree": lambda tau: dj.delayed(SGD, tau, max_delay=np.int16(DEPTH)),
    "delayed, by zeros": lambda tau: dj.delayed(
        SGD, tau, max_delay=DEPTH, warmup="zeros"
    ),
    "delayed, by a trace": lambda tau: dj.delayed(
        SGD, dj.delays.from_trace(tau[None]), max_delay=DEPTH
    ),
    "delivered, a number": lambda tau: dj.delivered(SGD, tau, max_delay=DEPTH),
    "delivered, a function": lambda tau: dj.delivered(
        SGD, lambda t: tau, max_delay=DEPTH
    ),
}
NARROW = {
    "np.int8": np.int8(100),
    "np.uint8": np.uint8(250),
    "jnp.int8": jnp.int8(100),
    "jnp.uint8": jnp.uint8(250),
    "np.int16": np.int16(290),
}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    shortened(
        itertools.product(WAYS, NARROW),
        *((kind, "jnp.uint8") for kind in WAYS),
        *(("delayed, a number", dtype) for dtype in NARROW),
    ),
)
def test_a_gradient_is_as_late_as_a_narrow_delay_says(kind, dtype):
    """One more than jnp.uint8(255) is 0, and jnp.uint8(250) as jnp.int8 is -6."""
    tau = NARROW[dtype]
    steps, late = 320, int(tau)
    gradients, ages = used(WAYS[kind](tau), steps)
    full = np.arange(late, steps)  # from the end of the delay on
    np.testing.assert_array_equal(gradients[full], full - late + 1.0)
    np.testing.assert_array_equal(ages[full], late)
    assert (ages >= 0).all()


def test_a_narrow_float_is_a_delay_where_it_holds_every_integer():
    """bfloat16 holds all integers up to 2^8, float16 up to 2^11."""
    for dtype, exact in ((jnp.bfloat16, 2**8), (jnp.float16, 2**11)):
        gradients, _ = used(
            dj.delayed(SGD, jnp.asarray(exact, dtype), max_delay=exact), exact + 2
        )
        np.testing.assert_array_equal(gradients[exact:], [1.0, 2.0])
        for wrap in (dj.delayed, dj.delivered):
            tx = wrap(SGD, jnp.asarray(exact, dtype), max_delay=exact + 1)
            with pytest.raises(TypeError, match=r"`delay` is .* hyperparam_dtype="):
                tx.update(jnp.ones(()), tx.init(jnp.ones(())))


def test_a_delay_injected_beside_bfloat16_parameters_is_not_rounded():
    """`inject_hyperparams` would make 257 of a schedule 256."""

    @optax.inject_hyperparams
    def late(delay):
        return dj.delayed(SGD, delay, max_delay=DEPTH)

    params = jnp.zeros((), jnp.bfloat16)
    tx = late(delay=optax.constant_schedule(257.0))
    with pytest.raises(TypeError, match=r"hyperparam_dtype=jnp\.float32"):
        tx.update(params, tx.init(params), params)
    exact = optax.inject_hyperparams(
        lambda delay: dj.delayed(SGD, delay, max_delay=DEPTH),
        hyperparam_dtype=jnp.float32,
    )(delay=optax.constant_schedule(257.0))
    step = jax.jit(exact.update)
    state = exact.init(params)
    for _ in range(260):
        _, state = step(params, state, params)
    assert dj.staleness(state) == 257


@pytest.mark.parametrize(
    ("dtype", "compiled"),
    shortened(
        itertools.product(NARROW, (False, True)),
        *((dtype, False) for dtype in NARROW),
        ("jnp.uint8", True),
    ),
)
def test_a_ring_reads_the_item_of_a_narrow_age(dtype, compiled):
    age, item = NARROW[dtype], jnp.zeros(())
    pushes = jnp.arange(2.0 * DEPTH)
    ring, _ = jax.lax.scan(
        lambda ring, x: (dj.ring.push(ring, x), None), dj.ring.init(item, DEPTH), pushes
    )
    read = jax.jit(dj.ring.read) if compiled else dj.ring.read
    assert read(ring, age, item) == 2 * DEPTH - 1 - int(age)


RULES = {
    name: make
    for name, (make, extra) in contract_test.TABLE.items()
    if "staleness" in extra(0, {"head": jnp.ones(1), "layer": jnp.ones(1)})
}
PARAMS = {"layer": jnp.full((2, 3), 0.5), "head": jnp.ones(3)}


def moved(tx, staleness, gradients=PARAMS):
    """The updates of two gradients that come with a staleness."""
    extra = {"stale_params": optax.tree.scale(0.5, PARAMS), "value": 1.0, "worker": 0}
    state = tx.init(PARAMS)
    for _ in range(2):
        updates, state = tx.update(
            gradients, state, PARAMS, staleness=staleness, **extra
        )
    return updates


def same(tree, other):
    jax.tree.map(
        functools.partial(np.testing.assert_array_equal, strict=True), tree, other
    )


@pytest.mark.parametrize("name", RULES)
def test_a_rule_weighs_a_staleness_the_same_in_each_type(name):
    """With the largest uint8, to which 1 cannot be added, too."""
    tx, tau = RULES[name](1), 255
    wanted = moved(tx, tau)
    for kind in (np.uint8, np.int16, np.int64, np.uint64, jnp.uint8, jnp.uint32):
        same(moved(tx, kind(tau)), wanted)


OUTSIDE = [np.uint32(2**32 - 2), 2**33, np.int64(2**33), np.int8(-1)]


@pytest.mark.parametrize("tau", shortened(OUTSIDE, OUTSIDE[0]))
@pytest.mark.parametrize("name", RULES)
def test_a_staleness_outside_of_int32_is_refused_where_it_is_known(name, tau):
    """np.uint32(3) - np.uint32(5) is 2^32 - 2: -2 as int32, which is ascent."""
    for call in (moved, jax.jit(moved, static_argnums=(0, 1))):
        with pytest.raises(ValueError, match=r"a non-negative integer below 2\^31"):
            call(RULES[name](1), tau)


@pytest.mark.parametrize("name", RULES)
def test_a_staleness_outside_of_int32_moves_nothing_where_it_is_traced(name):
    """Updates are NaN; or zero, by a rule that refuses what is old."""
    tx = RULES[name](1)
    with jax.enable_x64(True):
        for tau in (jnp.uint32(2**32 - 2), jnp.int64(2**33)):
            updates = jax.jit(functools.partial(moved, tx))(tau)
            for leaf in jax.tree.leaves(updates):
                assert np.isnan(leaf).all() or not leaf.any()
