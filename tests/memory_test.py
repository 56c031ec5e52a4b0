"""The costs of a step, taken from the compiled program: nothing is timed here."""

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened
from tests.support.compiled import (
    bytes_accessed,
    compile_as_usual,
    lowered,
    temporary,
)

DELAY = 16
PARAMS = {"w": jnp.zeros((100, 200)), "b": jnp.zeros(200)}
MASK = {"w": True, "b": False}
LABELS = {"w": "late", "b": "other"}
BFLOAT16 = dj.ring.cast(jnp.bfloat16)


def nbytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


N = nbytes(PARAMS)  # bytes of one item
RING = (DELAY + 1) * N


def compiled(tx, params=PARAMS):
    return lowered(tx, params).compile()


def compensated(tx):
    return optax.chain(
        dj.compensate_delay(0.1, adaptive=True),
        tx,
        dj.scale_by_staleness(dj.modulation.inverse),
    )


def parts(late):
    return optax.partition({"late": late, "other": optax.sgd(0.1)}, LABELS)


def is_small(gradients, memory, params, **extra_args):
    return optax.tree.norm(gradients) < 1.0, gradients, memory


INJECTED = optax.inject_hyperparams(dj.delayed, static_args="max_delay")
ADAM = optax.adam(0.1)

# name: max_delay -> transformation; tests/composes_test.py checks for other optimizers
# of Optax whether a step copies the history
COMPOSITIONS = {
    "sgd": lambda d: dj.delayed(optax.sgd(0.1), d),
    "momentum": lambda d: dj.delayed(optax.sgd(0.1, momentum=0.9), d),
    "adam": lambda d: dj.delayed(ADAM, d),
    "lion": lambda d: dj.delayed(optax.lion(0.1), d),
    "muon": lambda d: dj.delayed(optax.contrib.muon(0.1), d),
    "skip": lambda d: dj.delayed(ADAM, d, warmup="skip"),
    "zeros": lambda d: dj.delayed(ADAM, d, warmup="zeros"),
    "random": lambda d: dj.delayed(
        ADAM, dj.delays.geometric(jax.random.key(0), 4.0), max_delay=d
    ),
    "a delay a leaf": lambda d: dj.delayed(ADAM, {"w": d, "b": 0}),
    "keep_params": lambda d: dj.delayed(compensated(ADAM), d, keep_params=True),
    "cast": lambda d: dj.delayed(ADAM, d, history=BFLOAT16),
    "chain around": lambda d: optax.chain(
        optax.clip_by_global_norm(1.0), dj.delayed(ADAM, d), optax.scale(0.5)
    ),
    "delayed identity": lambda d: optax.chain(dj.delayed(optax.identity(), d), ADAM),
    "masked outside": lambda d: optax.masked(dj.delayed(ADAM, d), MASK),
    "partition outside": lambda d: parts(
        dj.delayed(compensated(ADAM), d, keep_params=True)
    ),
    "inject_hyperparams around": lambda d: INJECTED(ADAM, delay=d, max_delay=d),
    "drop_stale inside": lambda d: dj.delayed(dj.drop_stale(ADAM, 8), d),
    "one inside another": lambda d: dj.delayed(dj.delayed(ADAM, d), d),
    "skip inside another": lambda d: dj.delayed(dj.delayed(ADAM, d, warmup="skip"), d),
    "skip around another": lambda d: dj.delayed(dj.delayed(ADAM, d), d, warmup="skip"),
    "refusing outside": lambda d: dj.refusing(dj.delayed(ADAM, d), is_small),
    "refusing, with parameters": lambda d: dj.refusing(
        optax.chain(optax.clip(1.0), dj.delayed(ADAM, d, keep_params=True)), is_small
    ),
    "frozen": lambda d: dj.delayed(ADAM, d, frozen={"w": False, "b": True}),
    "delivered, frozen": lambda d: dj.delivered(
        optax.sgd(0.1), d, frozen={"w": False, "b": True}
    ),
}


# composes_test measures whether these, or others like them, copy the history
OF_OTHERS = {"sgd", "momentum", "lion", "muon", "chain around", "delayed identity"}
OF_OTHERS |= {"masked outside", "partition outside", "inject_hyperparams around"}
OF_OTHERS |= {"drop_stale inside", "one inside another"}


@pytest.mark.parametrize(
    "name", shortened(COMPOSITIONS, *(n for n in COMPOSITIONS if n not in OF_OTHERS))
)
def test_a_composition_holds_no_second_ring(name):
    make = COMPOSITIONS[name]
    program, plain = compiled(make(DELAY)), compiled(make(0))
    # beyond the optimizer without a history: the item that is read, its snapshot,
    # and with "skip" the two moments of the optimizer
    assert temporary(program) <= temporary(plain) + RING / 4
    # all donated buffers are reused, except for scalars that the step does not read
    state = jax.eval_shape(make(DELAY).init, PARAMS)
    assert program.memory_analysis().alias_size_in_bytes >= N + nbytes(state) - 64


@pytest.mark.parametrize("kept", [1, 2])
def test_a_frozen_leaf_costs_no_history(kept):
    """(D + 1) trees of the trained leaves, two with `keep_params`; also in a part."""
    frozen = {"w": True, "b": False}
    whole = dj.delayed(optax.sgd(0.1), DELAY, frozen=frozen, keep_params=kept == 2)
    late = dj.delayed(optax.sgd(0.1), DELAY, keep_params=kept == 2)
    labels = {"w": "frozen", "b": "train"}
    part = optax.partition({"train": late, "frozen": optax.set_to_zero()}, labels)
    # the ages and losses of the gradients, and five counters
    scalars = 4 * (2 * (DELAY + 1) + 5)
    for tx in whole, part:
        size = nbytes(jax.eval_shape(tx.init, PARAMS))
        assert size == kept * (DELAY + 1) * nbytes(PARAMS["b"]) + scalars


@pytest.mark.parametrize("max_delay", [4, 64])
def test_delayed_sgd_moves_one_gradient_in_and_one_out(max_delay):
    plain = bytes_accessed(compiled(optax.sgd(0.1)))
    delayed = bytes_accessed(compiled(dj.delayed(optax.sgd(0.1), max_delay)))
    assert delayed <= 1.1 * (plain + N + N)


@pytest.mark.parametrize("delays", [(7, 7, 5, 5, 3, 3, 1, 1), (7, 6, 5, 4, 3, 2, 1, 0)])
def test_delays_by_layer_move_as_much_as_one_delay_and_copy_no_history(delays):
    params = {"blocks": jax.ShapeDtypeStruct((8, 64, 512), jnp.float32)}
    size = nbytes(params)
    by_layer = {"blocks": dj.delays.Layers(delays)}
    late = compiled(dj.delayed(optax.sgd(0.1), by_layer), params)
    plain = compiled(dj.delayed(optax.sgd(0.1), 7), params)
    assert bytes_accessed(late) <= 1.1 * bytes_accessed(plain)
    assert temporary(late) <= size / 100
    # the gradients of each layer (none without a delay), and the parameters
    kept = sum(delay + 1 for delay in delays if delay) / len(delays)
    held = late.memory_analysis().alias_size_in_bytes
    assert held == pytest.approx((kept + 1) * size, rel=0.001)


# the kinds of histories: (params, options of `delayed`)
KEPT = {
    "float32": (PARAMS, {}),
    "with snapshots": (PARAMS, {"keep_params": True}),
    "cast to float16": (PARAMS, {"history": dj.ring.cast(jnp.float16)}),
    "cast to bfloat16": (PARAMS, {"history": BFLOAT16}),
    "bfloat16 parameters": (optax.tree.cast(PARAMS, jnp.bfloat16), {}),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_step_costs_the_same_whatever_the_depth(name):
    params, options = KEPT[name]

    def cost(max_delay):
        tx = dj.delayed(optax.sgd(0.1), 2, max_delay=max_delay, **options)
        return bytes_accessed(compiled(tx, params))

    assert cost(64) <= 1.1 * cost(4)


CELLS, CHUNK = 8, 5
GRID = {
    "sgd": lambda rate: (optax.sgd(rate), {}),
    "compensated": lambda rate: (compensated(optax.adam(rate)), {"keep_params": True}),
    "skip": lambda rate: (optax.adam(rate), {"warmup": "skip"}),
    "cast": lambda rate: (optax.adam(rate), {"history": BFLOAT16}),
}


def grid_chunk(make, max_delay):
    """A donated chunk of steps, for `CELLS` step sizes and delays, as one program."""

    def transformation(rate, delay):
        inner, options = make(rate)
        return dj.delayed(inner, delay, max_delay=max_delay, **options)

    def init(rate, delay):
        return PARAMS, transformation(rate, delay).init(PARAMS)

    def step(carry, rate, delay, t):
        params, state = carry
        grads = jax.tree.map(lambda p: p - jnp.sin(p + t), params)
        updates, state = transformation(rate, delay).update(grads, state, params)
        return optax.apply_updates(params, updates), state

    rates, delays = jnp.linspace(0.01, 0.1, CELLS), jnp.arange(CELLS) % (max_delay + 1)
    axes = dj.ring.vmap_axes(jax.eval_shape(init, rates[0], delays[0]))
    cells = jax.vmap(step, (axes, 0, 0, None), axes)

    def chunk(carry):
        def body(carry, t):
            return cells(carry, rates, delays, t), None

        return jax.lax.scan(body, carry, jnp.arange(CHUNK))[0]

    carry = jax.eval_shape(jax.vmap(init, out_axes=axes), rates, delays)
    return compile_as_usual(jax.jit(chunk, donate_argnums=0).lower(carry))


@pytest.mark.parametrize("name", shortened(GRID, "compensated", "skip"))
def test_a_grid_holds_no_second_ring(name):
    program, plain = grid_chunk(GRID[name], DELAY), grid_chunk(GRID[name], 0)
    assert temporary(program) <= temporary(plain) + CELLS * RING / 4
    assert " scatter(" not in program.as_text()


@pytest.mark.parametrize("ages", [DELAY, {"w": DELAY, "b": 3}], ids=["one", "a leaf"])
def test_a_loop_that_keeps_its_own_ring_holds_no_second(ages):
    inner = optax.adam(0.1)

    def step(params, state, history):
        history = dj.ring.push(history, params)
        grads = jax.tree.map(jnp.sin, dj.ring.read(history, ages, params))
        updates, state = inner.update(grads, state, params)
        return optax.apply_updates(params, updates), state, history

    def program(capacity):
        shapes = jax.eval_shape(
            lambda p: (p, inner.init(p), dj.ring.init(p, capacity)), PARAMS
        )
        return jax.jit(step, donate_argnums=(0, 1, 2)).lower(*shapes).compile()

    assert temporary(program(DELAY + 1)) <= RING / 4
