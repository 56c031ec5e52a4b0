"""Promises of every public transformation, in addition to those of `testing`.

Each row is one test: it checks all promises of the row, ours and those that the tests
of Optax check of its optimizers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax._src.testing import comparing
from tests.averaging.contract_test import TABLE as METHODS
from tests.contract_test import EMPTY, PARAMS, TABLE, stepper, tree
from tests.exchange.contract_test import TABLE as EXCHANGES
from tests.exchange.driving import WORKERS, shared_buffers
from tests.ground.donation_test import INNERS
from tests.public_calls import CALLS
from tests.support.promises import Promises, all_hold

promises = Promises()
# These scale or delay a whole gradient: they do not depend on its leaves or on parts of
# complex numbers. Another row does the same, at other times or with another law.
OTHER_TIMES = [
    *("without a history", "by a schedule", "at random", "skip", "zeros"),
    *("in delayed", "of gradients that are late", "identity"),
]
OTHER_LAWS = ["polynomial", "hinge", "exponential", "capped", "delay_adaptive"]
WHOLE = {
    *(f"delayed, {variant}" for variant in OTHER_TIMES),
    *("delivered, zeros", "delivered, in delayed", "inject_staleness, around delayed"),
    *(f"scale_by_staleness, {law}" for law in (*OTHER_LAWS, "strongly typed")),
}
BY_PART = [name for name in TABLE if name not in WHOLE]


def types(tree):
    return jax.tree.map(jax.typeof, tree)


@promises.of(BY_PART)
def permuting_leaves_changes_nothing(name):
    """Dictionaries are sorted by name, so other names mean another order of leaves."""
    tx, step = stepper(name)

    def leaves(names):
        params, grads = tree(0, names), tree(1, names)
        params, _, updates = step(params, tx.init(params), grads)
        return [
            [x["head"], *(x["layer"][name] for name in names)]
            for x in (params, updates)
        ]

    one, other = leaves(("c", "a", "b")), leaves(("a", "b", "c"))
    jax.tree.map(np.testing.assert_array_equal, one, other)


# their states contain another state; `testing.check` checks them without wrappers
HOLDERS = (
    *("delayed", "delivered", "inject_staleness", "drop_stale", "refusing"),
    *("attack", "kardam", "zeno_plus_plus", "all in one chain"),
)


@promises.of(HOLDERS)
def no_two_leaves_of_a_state_are_one_buffer(name):
    make, extra_args = TABLE[name]
    for wrapper in (optax.MultiSteps, optax.apply_if_finite):
        tx = wrapper(make(2), 2)
        params, grads = jax.tree.map(jnp.copy, (PARAMS, tree(1)))
        state = tx.init(params)
        comparing.check_apart({"params": params, "state": state}, "at first")
        _, state = tx.update(grads, state, params, **extra_args(2, params))
        held = {"params": params, "gradients": grads, "state": state}
        comparing.check_apart(held, "after a step")


# JAX's strict promotion of dtypes


def plain(learning_rate, **options):
    """SGD in place of Optax's optimizers, which do not pass strict promotion."""
    return optax.sgd(learning_rate, momentum=0.5)


def plain_direction(learning_rate, **options):
    return dj.pipelines.sgd_direction(learning_rate, 0.5)


def strict_schedule(value, steps):
    return lambda step: value * (1.0 - step.astype(jnp.float32) / steps)


@promises.of(TABLE)
def dtypes_are_promoted_by_nobody_else(name):
    def two_steps(grads):
        tx, step = stepper(name)
        params, state = PARAMS, tx.init(PARAMS)
        for _ in range(2):
            params, state, _ = step(params, state, grads)
        return params

    with jax.numpy_dtype_promotion("strict"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(optax, "adam", plain)
        patch.setattr(optax, "cosine_decay_schedule", strict_schedule)
        patch.setattr(dj.pipelines, "adam_direction", plain_direction)
        jax.eval_shape(two_steps, tree(1))


def strict_replay(rule):
    workers = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    protocol = dj.cluster.protocols.k_async(2)
    trace = dj.cluster.simulate(workers, protocol, 2, seed=0)

    def grad_fn(params, batch, key):
        loss = jnp.square(params["head"]).sum() * batch
        return loss, jax.tree.map(jnp.ones_like, params)

    training = dj.replay(trace, grad_fn, plain(0.1), each=rule, chunk=1)
    state = training.init(PARAMS, jax.random.key(0))
    return training.run(state, jnp.zeros((2, 2)))


def strict_workers(tx):
    def step(state, batch):
        params, opt_state = state
        grads = jax.tree.map(lambda p: p * batch.astype(p.dtype), params)
        updates, opt_state = tx.update(
            dj.workers.vary(grads), opt_state, dj.workers.vary(params)
        )
        return (optax.apply_updates(params, updates), opt_state), {}

    simulated = dj.workers.simulate(step, 4)
    state = simulated.init((PARAMS, tx.init(PARAMS)), jnp.ones(4))
    return jax.eval_shape(simulated.step, state, jnp.ones(4))


STRICT = {
    "replay": lambda: strict_replay(None),
    "replay, refusing": lambda: strict_replay(dj.drop_stale(optax.identity(), 1)),
    "mean": lambda: strict_workers(dj.exchange.mean(plain(0.1))),
    "mean, weighed": lambda: strict_workers(
        dj.delayed(dj.exchange.mean(plain(0.1), weight=dj.modulation.inverse), 2)
    ),
    "overlapped_mean": lambda: strict_workers(dj.exchange.overlapped_mean(plain(0.1))),
}


@pytest.mark.parametrize("name", STRICT)
def test_what_stands_around_promotes_none_either(name):
    with jax.numpy_dtype_promotion("strict"):
        STRICT[name]()


# complex parameters

COMPLEX = {
    "layer": {"a": jnp.array([0.3 + 0.4j, -1.0 + 0.2j]), "b": jnp.array([0.5j])},
    "head": jnp.array([[1.0 - 1.0j], [0.2 + 0.1j], [-0.4 + 0.3j]]),
}


def rotated(angle, params=COMPLEX):
    turn = jnp.exp(1j * angle).astype(jnp.complex64)
    return jax.tree.map(lambda x: x * turn, params)


def run_rotated(name, angle):
    """The parameters after five steps with the rotated start, rotated back."""
    tx, step = stepper(name)

    def turned(carry, t):
        params, state = carry
        grads = jax.tree.map(lambda x: (0.2 * x + 0.1 * t) * jnp.exp(1j * t), COMPLEX)
        params, state, _ = step(params, state, rotated(angle, grads))
        return (params, state), None

    start = rotated(angle), tx.init(COMPLEX)
    (params, _), _ = jax.lax.scan(turned, start, jnp.arange(5.0))
    return rotated(-angle, params)


@promises.of(BY_PART)
def where_the_parameters_are_turned_the_updates_turn(name):
    """By e^(i phi), like the gradients: no rule may prefer the real axis."""
    if name == "delayed, history in bfloat16":
        with pytest.raises(TypeError, match="`cast` stores real"):
            run_rotated(name, jnp.float32(0.0))
        return
    run = jax.jit(jax.vmap(functools.partial(run_rotated, name)))

    def close(leaf):
        np.testing.assert_allclose(leaf[1], leaf[0], rtol=2e-4, atol=2e-5)

    jax.tree.map(close, run(jnp.float32([0.0, 1.1])))


# promises that Optax tests for its optimizers


def shapes(head, *layer):
    """3 x 2 matrices, one for each dtype; the name "head" is that of a row's delays."""
    matrices = {dtype: jax.ShapeDtypeStruct((3, 2), dtype) for dtype in layer}
    return {"head": jax.ShapeDtypeStruct((3, 2), head), "layer": matrices}


SMALL_SHAPES = shapes("float32", "float32")
REAL_SHAPES = shapes("float64", "float16", "bfloat16", "float32")
COMPLEX_SHAPES = shapes("complex128", "complex64", "float32")


def momentum(rate):
    return optax.sgd(rate, momentum=0.5)


# name: inner -> transformation; all of them need the axis of the workers
OF_INNER = EXCHANGES | {
    name: lambda inner, method=method: method(inner, 2)
    for name, method in METHODS.items()
}
# name: (transformation, params -> extra arguments)
MEMBERS = {
    name: (make(momentum(0.1)), lambda params: {}) for name, make in OF_INNER.items()
} | {
    name: (make(2), lambda params, extras=extras: extras(2, params))
    for name, (make, extras) in TABLE.items()
}
FIRST = tuple(name for name in MEMBERS if "," not in name)
AROUND = [(name, optax.MultiSteps) for name in FIRST] + [
    (name, optax.apply_if_finite) for name in ("delayed", "kardam", "easgd")
]
WRAPPED = {
    f"{name}, in {wrapper.__name__}": (wrapper(MEMBERS[name][0], 2), MEMBERS[name][1])
    for name, wrapper in AROUND
}


def finite_alone(inner):
    return optax.apply_if_finite(inner, 3)


def kinds(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def traced(step, params):
    """The jaxpr of a step on all workers."""
    everywhere = jax.vmap(step, axis_name="workers", axis_size=WORKERS, in_axes=None)
    return jax.make_jaxpr(everywhere)(params)


def two_steps(tx, extras):
    """`init` and two steps in a scan, which fails if a type changes."""

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(params, state, params, **extras(params))
        assert kinds(updates) == kinds(params)
        return (optax.apply_updates(params, updates), state), None

    return lambda params: jax.lax.scan(step, (params, tx.init(params)), length=2)


@promises.of(FIRST)
def init_needs_shapes_alone(name):
    """With these dtypes, too: `testing.check` checks the usual ones, of all members."""
    tx, _ = MEMBERS[name]
    with jax.enable_x64(True):
        assert kinds(tx.init(REAL_SHAPES)) == kinds(
            jax.eval_shape(tx.init, REAL_SHAPES)
        )


@promises.of(MEMBERS | WRAPPED)
def a_step_keeps_every_type(name):
    tx, extras = (MEMBERS | WRAPPED)[name]
    with jax.enable_x64(True):
        traced(two_steps(tx, extras), REAL_SHAPES)


# a2sgd takes means of signs, and bfloat16 has no imaginary part: both raise errors
@promises.of([n for n in MEMBERS if n not in ("a2sgd", "delayed, history in bfloat16")])
def a_step_keeps_complex_types(name):
    """A number that is no parameter, such as a weight or a spread, stays real."""
    tx, extras = MEMBERS[name]
    with jax.enable_x64(True):
        traced(two_steps(tx, extras), COMPLEX_SHAPES)
        state = jax.tree.leaves(jax.eval_shape(tx.init, COMPLEX_SHAPES))
    assert not any(jnp.iscomplexobj(leaf) for leaf in state if leaf.ndim == 0)


@promises.of(MEMBERS)
def an_empty_tree_stays_empty(name):
    tx, extras = MEMBERS[name]

    def step(params):
        before = tx.init(params)
        updates, after = tx.update(params, before, params, **extras(params))
        assert updates == optax.apply_updates(params, updates) == EMPTY
        assert types(after) == types(before)
        return ()

    traced(step, EMPTY)


@promises.of(OF_INNER)
def a_state_holds_no_buffer_twice_and_none_of_the_parameters(name):
    """Both are donated, and each buffer once; `dog` keeps the first parameters."""
    make, adam = OF_INNER[name], optax.adam(0.1)
    wrappers = functools.partial(optax.MultiSteps, every_k_schedule=2), finite_alone
    inside = INNERS["dog"], *(wrapper(adam) for wrapper in wrappers)
    outside = (wrapper(make(adam)) for wrapper in wrappers)
    params = jax.tree.map(jnp.copy, PARAMS)
    for tx in (*map(make, inside), *outside):
        assert shared_buffers(params, tx.init(params)) == []


@promises.of(OF_INNER)
def the_rate_of_what_is_inside_may_be_injected(name):
    def make(rate):
        return OF_INNER[name](momentum(rate))

    tx = optax.inject_hyperparams(make)(rate=0.1)
    traced(two_steps(tx, lambda params: {}), SMALL_SHAPES)


# `testing.check` and `check_averaging` check the other members
@promises.of(["late_between_groups", "late_reduce"])
def unknown_extra_arguments_change_no_operation(name):
    tx, _ = MEMBERS[name]

    def with_more(**more):
        def update(params):
            return tx.update(params, tx.init(params), params, **more)

        return str(traced(update, SMALL_SHAPES))

    assert with_more(weather="fair") == with_more()


# Optax finds parameters by a leaf in their place, which does not fit a tree of delays
@promises.of([n for n in MEMBERS if not n.endswith(("leaf by leaf", "layer by layer"))])
def all_that_is_of_a_parameter_is_found_as_such(name):
    """`optax.tree.map_params` finds it; the rest is scalars or has an axis of slots.

    A fragment in flight is stored in boxes, [rows, columns].
    """
    tx, _ = MEMBERS[name]
    state = tx.init(jax.tree.map(lambda p: jnp.ones(p.shape, p.dtype), SMALL_SHAPES))
    rest = []
    like_parameters = optax.tree.map_params(
        tx,
        lambda leaf: leaf,
        state,
        transform_non_params=lambda part: rest.extend(jax.tree.leaves(part)),
    )
    assert len(jax.tree.leaves((like_parameters, rest))) == len(jax.tree.leaves(state))
    most = 2 if name in ("outer, in fragments", "eager_outer") else 1
    assert max(map(jnp.ndim, rest), default=0) <= most


# derivatives through a history


def late_by_hand(rate, start, strength):
    """Six steps of SGD with a delay of two, from a list of past gradients."""
    x, gradients, points = start, [], []
    for t in range(6):
        gradients.append(jnp.sin(3 * x) + x)
        points.append(x)
        g = gradients[max(t - 2, 0)]
        g = g + strength * g * g * (x - points[max(t - 2, 0)])
        x = x - (rate * g.astype(jnp.float32)).astype(x.dtype)
    return jnp.square(x.astype(jnp.float32)).sum()


def late_by_history(rate, start, strength, *, history):
    rule = dj.compensate_delay(strength) if strength else optax.identity()
    tx = dj.delayed(rule, 2, keep_params=bool(strength), history=history)

    def step(carry, _):
        x, state = carry
        g, state = tx.update(jnp.sin(3 * x) + x, state, x)
        return (x - (rate * g.astype(jnp.float32)).astype(x.dtype), state), None

    (x, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=6)
    return jnp.square(x.astype(jnp.float32)).sum()


FLOATING = {
    "float32": (jnp.float32, None),
    "float32, in float32": (jnp.float32, dj.ring.cast(jnp.float32)),
    "bfloat16, in float32": (jnp.bfloat16, dj.ring.cast(jnp.float32)),
    "float16, in float32": (jnp.float16, dj.ring.cast(jnp.float32)),
}
BITS = {
    "bfloat16": (jnp.bfloat16, None),
    "float16": (jnp.float16, None),
    "float32, in bfloat16": (jnp.float32, dj.ring.cast(jnp.bfloat16)),
    "float32, on the host": (jnp.float32, dj.ring.on_host()),
}


@pytest.mark.parametrize("strength", [0.0, 0.25])
@pytest.mark.parametrize("name", FLOATING)
def test_derivatives_go_through_a_history_as_through_a_list(name, strength):
    dtype, history = FLOATING[name]
    start = jnp.array([1.0, -0.5], dtype)
    ours = functools.partial(late_by_history, strength=strength, history=history)
    theirs = functools.partial(late_by_hand, strength=strength)

    @jax.jit
    def derivatives(rate):
        both = [jax.grad(f, (0, 1))(rate, start) for f in (ours, theirs)]
        return both, jax.jvp(lambda rate: ours(rate, start), (rate,), (1.0,))[1]

    both, forward = derivatives(jnp.float32(0.1))
    rtol = {jnp.float32: 1e-5, jnp.bfloat16: 0.05, jnp.float16: 0.01}[dtype]
    assert jnp.abs(both[1][0]) > 0.1
    close = functools.partial(np.testing.assert_allclose, rtol=rtol)
    jax.tree.map(lambda a, b: close(a.astype(float), b.astype(float)), *both)
    np.testing.assert_allclose(forward, both[1][0], rtol=rtol)


@pytest.mark.parametrize("strength", [0.0, 0.25])
@pytest.mark.parametrize("name", BITS)
def test_a_history_without_a_derivative_says_so(name, strength):
    """Its slots are integers, or on the host: the derivative would be zero."""
    dtype, history = BITS[name]
    start = jnp.array([1.0, -0.5], dtype)

    def loss(rate):
        return late_by_history(rate, start, strength, history=history)

    assert np.isfinite(loss(0.1))
    message = r"has no derivative: use float32 parameters .*ring.cast\(jnp.float32\)"
    with pytest.raises(TypeError, match=message):
        jax.grad(loss)(0.1)
    with pytest.raises(TypeError, match=message):
        jax.jvp(loss, (0.1,), (1.0,))


# an invalid staleness


@functools.cache
def sum_of_updates(name):
    """A function from a staleness to the sum of three updates with this staleness."""
    make, extra_args = TABLE[name]
    all_grads = tree(1, shape=(3,))  # cached, so made outside of `jit`

    @jax.jit
    def run(staleness):
        tx = make(2)

        def step(carry, grads):
            state, total = carry
            given = extra_args(2, PARAMS) | {"staleness": staleness}
            updates, state = tx.update(grads, state, PARAMS, **given)
            return (state, optax.tree.add(total, updates)), None

        start = tx.init(PARAMS), optax.tree.zeros_like(PARAMS)
        return jax.lax.scan(step, start, all_grads)[0][1]

    return run


READERS = [name for name, (_, f) in TABLE.items() if "staleness" in f(2, PARAMS)]


def assert_no_number(tree):
    leaves = map(np.float64, jax.tree.leaves(tree))
    assert all(np.isnan(leaf).all() for leaf in leaves)


@promises.of(READERS)
def a_staleness_that_is_negative_or_no_number_gives_no_number(name):
    for staleness in (np.int32(-1), np.int32(-3), np.float32(np.nan)):
        try:
            updates = sum_of_updates(name)(staleness)
        except ValueError as error:  # a rule that takes no mean
            assert "must be a non-negative integer" in str(error)
            assert isinstance(staleness, np.floating)
        else:
            assert_no_number(updates)


def test_a_negative_staleness_in_the_state_gives_no_number():
    tx = dj.inject_staleness(dj.scale_by_staleness(dj.modulation.polynomial(1.0)))
    state = tx.init(PARAMS)._replace(staleness=jnp.int32(-3))
    assert_no_number(jax.jit(tx.update)(tree(1), state)[0])


# float32 gradients of bfloat16 parameters, as gradient accumulation makes them


@pytest.mark.parametrize("history", [None, dj.ring.cast(jnp.float32)])
def test_float32_gradients_of_bfloat16_parameters_are_kept_as_the_history_is(history):
    tx = dj.delayed(optax.scale(-1.0), 2, history=history)
    params = jnp.ones(2, jnp.bfloat16)
    state, update = tx.init(params), jax.jit(tx.update)
    for grad in (1.001, 2.001, 3.001):
        updates, state = update(jnp.full(2, grad, jnp.float32), state, params)
    kept = jnp.float32(1.001).astype(jnp.bfloat16 if history is None else jnp.float32)
    assert updates.dtype == jnp.float32
    np.testing.assert_array_equal(updates, -kept.astype(jnp.float32) * jnp.ones(2))


# donation of states that would have one buffer twice

# tests above check exchanges and averaging methods
AROUND_ALL = {
    "delayed": lambda tx: dj.delayed(tx, 2),
    "delivered": lambda tx: dj.delivered(tx, 2),
    "inject_staleness": dj.inject_staleness,
    "refusing": lambda tx: dj.refusing(tx, lambda g, m, p, **_: (True, g, m)),
}


@pytest.mark.parametrize("wrapper", AROUND_ALL)
def test_an_optimizer_that_keeps_the_first_parameters_may_be_donated(wrapper):
    all_hold({n: functools.partial(donated, wrapper, n) for n in ("dog", "mechanic")})


def donated(wrapper, inner):
    """Two steps with donation; a buffer that is donated twice is an error."""
    tx = AROUND_ALL[wrapper](INNERS[inner])
    params = jax.tree.map(jnp.copy, {"w": jnp.ones((4, 2)), "b": jnp.zeros(3)})
    state = tx.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(2):
        params, state = step(params, state)


# JAX arrays in place of numbers, where a function is called in `jit` or `scan`


def takes(call, arguments):
    try:
        call.use(call.function(**arguments))
    except (TypeError, ValueError, jax.errors.JAXTypeError):
        return False
    return True


def test_an_array_that_is_known_is_a_number_inside_of_jit_too():
    """As in `optax.sgd(rate)`: closed over, from a grid or from a checkpoint."""
    all_hold({label: functools.partial(check_known, CALLS[label]) for label in CALLS})


def check_known(call):
    good = {name: value for name, (value, _) in call.arguments.items()}

    def inside(arguments):
        answers = []
        jax.eval_shape(lambda: answers.append(takes(call, arguments)))
        return answers[0]

    numbers = [name for name, value in good.items() if type(value) in (int, float)]
    arrays = {name: jnp.asarray(good[name]) for name in numbers}
    if not arrays:
        return
    if not takes(call, good | arrays):
        arrays = {n: x for n, x in arrays.items() if takes(call, good | {n: x})}
    if arrays and not inside(good | arrays):
        assert not inside(good)


@promises.of(["kardam", "dana", "attack", "drop_stale"])
def what_an_update_is_told_may_be_known_inside_of_jit(name):
    tx, _ = stepper(name)
    state = tx.init(PARAMS)
    extra_args = TABLE[name][1](jnp.int32(1), PARAMS)
    grads = tree(1)
    updates, _ = jax.jit(lambda: tx.update(grads, state, PARAMS, **extra_args))()
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2.0**-6),
        updates,
        tx.update(grads, state, PARAMS, **extra_args)[0],
    )


@pytest.mark.parametrize("name", MEMBERS | WRAPPED)
def test_a_member_keeps_all_promises(name):
    promises.require(name)
