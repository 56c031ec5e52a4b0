"""Invalid arguments of histories: errors name the argument, with its value or a remedy.

Values that are wrong in every such call (no number, no function) are in `fuzz_test`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj

SGD = optax.sgd(0.1)
PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2, jnp.bfloat16), "s": jnp.ones(())}
A_LEAF = {"w": 2, "b": 1, "s": 1}
OTHER_SHAPE, INTEGER = ({**PARAMS, "s": bad} for bad in (jnp.ones(2), jnp.int32(1)))
FEWER = {"w": PARAMS["w"]}


def updated(make, delay, given=PARAMS, params=PARAMS, args=None, inner=SGD, **options):
    """One update, of the gradient `given` and with the extra arguments `args`."""
    tx = make(inner, delay, **options)
    return tx.update(given, tx.init(PARAMS), params, **(args or {}))


delayed = functools.partial(updated, dj.delayed)
delivered = functools.partial(updated, dj.delivered)
delivering = functools.partial(delivered, 1, keep_params=True)


def delayed_as(staleness, delay=1):
    return delayed(delay, args={"staleness": staleness})


def late(step):
    return step


def traced(bound):
    return jax.jit(lambda bound: delayed(1, max_delay=bound))(bound)


MUST_BE_GIVEN = "`max_delay` must be given where `delay` is no Python int, got "
AGE = "`staleness` handed to `delayed` must be .* got "
DELAYS = [
    (lambda: delayed(1.0), MUST_BE_GIVEN + r"1\.0"),
    (lambda: delayed(late), MUST_BE_GIVEN + "<function late"),
    (lambda: delayed(A_LEAF | {"s": late}), MUST_BE_GIVEN + "<function late"),
    (
        lambda: delayed({"w": 1}, max_delay=3),
        r"`delay` must be one value or a prefix .* got \{'w': .*\}: .*'b', 's', 'w'",
    ),
    (
        lambda: delayed(1, max_delay={"w": 1}),
        r"`max_delay` must be one value or a prefix .* got .*: .*'b'",
    ),
    (
        lambda: delayed({"w": 1, "b": {"x": 1}, "q": 1, "s": 1}),
        r"got \{.*'q': 1.*\}: .*expected keys: .*'q'",
    ),
    (  # a value may cover several leaves
        lambda: dj.delayed(optax.sgd(1.0), {"block": 1, "haed": 0}).init(
            {"block": PARAMS, "head": PARAMS["w"]}
        ),
        r"got \{'block': 1, 'haed': 0\}: .*'haed'.*'head'",
    ),
    (lambda: delayed(1, max_delay=A_LEAF | {"s": -1}), "`max_delay` .* got -1"),
    (
        lambda: delivered(A_LEAF),
        r"`delay` must be one for all leaves, got \{'w': 2, ",
    ),
    (
        lambda: dj.delays.uniform(jax.random.key(0), 0, 2**31 - 1),
        "`high` .* 2147483647",
    ),
    (lambda: dj.delays.from_trace([0, 2**40]), "`staleness` .*integer"),
]
# clipped to the largest delay, several rows of a grid would be the same run
BEYOND = [
    (8, 4),
    (np.int32(8), 4),
    (jnp.float32(8.5), 4),
    ({"w": 1, "b": 8}, 4),
    (8, {"w": 9, "b": 4}),
    ({"w": 1, "b": 8}, {"w": 1, "b": 4}),
]
UPDATES = [
    (lambda: delayed(1, FEWER), "`updates` must have the structure of the par.*'s'"),
    (
        lambda: delivered(1, FEWER, params=None),
        "must have the structure of the history's items",
    ),
    (
        lambda: delayed(1, OTHER_SHAPE),
        r"like the history's items: \['s'\] is .*\[2\], and its slots hold .*\[\]",
    ),
    (
        lambda: delivered(1, OTHER_SHAPE),
        r"`tree` must be like the history's items: .*'s'.* is float32\[2\], and",
    ),
    (
        lambda: delayed_as(A_LEAF),
        "`delay` must be a tree where `staleness` .*, got 1: give each leaf its delay",
    ),
    (
        lambda: delayed_as({"w": 1}, A_LEAF),
        "`staleness` must be one value or a prefix .* got .*: ",
    ),
    (lambda: delayed_as(-1), AGE + "-1"),
    (lambda: delayed_as(1.0), AGE + r"1\.0"),
    (lambda: delayed_as(True), AGE + "True"),
    (lambda: delayed_as(np.array([1, 2])), AGE + r"array\(\[1, 2\]\)"),
    (lambda: delayed_as(A_LEAF | {"s": 1.5}, A_LEAF), AGE + r"1\.5"),
    (
        lambda: delivered(1, args={"staleness": -1}),
        "`staleness` handed to `delivered` must be .* got -1",
    ),
    (
        lambda: delayed(A_LEAF, inner=dj.delayed(SGD, 2)),
        "`delay` must be a tree where `staleness` .*, got 2: .* other producer",
    ),
    # a mean is no whole number
    (
        lambda: delivered(2, inner=dj.delayed(SGD, 1)),
        "`staleness` handed to `delayed` must be a",
    ),
    (
        lambda: delivering(inner=dj.closed_loop_momentum(0.1, 0.5)),
        "`staleness` handed to `closed_loop_momentum` must be a",
    ),
    (
        lambda: delayed(1, args={"value": jnp.ones(3)}),
        r"`value` must be a scalar, the loss, got \(3,\)",
    ),
    (
        lambda: delivered(1, args={"value": jnp.ones(3)}),
        r"`value` must be a scalar, the loss, got \(3,\)",
    ),
]


def cut(**options):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return dj.ring.sharded("data", mesh=mesh, **options)


NARROW = dj.ring.cast(jnp.bfloat16)
CUT = dj.ring.cast(jnp.float32, storage=cut())
ANOTHER_DEPTH = r"`max_delay` is .*resize_history\(state"
ANOTHER_DTYPE = r"`history` keeps .* resize_history\(state"
NO_NEW = r"`like` must be a new state.*"


def of_depth(depth, history=None, make=dj.delayed, **options):
    options |= {} if history is None else {"history": history}
    return make(SGD, min(1, *jax.tree.leaves(depth), 1), max_delay=depth, **options)


def update(first, tx):
    """An update of a transformation with a state, or with that of another one."""
    state = first.init(PARAMS) if hasattr(first, "init") else first
    return tx.update(PARAMS, state, PARAMS)


def stripped(tx):
    return dj.strip_history(tx.init(PARAMS))


def stepped(tx):
    return update(tx, tx)[1]


def resized(params, like, inner=None, depths=(2, 4), make=dj.delayed, **options):
    old, new = (make(inner or SGD, depth, **options) for depth in depths)
    return dj.resize_history(old.init(params), new.init(like))


STATES = [
    (lambda: update(of_depth(8), of_depth(4)), ANOTHER_DEPTH),
    (lambda: update(of_depth(0), of_depth(3)), ANOTHER_DEPTH),
    (lambda: update(of_depth(3), of_depth(0)), ANOTHER_DEPTH),
    (lambda: update(of_depth(A_LEAF), of_depth(A_LEAF | {"s": 2})), ANOTHER_DEPTH),
    (lambda: update(of_depth(8, NARROW), of_depth(4, NARROW)), ANOTHER_DEPTH),
    (lambda: update(of_depth(0, NARROW), of_depth(3, NARROW)), ANOTHER_DEPTH),
    (lambda: update(of_depth(4), of_depth(8)), "is 8, but .* has depth 4:"),
    (lambda: update(of_depth(4, CUT), of_depth(8, CUT)), "is 8, but .* has depth 4:"),
    (
        lambda: update(of_depth(4, make=dj.delivered), of_depth(2, make=dj.delivered)),
        "`max_delay` is 2, but the history in the state has depth 4: change it",
    ),
    (lambda: update(stripped(of_depth(4)), of_depth(4)), "is 4, but .* has depth 0:"),
    (lambda: update(of_depth(2), of_depth(2, NARROW)), ANOTHER_DTYPE),
    (lambda: update(of_depth(2, NARROW), of_depth(2)), ANOTHER_DTYPE),
    (
        lambda: update(of_depth(2), of_depth(2, keep_params=True)),
        "`keep_params` is True, but the state has False: make the state with `init`",
    ),
    (
        lambda: update(of_depth(2, keep_params=True), of_depth(2)),
        "`keep_params` is False, but the state has True: make the state with `init`",
    ),
    # the arguments in the wrong order
    (
        lambda: dj.resize_history(of_depth(4).init(PARAMS), stepped(of_depth(2))),
        NO_NEW + "1 items pushed",
    ),
    (
        lambda: dj.resize_history(stepped(of_depth(2)), stripped(of_depth(4))),
        NO_NEW + "no slots",
    ),
    (
        lambda: dj.resize_history(
            of_depth(2).init(PARAMS), dj.delayed(optax.adam(0.1), 4).init(PARAMS)
        ),
        r"the structure of `state`, got \.inner_state\[0\]\.count in place of nothing",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(4)),
        r"alone: .*\[5, 4\], and was .*\[3, 3\]",
    ),
    # only the depth may differ, and no axis of the parameters
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(5), depths=(4, 4)),
        r"alone: the root is float32\[5, 5\], and was float32\[5, 3\]",
    ),
    (
        lambda: resized(jnp.zeros(5), jnp.zeros(3), depths=(2, 2), keep_params=True),
        r"alone: .*\[3, 3\], and was .*\[3, 5\]",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(1), depths=(4, 4), inner=optax.adam(1)),
        r"alone: the root is float32\[1\], and was float32\[3\]",
    ),
    (
        lambda: resized(
            {"w": jnp.zeros(3), "b": jnp.zeros(2)},
            {"w": jnp.zeros(3), "b": jnp.zeros(7)},
            depths=({"w": 2, "b": 4}, {"w": 6, "b": 4}),  # 3 -> 7 is the depth of w
        ),
        r"alone: \['b'\] is float32\[5, 7\], and was float32\[5, 2\]",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(5), depths=(4, 4), make=dj.delivered),
        r"alone: .*\[5, 5\], and was .*\[5, 3\]",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(3, jnp.complex64)),
        r"alone: .*complex64\[5, 3\], and was float32",
    ),
    (
        lambda: dj.resize_history(
            dj.delivered(SGD, 4).init(PARAMS), dj.delivered(SGD, 4).init(FEWER)
        ),
        "`like` must have the structure",
    ),
    (
        lambda: dj.staleness(optax.chain(of_depth(1), of_depth(1)).init(PARAMS)),
        r"`opt_state` must hold one staleness, got 2: pass one part of the state",
    ),
]

RING = dj.ring.init({"w": jnp.zeros(2)}, 3)
NARROW_RING = dj.ring.init(jnp.zeros(2, jnp.bfloat16), 3)
EXPLICIT = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
OTHER_AXIS = jax.make_mesh((1,), ("other",), axis_types=(AxisType.Auto,))
RINGS = [
    (
        lambda: dj.ring.push(RING, {"w": jnp.zeros(3)}),
        r"`tree` must be like .*\['w'\] is float32\[3\], .* hold float32\[2\]",
    ),
    (
        lambda: dj.ring.push(NARROW_RING, jnp.ones(2, jnp.complex64)),
        r"`tree` must be like .* the root is complex64\[2\], .* bfloat16",
    ),
    (lambda: cut(num_workers=2), "Either `mesh`"),
    (lambda: dj.ring.sharded("data", mesh=OTHER_AXIS), r"have axes \('data',\)"),
    (
        lambda: dj.ring.sharded("data", mesh=EXPLICIT).init(PARAMS, 2),
        "can only refer to Auto axes of the mesh",
    ),
    (lambda: cut().init(PARAMS, A_LEAF), "`capacity` must be one value"),
    (
        lambda: cut().read(cut().init(PARAMS, 2), A_LEAF, PARAMS),
        "`age` must be one value",
    ),
    (
        lambda: cut().push(cut().init(PARAMS, 2), {**PARAMS, "s": jnp.zeros(33000)}),
        "must be like the history's items",
    ),
]


@pytest.mark.parametrize(("call", "message"), [*DELAYS, *UPDATES, *STATES, *RINGS])
def test_a_value_that_cannot_be_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("make", [dj.delayed, dj.delivered])
def test_a_known_delay_beyond_the_largest_is_refused(make):
    for delay, bound in BEYOND[: 3 if make is dj.delivered else None]:
        message = "`delay` must be at most `max_delay` = 4, got 8"
        with pytest.raises(ValueError, match=message):
            make(SGD, delay, max_delay=bound)


NEEDS_FLOATS = r"must be floating-point gradients, got int32 at \['s'\]: .*optax.mask"
NEEDS_PARAMS = r"\(keep_params=True\)` needs .*`params`.*update\(grads, state, p"
# a gradient of age 2 was not taken at the current parameters
NEEDS_ITS_OWN = "`stale_params`.*keep_params=True as well"
NO_REAL = r"`cast` stores real floating-point .*{} at \['n'\]"
KINDS = [
    (lambda: traced(3), "`max_delay` must be a static integer"),
    (lambda: delayed(1, INTEGER), NEEDS_FLOATS),
    (lambda: delivered(1, INTEGER), NEEDS_FLOATS),
    (lambda: delivering(params=None), "`delivered" + NEEDS_PARAMS),
    (lambda: delivering(args={"staleness": 2}), NEEDS_ITS_OWN),
    (
        lambda: delivered(1, args={"staleness": A_LEAF}),
        "`delivered` needs one `staleness` for all leaves, got .* one delay",
    ),
    *(
        (lambda n=n: NARROW.init({"n": n}, 3), NO_REAL.format(n.dtype))
        for n in (jnp.int32(1), jnp.complex64(1))
    ),
    (
        lambda: NARROW.push(NARROW.init({"n": 0.0}, 3), {"n": jnp.complex64(1)}),
        NO_REAL.format("complex64"),
    ),
]


@pytest.mark.parametrize(("call", "message"), KINDS)
def test_what_is_of_another_kind_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()
