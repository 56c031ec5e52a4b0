"""Arguments of histories that cannot be: each is named, with its value or a remedy.

What is wrong in every call of its kind (no number, no function) is in `fuzz_test`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj

SGD = optax.sgd(0.1)
PARAMS = {
    "layer": {"b": jnp.ones(2, jnp.bfloat16), "w": jnp.ones(3)},
    "s": jnp.ones(()),
}
AT_RANDOM = dj.delays.geometric(jax.random.key(0), 4.0)


def updated(tx, given=PARAMS, params=PARAMS, **told):
    """One step, of a gradient and what is told of it."""
    return tx.update(given, tx.init(PARAMS), params, **told)


def delayed(delay, given=PARAMS, params=PARAMS, told=(), **options):
    return updated(dj.delayed(SGD, delay, **options), given, params, **dict(told))


def delivered(delay, given=PARAMS, params=PARAMS, told=(), inner=SGD, **options):
    tx = dj.delivered(inner, delay, keep_params=True, **options)
    return updated(tx, given, params, **dict(told))


def late(step):
    return step


# (call, error, message)
DELAYS = [
    (lambda: delayed(1.0), ValueError, r"`max_delay` must be given .* got 1\.0"),
    (lambda: delayed(late), ValueError, "`max_delay` must be given .*<function late"),
    (
        lambda: delayed({"layer": 1, "s": late}),
        ValueError,
        "`max_delay` must be given .*<function late",
    ),
    (
        lambda: delayed({"layer": 1}, max_delay=3),
        ValueError,
        r"`delay` must be one value or a prefix .* got \{'layer'",
    ),
    (
        lambda: jax.jit(lambda bound: delayed(1, max_delay=bound))(3),
        TypeError,
        "`max_delay` must be a static integer",
    ),
    (
        lambda: delayed(1, max_delay={"layer": 1, "s": -1}),
        ValueError,
        "`max_delay` .* got -1",
    ),
    (
        lambda: delayed(1, max_delay={"layer": 1}),
        ValueError,
        r"`max_delay` must be one value or a prefix .* got \{'layer': 1\}",
    ),
    # it would run with the largest: a grid's rows would be equal, by other names
    *(
        (
            lambda delay=delay, bound=bound: dj.delayed(SGD, delay, max_delay=bound),
            ValueError,
            "`delay` must be at most `max_delay` = 4, got 8",
        )
        for delay, bound in (
            (8, 4),
            (np.int32(8), 4),
            (jnp.float32(8.5), 4),
            ({"w": 1, "b": 8}, 4),
            (8, {"w": 9, "b": 4}),
            ({"w": 1, "b": 8}, {"w": 1, "b": 4}),
        )
    ),
    (
        lambda: dj.delivered(SGD, 4.5, max_delay=4),
        ValueError,
        r"`delay` must be at most `max_delay` = 4, got 4\.5",
    ),
    (
        lambda: delivered({"layer": 1, "s": 2}),
        ValueError,
        r"`delay` must be one delay for all leaves, got \{'layer': 1, .*`delayed`",
    ),
    (
        lambda: dj.delays.uniform(jax.random.key(0), 0, 2**31 - 1),
        ValueError,
        "`high` must be .* got 2147483647",
    ),
    (lambda: dj.delays.from_trace([0, 2**40]), ValueError, "`staleness` .*integer"),
    (
        lambda: dj.delays.per_worker([1])(0),
        NameError,
        "no axis 'workers' here: take the step in workers.simulate",
    ),
]

OTHER_SHAPE, NO_FLOAT = ({**PARAMS, "s": bad} for bad in (jnp.ones(2), jnp.int32(1)))
FEWER = {"layer": PARAMS["layer"]}
GRADIENTS = [
    (
        lambda: delayed(1, NO_FLOAT),
        TypeError,
        r"`delayed` needs floating-point gradients, got int32 at \['s'\]: .*optax.mask",
    ),
    (
        lambda: delivered(1, NO_FLOAT),
        TypeError,
        r"`delivered` needs floating-point gradients, got int32 at \['s'\]",
    ),
    (
        lambda: delayed(1, FEWER),
        ValueError,
        "`updates` must have the structure of the parameters, .*'s'",
    ),
    (
        lambda: delivered(1, FEWER, params=None, told={"stale_params": PARAMS}),
        ValueError,
        "must have the structure of the history's items",
    ),
    (
        lambda: delayed(1, OTHER_SHAPE),
        ValueError,
        r"like the ring's items: \['s'\] is .*\[2\], and its slots hold .*\[\]",
    ),
    (
        lambda: delivered(1, OTHER_SHAPE),
        ValueError,
        r"`tree` must be like the calendar's items: .*'s'.* is float32\[2\], and",
    ),
]

ONE, TREE = {"staleness": 2}, {"staleness": {"layer": 1, "s": 2}}
TOLD = [
    (
        lambda: delayed(1, params=None, keep_params=True),
        TypeError,
        r"`delayed\(keep_params=True\)` needs .*`params`.*update\(grads, state, p",
    ),
    (
        lambda: delivered(1, params=None),
        TypeError,
        r"`delivered\(keep_params=True\)` needs .*`params`.*update\(grads, state",
    ),
    # today's parameters are not those that a gradient of age 2 was taken at
    (
        lambda: delayed(1, told=ONE, keep_params=True),
        TypeError,
        "`stale_params`.*keep_params=True as well",
    ),
    (
        lambda: delivered(1, told=ONE),
        TypeError,
        "`stale_params`.*keep_params=True as well",
    ),
    (
        lambda: delayed(1, told=TREE),
        ValueError,
        "`tree` must have the structure of the history's items.*'layer'",
    ),
    (
        lambda: delayed({"layer": 1, "s": 2}, told={"staleness": {"layer": 1}}),
        ValueError,
        r"`staleness` must be one value or a prefix .* got \{'layer'",
    ),
    (
        lambda: delivered(1, told={"stale_params": PARAMS} | TREE),
        TypeError,
        "`staleness` handed to `delivered` is a tree, .*one delay for all leaves",
    ),
    *(
        (
            lambda bad=bad: delayed(1, told={"staleness": bad}),
            ValueError,
            rf"`staleness` handed to `delayed` must be .* got {said}",
        )
        for bad, said in (
            (-1, "-1"),
            (1.0, r"1\.0"),
            (True, "True"),
            (np.array([1, 2]), r"array\(\[1, 2\]\)"),
            ({"layer": 0, "s": 1.5}, r"1\.5"),
        )
    ),
    (
        lambda: delivered(1, told={"stale_params": PARAMS, "staleness": -1}),
        ValueError,
        "`staleness` handed to `delivered` must be .* got -1",
    ),
    *(
        (
            lambda make=make: make(1, told={"value": jnp.ones(3)}),
            ValueError,
            r"`value` handed to .* must be a scalar, the loss, got shape \(3,\)",
        )
        for make in (delayed, delivered)
    ),
    # a mean is no whole number
    *(
        (
            lambda inner=inner: delivered(2, inner=inner),
            ValueError,
            f"`staleness` handed to `{name}` must be a",
        )
        for name, inner in {
            "delayed": dj.delayed(SGD, 1),
            "closed_loop_momentum": dj.closed_loop_momentum(0.1, 0.5),
        }.items()
    ),
]


def within(state_of, tx):
    """A step of `tx` with the state of another."""
    return tx.update(PARAMS, state_of.init(PARAMS), PARAMS)


def cut(**options):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return dj.ring.sharded("data", mesh=mesh, **options)


def of_depth(depth, history=None, make=dj.delayed):
    delay = min(1, *jax.tree.leaves(depth), 1)
    options = {} if history is None else {"history": history}
    return make(SGD, delay, max_delay=depth, **options)


NARROW = dj.ring.cast(jnp.bfloat16)
STRIPPED = dj.strip_history(of_depth(4).init(PARAMS))
NO_NEW = r"`like` must be a new state.*"
STATES = [
    *(
        (
            lambda was=was, now=now, history=history: within(
                of_depth(was, history), of_depth(now, history)
            ),
            ValueError,
            r"`max_delay` is .*resize_history\(state",
        )
        for history in (None, NARROW)
        for was, now in (
            (8, 4),
            (0, 3),
            (3, 0),
            ({"layer": 2, "s": 1}, {"layer": 1, "s": 2}),
        )
    ),
    *(
        (
            lambda history=history: within(of_depth(4, history), of_depth(8, history)),
            ValueError,
            "`max_delay` is 8, but .* has depth 4:",
        )
        for history in (None, dj.ring.cast(jnp.float32, storage=cut()))
    ),
    (
        lambda: within(of_depth(4, make=dj.delivered), of_depth(2, make=dj.delivered)),
        ValueError,
        "`max_delay` is 2, but the history in the state has depth 4: change it",
    ),
    (
        lambda: of_depth(4).update(PARAMS, STRIPPED, PARAMS),
        ValueError,
        "is 4, but .* has no slots:",
    ),
    *(
        (
            lambda was=was, now=now: within(of_depth(2, was), of_depth(2, now)),
            ValueError,
            r"`history` keeps .* resize_history\(state",
        )
        for was, now in ((None, NARROW), (NARROW, None))
    ),
    (
        lambda: within(of_depth(2), dj.delayed(SGD, 2, keep_params=True)),
        ValueError,
        "`keep_params` is True, but the state was made with False",
    ),
    (
        lambda: dj.resize_history(of_depth(4).init(PARAMS), after_a_step(of_depth(2))),
        ValueError,
        NO_NEW + "1 items pushed",
    ),
    (
        lambda: dj.resize_history(after_a_step(of_depth(2)), STRIPPED),
        ValueError,
        NO_NEW + "no slots",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(3), optax.adam(0.1)),
        ValueError,
        "a state of the same transformation",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(4)),
        ValueError,
        r"alone: .*\[5, 4\], and was .*\[3, 3\]",
    ),
    (
        lambda: resized(jnp.zeros(3), jnp.zeros(3, jnp.complex64)),
        ValueError,
        r"alone: .*complex64\[5, 3\], and was float32",
    ),
    (
        lambda: dj.resize_history(
            dj.delivered(SGD, 4).init(PARAMS), dj.delivered(SGD, 4).init(FEWER)
        ),
        ValueError,
        "`like` must have the structure",
    ),
    (
        lambda: dj.staleness(optax.chain(of_depth(1), dj.delayed(SGD, 1)).init(PARAMS)),
        ValueError,
        "`opt_state` must hold one staleness, got 2: pass the state of one",
    ),
]


def after_a_step(tx):
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS)[1]


def resized(params, like, inner=SGD):
    state = dj.delayed(SGD, 2).init(params)
    return dj.resize_history(state, dj.delayed(inner, 4).init(like))


RING = dj.ring.init({"w": jnp.zeros(2)}, 3)
NO_REAL = r"`cast` stores real floating-point .*{} at \['n'\]"
EXPLICIT = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
OTHER_AXIS = jax.make_mesh((1,), ("other",), axis_types=(AxisType.Auto,))
RINGS = [
    (
        lambda: dj.ring.push(RING, {"w": jnp.zeros(3)}),
        ValueError,
        r"`tree` must be like .*\['w'\] is float32\[3\], .* hold float32\[2\]",
    ),
    (
        lambda: dj.ring.push(
            dj.ring.init(jnp.zeros(2, jnp.bfloat16), 3), jnp.ones(2, jnp.complex64)
        ),
        ValueError,
        r"`tree` must be like .* the root is complex64\[2\], .* bfloat16",
    ),
    (
        lambda: dj.ring.read(RING, 3, {"w": jnp.zeros(2)}),
        ValueError,
        r"`age` .*\[0, 2\].* got 3",
    ),
    *(
        (
            lambda kind=kind: NARROW.init({"n": jnp.zeros(2, kind)}, 3),
            TypeError,
            NO_REAL.format(kind),
        )
        for kind in ("int32", "complex64")
    ),
    (
        lambda: NARROW.push(NARROW.init({"n": jnp.zeros(2)}, 3), {"n": 1j}),
        TypeError,
        NO_REAL.format("complex64"),
    ),
    (lambda: dj.ring.sharded("data"), ValueError, "either `mesh`"),
    (lambda: cut(num_workers=2), ValueError, "either `mesh`"),
    (
        lambda: dj.ring.sharded("data", mesh=OTHER_AXIS),
        ValueError,
        r"must have axes \('data',\)",
    ),
    (lambda: dj.ring.sharded("data", mesh=EXPLICIT), ValueError, "type Auto"),
    (
        lambda: dj.delayed(SGD, {"layer": 2, "s": 1}, history=cut()).init(PARAMS),
        ValueError,
        "`capacity` must be one value",
    ),
    (
        lambda: cut().read(cut().init(PARAMS, 2), {"layer": 0, "s": 1}, PARAMS),
        ValueError,
        "`age` must be one value",
    ),
    (
        lambda: cut().push(
            cut().init(PARAMS, 2), PARAMS | {"s": jnp.zeros((500, 300))}
        ),
        ValueError,
        "must be like the ring's items",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "message"), [*DELAYS, *GRADIENTS, *TOLD, *STATES, *RINGS]
)
def test_what_cannot_be_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
