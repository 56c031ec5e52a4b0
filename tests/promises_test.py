"""What every public transformation promises, beside the table of `contract_test`."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import delayjax as dj
from delayjax import cluster
from tests.contract_test import PARAMS, TABLE, stepper, tree
from tests.public_calls import CALLS

members = pytest.mark.parametrize("name", TABLE)


# JAX's strict promotion of dtypes


def plain(learning_rate, **options):
    """In place of Optax's own, which are not strict."""
    del options
    return optax.sgd(learning_rate, momentum=0.5)


def plain_direction(learning_rate, **options):
    del options
    return dj.pipelines.sgd_direction(learning_rate, 0.5)


def strict_schedule(value, steps):
    return lambda step: value * (1.0 - step.astype(jnp.float32) / steps)


@members
def test_dtypes_are_promoted_by_nobody_else(name, monkeypatch):
    monkeypatch.setattr(optax, "adam", plain)
    monkeypatch.setattr(optax, "cosine_decay_schedule", strict_schedule)
    monkeypatch.setattr(dj.pipelines, "adam_direction", plain_direction)

    def two_steps(grads):
        tx, step = stepper(name)
        params, state = PARAMS, tx.init(PARAMS)
        for _ in range(2):
            params, state, _ = step(params, state, grads)
        return params

    with jax.numpy_dtype_promotion("strict"):
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
    return simulated.step(state, jnp.ones(4))


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
    """The parameters after five steps, turned back."""
    tx, step = stepper(name)

    def turned(carry, t):
        params, state = carry
        grads = jax.tree.map(lambda x: (0.2 * x + 0.1 * t) * jnp.exp(1j * t), COMPLEX)
        params, state, _ = step(params, state, rotated(angle, grads))
        return (params, state), None

    start = rotated(angle), tx.init(COMPLEX)
    (params, _), _ = jax.lax.scan(turned, start, jnp.arange(5.0))
    return rotated(-angle, params)


@members
def test_where_the_parameters_are_turned_the_updates_turn(name):
    """By e^(i phi), with the gradients: a rule must not prefer the real axis."""
    if name == "delayed, history in bfloat16":
        with pytest.raises(TypeError, match="`cast` stores real"):
            run_rotated(name, jnp.float32(0.0))
        return
    run = jax.jit(jax.vmap(functools.partial(run_rotated, name)))

    def close(leaf):
        np.testing.assert_allclose(leaf[1], leaf[0], rtol=2e-4, atol=2e-5)

    jax.tree.map(close, run(jnp.float32([0.0, 1.1])))


# derivatives through a history


def late_by_hand(rate, start, strength):
    """Six steps of SGD, late by two, from a list of past gradients."""
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
    """Its slots are integers, or lie on the host: the derivative would be zero."""
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


# a staleness that cannot be


@functools.cache
def told(name):
    """staleness -> the sum of three updates, each told this staleness."""
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


TOLD = [name for name, (_, extra) in TABLE.items() if "staleness" in extra(2, PARAMS)]


def assert_no_number(tree):
    leaves = map(np.float64, jax.tree.leaves(tree))
    assert all(np.isnan(leaf).all() for leaf in leaves)


@pytest.mark.parametrize("staleness", [np.int32(-1), np.int32(-3), np.float32(np.nan)])
@pytest.mark.parametrize("name", TOLD)
def test_a_staleness_that_is_negative_or_no_number_gives_no_number(name, staleness):
    try:
        updates = told(name)(staleness)
    except ValueError as error:  # one that takes no mean
        assert "must be a non-negative integer" in str(error)
        assert isinstance(staleness, np.floating)
        return
    assert_no_number(updates)


def test_a_negative_staleness_in_the_state_gives_no_number():
    tx = dj.inject_staleness(dj.scale_by_staleness(dj.modulation.polynomial(1.0)))
    state = tx.init(PARAMS)._replace(staleness=jnp.int32(-3))
    assert_no_number(jax.jit(tx.update)(tree(1), state)[0])


# gradients in float32 of parameters in bfloat16, as gradient accumulation has them


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


# donation of states that have one buffer twice

# tests/ground/donation_test.py has more of them
ALIASING = {
    "dog": optax.contrib.dog(1.0),
    "mechanize": optax.contrib.mechanize(optax.sgd(0.1)),
}
AROUND = {
    "delayed": lambda tx: dj.delayed(tx, 2),
    "delivered": lambda tx: dj.delivered(tx, 2),
    "inject_staleness": dj.inject_staleness,
    "refusing": lambda tx: dj.refusing(tx, lambda g, m, p, **_: (True, g, m)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("inner", ALIASING)
def test_an_optimizer_that_keeps_the_first_parameters_may_be_donated(inner, around):
    tx = AROUND[around](ALIASING[inner])
    params = jax.tree.map(jnp.copy, {"w": jnp.ones((4, 2)), "b": jnp.zeros(3)})
    state = tx.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(2):
        params, state = step(params, state)


# arrays of JAX in place of numbers, where a function is called in `jit` or `scan`


def takes(call, arguments):
    try:
        call.use(call.function(**arguments))
    except (TypeError, ValueError, jax.errors.JAXTypeError):
        return False
    return True


@pytest.mark.parametrize("label", CALLS)
def test_an_array_that_is_known_is_a_number_inside_of_jit_too(label):
    """As `optax.sgd(rate)` takes it: closed over, of a grid or a checkpoint."""
    call = CALLS[label]
    good = {name: value for name, (value, _) in call.arguments.items()}

    def inside(arguments):
        found = []
        jax.eval_shape(lambda: found.append(takes(call, arguments)))
        return found[0]

    numbers = [name for name, value in good.items() if type(value) in (int, float)]
    arrays = {name: jnp.asarray(good[name]) for name in numbers}
    taken = {n: array for n, array in arrays.items() if takes(call, good | {n: array})}
    if taken and inside(good):
        assert inside(good | taken)


@pytest.mark.parametrize("name", ["kardam", "dana", "attack", "drop_stale"])
def test_what_an_update_is_told_may_be_known_inside_of_jit(name):
    tx, _ = stepper(name)
    state = tx.init(PARAMS)
    told = TABLE[name][1](jnp.int32(1), PARAMS)
    grads = tree(1)
    updates, _ = jax.jit(lambda: tx.update(grads, state, PARAMS, **told))()
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2.0**-6),
        updates,
        tx.update(grads, state, PARAMS, **told)[0],
    )


# pickling

SERVICES = {
    "constant": cluster.constant(1.0),
    "exponential, scaled": cluster.exponential(1.0).scaled(2.0),
    "shifted_exponential": cluster.shifted_exponential(1.0, 2.0),
    "gamma": cluster.gamma(1.0, shape=2.0),
    "lognormal": cluster.lognormal(1.0, cv=0.5),
    "pareto": cluster.pareto(1.0, 2.0),
    "uniform": cluster.uniform(1.0, 2.0),
    "empirical": cluster.empirical([1.0, 2.0, 4.0]),
    "from_scipy": cluster.from_scipy(stats.gamma(2.0)),
    "infinite_bernoulli": cluster.infinite_bernoulli(1.0, 0.01),
    "markov_stragglers": cluster.markov_stragglers(
        cluster.exponential(1.0), slowdown=5.0, enter=0.1, leave=0.4
    ),
    "sleepers": cluster.sleepers(1.0, 2.0, workers=4, asleep=1),
    "recorded": cluster.Recorded(np.eye(4, 9) + 1.0).service("steps"),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_cluster_may_be_sent_to_another_process(name):
    slow = [cluster.Slowdown(1, 3.0, 2.0, 9.0)]
    own = cluster.Cluster(4, SERVICES[name], slow, cluster.Communication(0.1))
    other = pickle.loads(pickle.dumps(own))
    ours, theirs = (
        cluster.simulate(one, cluster.protocols.ssp(3), 30, seed=0)
        for one in (own, other)
    )
    np.testing.assert_array_equal(ours.arrived, theirs.arrived)
    assert pickle.loads(pickle.dumps(ours)).num_updates == 30
