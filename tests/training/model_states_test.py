"""A model's state at a server, against a loop that anyone can follow."""

import functools

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType

import delayjax as dj
from delayjax._src.training import model_states
from tests.support.cases import shortened
from tests.training.traces import assert_same, draw, pick, rows_of, trace_of, types

KEY = jax.random.key(3)
RATE = 0.125
FEATURES, HIDDEN, EXAMPLES = 4, 2, 8

ONE = trace_of(draw(1, [1] * 6, 4))
SIZES = [1, 4, 0, 3, 2, 4]
RAGGED = trace_of(draw(2, SIZES, 4), divisor=[max(1, size) for size in SIZES])


def batches_of(trace):
    """Features whose mean and variance drift, so that their statistics move."""
    rng = np.random.default_rng(0)
    shape = *trace.staleness.shape, EXAMPLES, FEATURES
    drift = 1 + np.arange(trace.num_updates).reshape(-1, 1, 1, 1) / 4
    return (drift * rng.normal(0.5, 1.0, shape)).astype(np.float32)


def squares(outputs, features):
    return jnp.mean((outputs[:, 0] - jnp.sin(features.sum(-1))) ** 2)


class Linen(nn.Module):
    """A layer, BatchNorm, dropout, a layer."""

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False, momentum=0.75)(nn.Dense(HIDDEN)(x))
        return nn.Dense(1)(nn.Dropout(0.5, deterministic=False)(nn.relu(x)))


@functools.cache
def linen():
    """A gradient function, and parameters and statistics at the beginning."""
    model = Linen()
    keys = {"params": KEY, "dropout": KEY}
    variables = jax.jit(model.init)(keys, jnp.zeros((EXAMPLES, FEATURES)))

    def grad_fn(params, batch, key, stats):
        def loss(params):
            outputs, after = model.apply(
                {"params": params, "batch_stats": stats},
                batch,
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            return squares(outputs, batch), after["batch_stats"]

        return jax.value_and_grad(loss, has_aux=True)(params)

    return grad_fn, variables["params"], variables["batch_stats"]


class Nnx(nnx.Module):
    """The same; its first layer may name the mesh axis that it is split over."""

    def __init__(self, *, rngs, names):
        init = nnx.initializers.lecun_normal()
        if names is not None:
            init = nnx.with_partitioning(init, names)
        self.first = nnx.Linear(FEATURES, HIDDEN, kernel_init=init, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.75, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)
        self.last = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, x, rngs):
        x = nnx.relu(self.norm(self.first(x)))
        return self.last(self.dropout(x, rngs=rngs))


def with_nnx(names=None):
    model = Nnx(rngs=nnx.Rngs(0), names=names)
    graph, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)

    def grad_fn(params, batch, key, stats):
        def loss(params):
            model = nnx.merge(graph, params, stats, copy=True)
            value = squares(model(batch, nnx.Rngs(key)), batch)
            return value, nnx.state(model, nnx.BatchStat)

        return jax.value_and_grad(loss, has_aux=True)(params)

    return grad_fn, params, stats


MODELS = {"linen": linen, "nnx": with_nnx}


def only(accept):
    """Of the gradients those that accept(gradients) uses."""

    def rule(grads, memory, params, **extra_args):
        return accept(grads), grads, memory

    return dj.refusing(optax.identity(), rule)


def rising(grads):
    """Refuses some of the gradients: by the sum of their first leaf."""
    return jax.tree.leaves(grads)[0].sum() > 0


def mean_of(trees):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


def by_hand(trace, batches, grad_fn, params, stats, accept=None):
    """A server with plain SGD: parameters and statistics after each update.

    All gradients of an update, however late, begin with the statistics of now.
    """
    versions, all_stats, used = [params], [stats], []
    for t, row in enumerate(rows_of(trace)):
        grads, afters = [], []
        for k, (_, version) in enumerate(row):
            key = jax.random.fold_in(jax.random.fold_in(KEY, t), k)
            (_, after), grad = grad_fn(versions[version], batches[t, k], key, stats)
            if accept is None or accept(grad):
                grads.append(grad)
                afters.append(after)
        if grads:
            step = jax.tree.map(lambda g: -RATE * g, mean_of(grads))
            params = optax.apply_updates(params, step)
            stats = mean_of(afters)
        used.append(len(grads))
        versions.append(params)
        all_stats.append(stats)
    return versions[1:], all_stats[1:], used


def assert_close(ours, theirs):
    """But for XLA's fusions, which round once less or more."""
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, ours, theirs)


def follow(training, inputs, params, stats):
    """Parameters and model states after each update, the reports, the last state."""

    def body(state, inputs):
        state, report = training.step(state, inputs)
        return state, (state.params, state.model_state, report)

    state = training.init(params, KEY, model_state=stats)
    scan = jax.jit(lambda state, inputs: jax.lax.scan(body, state, inputs))
    state, path = scan(state, inputs)
    return *path, state


def inputs_of(trace):
    return trace.arrivals(0, trace.num_updates), batches_of(trace)


@pytest.mark.parametrize(
    ("model", "trace", "accept"),
    [
        ("linen", RAGGED, rising),
        ("nnx", ONE, None),
    ],
)
def test_statistics_are_the_server_s_and_move_with_every_update(model, trace, accept):
    grad_fn, params, stats = MODELS[model]()
    expected, expected_stats, used = by_hand(
        *(trace, batches_of(trace), jax.jit(grad_fn), params, stats),
        accept,
    )
    refused = len(trace.update) - sum(used)
    assert (0 < refused < len(trace.update)) == (accept is not None)
    options = {"chunk": 3, "each": only(accept)} if accept else {}
    training = dj.replay(trace, grad_fn, optax.sgd(RATE), **options)
    path, path_stats, reports, state = follow(training, inputs_of(trace), params, stats)
    np.testing.assert_array_equal(reports.gradients, used)
    for t in range(trace.num_updates):
        assert_close(pick(path_stats, t), expected_stats[t])
        assert_close(pick(path, t), expected[t])
    assert types(state.model_state) == types(stats)
    assert types(state.params) == types(params)


@pytest.mark.parametrize(
    "kind", shortened([AxisType.Auto, AxisType.Explicit], AxisType.Explicit)
)
def test_variables_that_name_their_mesh_axis_keep_their_boxes_and_shardings(kind):
    """Statistics of split activations come back as the server keeps them: whole."""
    mesh = jax.make_mesh((2,), ("model",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        grad_fn, params, stats = with_nnx((None, "model"))
        dc = dj.compensate_delay(0.1)
        training = dj.replay(RAGGED, grad_fn, optax.adam(RATE), each=dc, chunk=3)
        state = training.init(params, KEY, model_state=stats)
        before = jax.eval_shape(lambda state: state, state)
        after, _ = jax.eval_shape(training.step, state, pick(inputs_of(RAGGED), 0))
    kernel = state.params["first"]["kernel"]
    assert kernel.get_metadata("out_sharding") == (None, "model")
    assert kernel.get_value().sharding.spec == jax.P(None, "model")
    assert jax.tree.structure(state.params) == jax.tree.structure(params)
    assert types(after) == types(before)


def test_frozen_trees_stay_frozen():
    grad_fn, params, stats = linen()

    def of_frozen(params, batch, key, stats):
        thawed = map(flax.core.unfreeze, (params, stats))
        (loss, after), grads = grad_fn(next(thawed), batch, key, next(thawed))
        return (loss, flax.core.freeze(after)), flax.core.freeze(grads)

    params, stats = map(flax.core.freeze, (params, stats))
    dc = dj.compensate_delay(0.1)
    training = dj.replay(ONE, of_frozen, optax.adam(RATE), each=dc)
    state = jax.eval_shape(training.init, params, KEY, model_state=stats)
    after, _ = jax.eval_shape(training.step, state, pick(inputs_of(ONE), 0))
    assert types(after) == types(state)
    assert isinstance(after.params, flax.core.FrozenDict)


LEAVES = {
    "mean": np.float32(0),
    "narrow": np.zeros(2, jnp.bfloat16),
    "tracked": np.int32(0),
    "even": np.zeros(2, bool),
    "key": KEY,
}


def stamp(params, batch, key, state):
    """Leaves its number in the model's state; the gradient is the number."""
    number = batch.astype(jnp.int32)
    after = {
        "mean": state["mean"] + batch,
        "narrow": state["narrow"] + batch.astype(jnp.bfloat16),
        "tracked": state["tracked"] + number,
        "even": jnp.stack([number % 2 == 0, number % 2 == 1]),
        "key": jax.random.fold_in(KEY, number),
    }
    return ({}, after), jnp.zeros_like(params) + batch


POSITIVE = {"chunk": 3, "each": only(lambda grads: grads > 0)}


def numbers_of(trace):
    """Whole numbers of both signs whose means over up to four are whole, too."""
    shape = trace.staleness.shape
    return np.random.default_rng(1).choice([-24, -12, 12, 24, 36], shape).astype(float)


@pytest.mark.parametrize(
    "options",
    shortened(
        [{}, {"chunk": 1}, POSITIVE],
        *({}, POSITIVE),
    ),
)
def test_floats_are_averaged_and_of_all_else_the_last_is_kept(options):
    numbers = numbers_of(RAGGED)
    training = dj.replay(RAGGED, stamp, optax.sgd(1.0), **options)
    state = training.init(jnp.zeros(()), jax.random.key(0), model_state=LEAVES)
    state, reports = training.run(state, numbers.astype(np.float32))
    mean, tracked, last = 0.0, 0, None
    for t, size in enumerate(SIZES):
        used = [x for x in numbers[t, :size] if "each" not in options or x > 0]
        assert reports.gradients[t] == len(used)
        if used:
            mean += sum(used) / len(used)
            tracked, last = tracked + used[-1], used[-1]
    result = state.model_state
    np.testing.assert_allclose(result.pop("mean"), mean, rtol=1e-6)
    expected = {
        "narrow": np.full(2, mean, jnp.bfloat16),
        "tracked": np.int32(tracked),
        "even": np.array([last % 2 == 0, last % 2 == 1]),
        "key": jax.random.fold_in(KEY, int(last)),
    }
    assert_same(result, expected)


def test_of_one_gradient_an_update_the_state_is_taken_as_it_is():
    """No sum with the state before it, 1e8, in which a small one would be lost."""

    def replace(params, batch, key, state):
        return ({"before": state}, batch), params

    numbers = np.float32([[1e8], [0.1], [1e8], [0.3], [-1e8], [0.7]])
    training = dj.replay(ONE, replace, optax.sgd(0.0))
    state = training.init(jnp.ones(()), jax.random.key(0), model_state=jnp.ones(()))
    state, reports = training.run(state, numbers)
    np.testing.assert_array_equal(reports.metrics["before"][1:], numbers[:-1, 0])
    assert state.model_state == numbers[-1, 0]


@pytest.mark.parametrize("chunk", shortened([None, 3], 3))
def test_what_no_gradient_changes_stays_bit_for_bit(chunk):
    """Frozen weights, masks: seven equal numbers over seven round to another one."""
    trace = trace_of([[(w, t) for w in range(7)] for t in range(20)])
    weights = np.random.default_rng(0).normal(size=1000)
    state = {
        "weights": weights.astype(np.float32),
        "narrow": weights.astype(jnp.bfloat16),
        "mask": np.float32([-np.inf, np.inf, 0.0]),
    }

    def nothing(params, batch, key, state):
        return ({}, state), batch * params

    training = dj.replay(trace, nothing, optax.sgd(1.0), chunk=chunk)
    begun = training.init(jnp.ones(()), jax.random.key(0), model_state=state)
    after, _ = training.run(begun, np.zeros((20, 7), np.float32))
    assert_same(after.model_state, state)


def test_the_mean_of_many_narrow_states_adds_up_in_more_bits():
    """In bfloat16 the 300th step of a running mean would be too small to be seen."""
    start = jnp.zeros((), jnp.bfloat16)

    @jax.jit
    def mean_one_by_one(states):
        def add(mean, numbered):
            seen, state = numbered
            return model_states.add(mean, seen, state[None], jnp.ones(1, bool)), ()

        begun = model_states.start(start)
        mean, _ = jax.lax.scan(add, begun, (jnp.arange(600), states))
        return model_states.rounded(mean, start)

    after = mean_one_by_one((np.arange(600) < 300).astype(jnp.bfloat16))
    assert (after, after.dtype) == (0.5, jnp.bfloat16)


def moving(params, batch, key, state):
    """A running mean of what the model puts out, with noise of its own."""
    output = params * batch + jax.random.key_data(key)[0] % 8
    moved = 0.75 * state["mean"] + 0.25 * output
    return ({"read": state["mean"]}, {"mean": moved}), params - batch


# bad input

SCALAR = jnp.ones(())


def one_step(grad_fn, *, model_state=None, params=SCALAR, tx=None, **options):
    training = dj.replay(ONE, grad_fn, tx or optax.sgd(0.1), **options)
    state = jax.eval_shape(training.init, params, KEY, model_state=model_state)
    inputs = ONE.arrivals(0, 1), np.zeros((1, 1), np.float32)
    return jax.eval_shape(training.step, state, pick(inputs, 0))


def one_adasync(grad_fn, *, model_state=None, params=SCALAR, **options):
    training = dj.adasync(
        dj.cluster.Cluster(3, dj.cluster.constant(1.0)),
        grad_fn,
        **(dict(tx=optax.sgd(0.1), loss=lambda metrics: 1.0) | options),
        scheme=dj.cluster.protocols.k_sync(1),
        interval_seconds=1.0,
        seed=0,
        draws=4,
    )
    state = jax.eval_shape(training.init, params, KEY, model_state=model_state)
    return jax.eval_shape(training.step, state, np.zeros(3, np.float32))


def stateless(params, batch, key):
    return {}, params - batch


def of_shape(*shape):
    """An optimizer, or a rule of each, that is not like the parameters."""
    return optax.stateless(lambda updates, params: jnp.zeros(shape))


BAD = {
    "metrics and state swapped": (
        lambda step: step(
            lambda p, b, k, s: ((s, {"loss": b}), p), model_state={"mean": SCALAR}
        ),
        r"\(\(metrics, model_state\), gradients\) with a model state like .*\['loss'\]",
    ),
    "a state of another shape": (
        lambda step: step(
            lambda p, b, k, s: (({}, jnp.zeros(3)), p), model_state=SCALAR
        ),
        r"model state like .* got float32\[3\] for float32\[\] at the root",
    ),
    "a state of another dtype": (
        lambda step: step(
            lambda p, b, k, s: (({}, s.astype(jnp.bfloat16)), p), model_state=SCALAR
        ),
        r"model state like .* got bfloat16\[\] for float32\[\]",
    ),
    "gradients that would broadcast": (
        lambda step: step(lambda p, b, k: ({}, {"w": b}), params={"w": jnp.ones(3)}),
        r"gradients like the parameters, got float32\[\] for float32\[3\] at \['w'\]",
    ),
    "narrower gradients": (
        lambda step: step(lambda p, b, k: ({}, p.astype(jnp.bfloat16))),
        r"gradients like the parameters, got bfloat16\[\] for float32\[\]",
    ),
    "metrics and gradients swapped": (
        lambda step: step(lambda p, b, k: (p, {"loss": b})),
        r"\(metrics, gradients\) with gradients like the parameters, got ",
    ),
    "updates that would broadcast": (
        lambda step: step(stateless, tx=of_shape(1)),
        r"`tx` must return updates like the parameters, got \[1\] for \[\] at",
    ),
}


@pytest.mark.parametrize("step", [one_step, one_adasync])
@pytest.mark.parametrize("name", BAD)
def test_what_a_gradient_function_may_not_do_is_named(name, step):
    call, message = BAD[name]
    with pytest.raises(TypeError, match=message):
        call(step)
