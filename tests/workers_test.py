import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax.workers import WorkerState
from tests.exchange import oracle
from tests.exchange.driving import parted, shared_buffers
from tests.support.cases import shortened
from tests.support.compiled import compile_as_usual

STEPS, WORKERS = 50, 4
AGES = (0, 1, 3, 2)  # each worker's delay, where they differ
TRACE = (0, 2, 1, 3)  # a delay that changes from step to step
GROUPS, MEMBERS = ("groups", "members"), (2, 2)
RATE = 0.1


def mesh_of(*sizes, names=("workers",), kind=AxisType.Auto):
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names))


# Two tasks, each with its gradient by hand at the raveled parameters (in the order of
# their names). The last column of the data is the label.


def logistic(params, data):
    """Logistic regression, strongly convex."""
    margins = data[:, -1] * (data[:, :-1] @ params["w"] + params["b"])
    norm = params["b"] ** 2 + jnp.sum(params["w"] ** 2)
    return jnp.mean(jnp.log1p(jnp.exp(-margins))) + 0.05 * norm


def logistic_grad(x, data):
    rows = np.column_stack([np.ones(len(data)), data[:, :-1]])
    labels = data[:, -1]
    push = -labels / (1 + np.exp(labels * (rows @ x)))
    return rows.T @ push / len(data) + 0.1 * x


HIDDEN, INPUTS = 3, 4


def perceptron(params, data):
    hidden = jnp.tanh(data[:, :-1] @ params["inner"] + params["bias"][None])
    return jnp.mean((hidden @ params["outer"] - data[:, -1]) ** 2)


def perceptron_grad(x, data):
    bias, inner, outer = np.split(x, [HIDDEN, HIDDEN * (1 + INPUTS)])
    inner = inner.reshape(INPUTS, HIDDEN)
    hidden = np.tanh(data[:, :-1] @ inner + bias)
    error = 2 * (hidden @ outer - data[:, -1]) / len(data)
    back = np.outer(error, outer) * (1 - hidden**2)
    grads = back.sum(axis=0), data[:, :-1].T @ back, hidden.T @ error
    return np.concatenate([g.ravel() for g in grads])


BOTH = {
    "simulate": lambda step: dj.workers.simulate(step, WORKERS),
    "run": lambda step: dj.workers.run(step, mesh_of(WORKERS)),
}
both = pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)


def assert_close(ours, theirs, *, rtol=1e-5, atol=1e-6):
    """Equal but for float32's rounding over a few steps of size `RATE`."""

    def close(a, b):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)

    jax.tree.map(close, ours, theirs)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def logistic_task():
    data = normal(1, STEPS, WORKERS, 3, INPUTS + 1)
    data[..., -1] = np.sign(data[..., -1])
    params = {"w": normal(2, INPUTS), "b": np.asarray(0.5)}
    return logistic, logistic_grad, params, data


def perceptron_task():
    params = {
        "inner": normal(2, INPUTS, HIDDEN),
        "bias": normal(3, HIDDEN),
        "outer": normal(4, HIDDEN),
    }
    data = normal(1, STEPS, WORKERS, 3, INPUTS + 1)
    return perceptron, perceptron_grad, params, data


def step_of(tx, loss, axis_name="workers"):
    def step(state, batch):
        params, opt_state = state
        varied = dj.workers.vary(params, axis_name=axis_name)
        value, grads = jax.value_and_grad(loss)(varied, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        metrics = {
            "loss": jax.lax.pmean(value, axis_name),
            "own loss": value,
            "params": ravel_pytree(params)[0],
        }
        return (params, opt_state), metrics

    return step


# What is composed: the transformation, its twin, and which of its leaves are a
# worker's own, by the beginnings of their paths.


def halving(tau):
    return 0.5**tau  # exact in float32, in which weights and laws are


def delay_of_worker(worker, step):
    return AGES[worker]


def trace_before_mean():
    memory = [0.0] * WORKERS

    def before_mean(worker, g, moved):
        memory[worker] = 0.5 * memory[worker] + g
        return memory[worker]

    return before_mean


class Composition(NamedTuple):
    tx: optax.GradientTransformationExtraArgs
    own: tuple[str, ...] = ()
    optimizer: Callable[[], Any] = lambda: oracle.adam(RATE)
    options: Callable[[], dict[str, Any]] = dict


def late_by(delay):
    return lambda: {"delay": lambda worker, step: delay}


ADAM = optax.adam(RATE)
MOMENTUM = optax.sgd(RATE, momentum=0.5)
PER_WORKER = dj.delays.per_worker(AGES)
compensated_sgd = optax.chain(dj.compensate_delay(0.5), optax.sgd(RATE))

COMPOSITIONS = {
    "momentum": Composition(
        dj.exchange.mean(MOMENTUM), optimizer=lambda: oracle.momentum(RATE, 0.5)
    ),
    "adam": Composition(dj.exchange.mean(ADAM)),
    "overlapped": Composition(
        dj.exchange.overlapped_mean(ADAM),
        own=("[1].outbox",),
        options=lambda: {"overlapped": True},
    ),
    "late": Composition(
        dj.delayed(
            dj.exchange.mean(optax.chain(ADAM, dj.scale_by_staleness(halving))), 3
        ),
        own=("[1].gradients.slots",),
        optimizer=lambda: oracle.scaled(oracle.adam(RATE), halving),
        options=late_by(3),
    ),
    "late and overlapped": Composition(
        dj.delayed(
            dj.exchange.overlapped_mean(
                optax.chain(MOMENTUM, dj.scale_by_staleness(halving))
            ),
            2,
        ),
        own=("[1].gradients.slots", "[1].inner_state.outbox"),
        optimizer=lambda: oracle.scaled(oracle.momentum(RATE, 0.5), halving),
        options=lambda: {"overlapped": True, **late_by(2)()},
    ),
    "a history behind the mean": Composition(
        dj.exchange.mean(dj.delayed(ADAM, 3)), options=late_by(3)
    ),
    "a delay a worker": Composition(
        dj.delayed(dj.exchange.mean(ADAM, weight=halving), PER_WORKER, max_delay=3),
        own=("[1].staleness", "[1].gradients.slots"),
        options=lambda: {"delay": delay_of_worker, "weight": halving},
    ),
    "a delay a worker, overlapped": Composition(
        dj.delayed(
            dj.exchange.overlapped_mean(ADAM, weight=halving), PER_WORKER, max_delay=3
        ),
        own=(
            "[1].staleness",
            "[1].gradients.slots",
            "[1].inner_state.outbox",
            "[1].inner_state.age",
        ),
        options=lambda: {
            "delay": delay_of_worker,
            "weight": halving,
            "overlapped": True,
        },
    ),
    "compensated before the mean": Composition(
        dj.delayed(
            optax.chain(dj.compensate_delay(0.5), dj.exchange.mean(optax.sgd(RATE))),
            PER_WORKER,
            max_delay=3,
            keep_params=True,
        ),
        own=("[1].staleness", "[1].gradients.slots"),
        optimizer=lambda: oracle.sgd(RATE),
        options=lambda: {
            "delay": delay_of_worker,
            "before_mean": lambda worker, g, moved: g + 0.5 * g * g * moved,
        },
    ),
    "late, compensated behind the mean": Composition(
        dj.delayed(
            dj.exchange.overlapped_mean(compensated_sgd, keep_params=True),
            2,
            keep_params=True,
        ),
        own=("[1].gradients.slots", "[1].inner_state.outbox"),
        optimizer=lambda: oracle.compensated(oracle.sgd(RATE), 0.5),
        options=lambda: {"overlapped": True, **late_by(2)()},
    ),
    "dropped": Composition(
        dj.delayed(
            dj.exchange.mean(dj.drop_stale(MOMENTUM, 1)),
            dj.delays.from_trace(TRACE),
            max_delay=3,
        ),
        own=("[1].gradients.slots",),
        optimizer=lambda: oracle.dropping(oracle.momentum(RATE, 0.5), 1),
        options=lambda: {"delay": lambda worker, step: TRACE[step % len(TRACE)]},
    ),
    "momentum before the mean": Composition(
        dj.delayed(
            optax.chain(
                optax.trace(0.5), dj.exchange.mean(optax.sgd(RATE), weight=halving)
            ),
            PER_WORKER,
            max_delay=3,
        ),
        own=("[1].staleness", "[1].gradients.slots", "[1].inner_state[0].trace"),
        optimizer=lambda: oracle.sgd(RATE),
        options=lambda: {
            "delay": delay_of_worker,
            "weight": halving,
            "before_mean": trace_before_mean(),
        },
    ),
}

# Inside a group every step, across groups late. To the twin a group is a worker.
TWO_LEVELS = {
    "across groups overlapped": Composition(
        dj.exchange.mean(
            dj.exchange.overlapped_mean(ADAM, axis_name="groups"), axis_name="members"
        ),
        own=("[1].outbox",),
        options=lambda: {"overlapped": True},
    ),
    "across groups in shares": Composition(
        dj.exchange.late_between_groups(ADAM, MEMBERS[1]),
        own=("[1].outbox",),
        options=lambda: {"overlapped": True},
    ),
    "a delay a group": Composition(
        dj.exchange.mean(
            dj.delayed(
                dj.exchange.mean(ADAM, axis_name="groups", weight=halving),
                dj.delays.per_worker([0, 2], axis_name="groups"),
                max_delay=2,
            ),
            axis_name="members",
        ),
        own=("[1].staleness", "[1].gradients.slots"),
        options=lambda: {"delay": lambda group, step: 2 * group, "weight": halving},
    ),
}


TABLES = {
    "workers": (("workers",), (WORKERS,), COMPOSITIONS),
    "groups": (GROUPS, MEMBERS, TWO_LEVELS),
}
FEW = ("late and overlapped", "a delay a worker, overlapped", "dropped")
# trained in every execution of the default tests; `run` trains all
SHORT = {"workers": FEW, "groups": ("a delay a group",)}


# Where it runs. All compositions of a table train side by side, as one program.


@functools.cache
def simulation(task, level, names):
    """What to simulate: the workers, a state and the batches [T, P, ...]."""
    loss, _, params, data = task()
    params = jax.tree.map(jnp.asarray, params)
    axes, counts, table = TABLES[level]
    steps = {name: step_of(table[name].tx, loss, axes) for name in names}

    def step(states, batch):
        results = {name: steps[name](states[name], batch) for name in names}
        return tuple({name: r[i] for name, r in results.items()} for i in range(2))

    states = {name: (params, table[name].tx.init(params)) for name in names}
    batches = jnp.asarray(data.reshape(STEPS, *counts, *data.shape[2:]))
    workers = dj.workers.simulate(step, counts, axis_name=axes)
    return step, workers, states, batches


def held_by(workers, states, batch):
    """Several trainings side by side, (parameters, state of the optimizer) each."""
    return workers.init(states, batch, dict.fromkeys(states, (True, False)))


def scanned(workers, split, batches):
    program = jax.jit(lambda s, b: jax.lax.scan(workers.step, s, b), donate_argnums=0)
    return program(split, batches)


def simulated(level, step, workers, states, batches):
    return scanned(workers, held_by(workers, states, batches[0]), batches)


def on_a_mesh(level, step, workers, states, batches):
    axes, counts, _ = TABLES[level]
    workers = dj.workers.run(step, mesh_of(*counts, names=axes), axis_name=axes)
    return scanned(workers, held_by(workers, states, batches[0]), batches)


def partitioned(level, step, workers, states, batches):
    axes, counts, _ = TABLES[level]
    mesh = mesh_of(*counts, names=axes)
    split = held_by(workers, states, batches[0])
    split = jax.device_put(split, split.shardings(mesh))
    batches = jax.device_put(batches, NamedSharding(mesh, P(None, *axes)))
    return scanned(workers, split, batches)


def replicated(level, step, workers, states, batches):
    """By `pmap`, which splits nothing: each device holds a state of its own."""
    states = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), states)
    batches = jnp.swapaxes(batches, 0, 1)
    train = jax.pmap(lambda s, b: jax.lax.scan(step, s, b), axis_name="workers")
    states, metrics = train(states, batches)
    for name, metric in metrics.items():
        params = np.asarray(metric["params"])
        np.testing.assert_array_equal(params, np.stack([params[0]] * WORKERS), name)
    return None, jax.tree.map(lambda x: x[0], metrics)


EXECUTIONS = {
    "simulate": simulated,
    "run": on_a_mesh,
    "jit": partitioned,
    "pmap": replicated,
}


@functools.cache
def trained(task, level, names, execution):
    """The split after all steps and the metrics of each, in the precision in force."""
    split, metrics = EXECUTIONS[execution](level, *simulation(task, level, names))
    return split, jax.tree.map(np.asarray, metrics)


def twin(task, level, name, follow=None):
    _, grad, params, data = task()
    composition = TABLES[level][2][name]
    if level == "groups":
        grad, data = oracle.of_group(grad), data.reshape(STEPS, *MEMBERS, 3, -1)
    start = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])
    options = composition.options()
    if follow is not None:
        options["follow"] = np.concatenate([start[None], follow[:-1]])
    return oracle.train(grad, start, data, composition.optimizer(), **options)


MEMBERS_OF_TABLES = [(k, name) for k, (_, _, table) in TABLES.items() for name in table]
SHORT_MEMBERS = [(level, name) for level, names in SHORT.items() for name in names]
compositions = pytest.mark.parametrize(("level", "name"), MEMBERS_OF_TABLES)


def in_float64(level, name, execution):
    """The split and the metrics of one composition."""
    few = SHORT[level]
    others = tuple(other for other in TABLES[level][2] if other not in few)
    with jax.enable_x64(True):
        split, metrics = trained(
            logistic_task, level, few if name in few else others, execution
        )
    return parted(split)[name] if split else None, metrics[name]


@pytest.mark.parametrize(
    ("level", "name", "execution"),
    shortened(
        [(*m, e) for e in ("simulate", "run", "jit") for m in MEMBERS_OF_TABLES],
        *((*m, "run") for m in MEMBERS_OF_TABLES),
        *((*m, e) for e in ("simulate", "jit") for m in SHORT_MEMBERS),
    ),
)
def test_float64_training_follows_a_numpy_loop(level, name, execution):
    params = in_float64(level, name, execution)[1]["params"]
    assert params.dtype == np.float64
    expected = twin(logistic_task, level, name)
    np.testing.assert_allclose(params, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FEW)
def test_pmap_takes_the_same_step(name):
    params = in_float64("workers", name, "pmap")[1]["params"]
    expected = twin(logistic_task, "workers", name)
    np.testing.assert_allclose(params, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("execution", ["run", "jit"])
@pytest.mark.parametrize(
    ("level", "name"), shortened(MEMBERS_OF_TABLES, *SHORT_MEMBERS)
)
def test_every_execution_holds_the_same_split(level, name, execution):
    split, reference = (in_float64(level, name, e)[0] for e in (execution, "simulate"))
    assert split.axes == reference.axes
    assert_close(split.state, reference.state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("execution", shortened(EXECUTIONS, "run"))
@pytest.mark.parametrize("name", FEW)
def test_float32_steps_of_a_perceptron_round_off(name, execution):
    """Each step is the loop's from the same parameters, but for float32's rounding.

    Gradients are near 1, steps near `RATE`, and Adam divides by no less than 0.01.
    """
    params = trained(perceptron_task, "workers", FEW, execution)[1][name]["params"]
    assert params.dtype == np.float32
    expected = twin(perceptron_task, "workers", name, follow=params)
    np.testing.assert_allclose(params, expected, rtol=0, atol=2e-6)


@compositions
def test_own_are_the_leaves_that_differ_and_no_others(level, name):
    """The parameters, the optimizer behind the mean and all clocks are held once."""
    split = in_float64(level, name, "run")[0]
    structure = jax.tree.structure(split.state)
    axes = jax.tree.unflatten(structure, [" ".join(a) for a in split.axes])
    held = {
        jax.tree_util.keystr(path): a for path, a in jax.tree.leaves_with_path(axes)
    }
    prefixes = TABLES[level][2][name].own
    assert {p for p in prefixes if not any(k.startswith(p) for k in held)} == set()
    owners = TABLES[level][0][0]  # the workers, or the groups
    assert held == {k: owners if k.startswith(prefixes) else "" for k in held}


START = {"w": jnp.ones(INPUTS), "b": jnp.zeros(())}
BATCHES = jnp.asarray(logistic_task()[3][:6], jnp.float32)


def alone(optimizer, data):
    """What one worker makes of its data [T, ...], by the loop."""
    x = np.concatenate([[0.0], np.ones(INPUTS)])  # START, raveled
    data = np.asarray(data, np.float64)[:, None]
    bias, *weights = oracle.train(logistic_grad, x, data, optimizer)[-1]
    return {"w": np.asarray(weights), "b": np.asarray(bias)}


# What is held


WIDE = {"w": jnp.zeros((100, 200)), "b": jnp.zeros(200)}
N = 4 * (100 * 200 + 200)  # bytes of a gradient


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def wide_loss(params, data):
    return jnp.mean(jnp.tanh(data @ params["w"] + params["b"][None]) ** 2)


# name: (depth -> transformation, bytes of its state beside clocks)
HELD = {
    "late": (
        lambda d: dj.delayed(dj.exchange.mean(ADAM), d),
        lambda d: 2 * N + WORKERS * (d + 1) * N,
    ),
    "late and overlapped": (
        lambda d: dj.delayed(dj.exchange.overlapped_mean(ADAM), d),
        lambda d: 2 * N + WORKERS * (d + 2) * N,
    ),
    "a delay a worker": (
        lambda d: dj.delayed(
            optax.chain(dj.compensate_delay(0.1), dj.exchange.mean(ADAM)),
            dj.delays.per_worker(np.arange(WORKERS)),
            max_delay=d,
            keep_params=True,
        ),
        lambda d: 2 * N + (WORKERS + 1) * (d + 1) * N,
    ),
    "a history behind the mean": (
        lambda d: dj.exchange.mean(dj.delayed(ADAM, d)),
        lambda d: 2 * N + (d + 1) * N,
    ),
}


def wide_step(tx):
    return step_of(tx, wide_loss)


def wide_split(make, tx):
    data = jax.ShapeDtypeStruct((WORKERS, 2, 100), jnp.float32)
    workers = make(wide_step(tx))
    return workers, workers.init((WIDE, tx.init(WIDE)), data), data


@pytest.mark.parametrize("depth", [3, 9])
@pytest.mark.parametrize("name", HELD)
def test_workers_hold_the_parameters_and_the_optimizer_once(name, depth):
    make_tx, size = HELD[name]
    split = wide_split(BOTH["simulate"], make_tx(depth))[1]
    clocks = 2 * 4 * (depth + 1) + 64  # ages and losses in the history, and scalars
    assert 0 < nbytes(split) - (N + size(depth)) <= clocks


@pytest.mark.parametrize(
    "name", shortened(HELD, "late and overlapped", "a delay a worker")
)
def test_a_donated_step_copies_no_history(name):
    # simulated: on CPU devices XLA copies a history that is a worker's own
    workers, split, data = wide_split(BOTH["simulate"], HELD[name][0](64))
    step = jax.jit(workers.step, donate_argnums=0)
    program = compile_as_usual(step.lower(split, data))
    memory, text = program.memory_analysis(), program.as_text()
    # the gradients, sums and what is read; a ring would be 65 N
    assert memory.temp_size_in_bytes <= 12 * N
    assert not re.search(r"f32\[[\d,]*65,100,200\]\S* (copy|select)\(", text)
    # a clock of each worker's own would make a scatter of the write
    assert " scatter(" not in text
    # all that is donated is written over, but for scalars that are not read
    assert memory.alias_size_in_bytes >= nbytes(split) - 64


@both
def test_no_step_after_the_first_is_traced(make):
    traces = []
    tx = dj.delayed(dj.exchange.overlapped_mean(ADAM), 2)
    inner = step_of(tx, logistic)

    def step(state, batch):
        traces.append(batch)
        return inner(state, batch)

    workers = make(step)
    split = workers.init((START, tx.init(START)), BATCHES[0])
    taken = jax.jit(workers.step)
    split, _ = taken(split, BATCHES[0])
    traced = len(traces)
    for batch in BATCHES[1:]:
        split, _ = taken(split, batch)
    workers.init((START, tx.init(START)), BATCHES[1])
    assert len(traces) == traced


@both
def test_init_neither_donates_nor_aliases_what_it_was_given(make):
    tx = dj.exchange.mean(ADAM)
    state = START, tx.init(START)
    if make is BOTH["run"]:  # where a `device_put` would have nothing to do
        state = jax.device_put(state, NamedSharding(mesh_of(WORKERS), P()))
    workers = make(step_of(tx, logistic))
    before = jax.tree.map(np.array, state)
    split = workers.init(state, BATCHES[0])
    jax.jit(workers.step, donate_argnums=0)(split, BATCHES[0])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    jax.tree.map(np.testing.assert_array_equal, state, before)


@both
def test_one_worker_s_state_is_a_copy(make):
    """The split goes on to be donated, and so may the copy."""
    tx = dj.exchange.overlapped_mean(ADAM)
    state = START, tx.init(START)
    workers = make(step_of(tx, logistic))
    split = workers.init(state, BATCHES[0])
    one = split.one()
    assert shared_buffers(state, split, one) == []


@pytest.mark.parametrize(
    ("execution", "change"),
    shortened(
        [(e, change) for change in ("shallower", "stripped") for e in BOTH],
        *(("run", "shallower"), ("simulate", "stripped")),
    ),
)
def test_a_split_with_another_history_may_be_donated(execution, change):
    """It was a crash on devices where two of its leaves were one buffer."""
    make, stripped = BOTH[execution], change == "stripped"
    depth = 3 if stripped else 1

    def workers_of(depth):
        tx = dj.delayed(dj.exchange.overlapped_mean(ADAM, keep_params=True), depth)
        workers = make(step_of(tx, logistic))
        return workers, workers.init((START, tx.init(START)), BATCHES[0])

    _, split = workers_of(2)
    split = dj.strip_history(split) if stripped else split
    after, like = workers_of(depth)
    split = dj.resize_history(split, like)
    assert shared_buffers(split) == []
    step = jax.jit(after.step, donate_argnums=0)
    for batch in BATCHES:
        split, metrics = step(split, batch)
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("execution", shortened(BOTH, "run"))
def test_every_leaf_keeps_its_type(execution):
    make = BOTH[execution]
    tx = dj.delayed(
        dj.exchange.overlapped_mean(
            optax.chain(ADAM, dj.scale_by_staleness(dj.modulation.inverse)),
            weight=lambda tau: 1 / (1 + tau.astype(jnp.float32)),  # strongly typed
        ),
        PER_WORKER,
        max_delay=3,
    )
    params = {"w": jnp.ones(INPUTS, jnp.bfloat16), "b": jnp.zeros(())}
    workers = make(step_of(tx, logistic))
    split = workers.init((params, tx.init(params)), BATCHES[0])

    def types(split):
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), split)

    step = jax.jit(workers.step)
    after = step(split, BATCHES[0])[0]
    assert after.axes == split.axes
    assert types(step(after, BATCHES[1])[0]) == types(after)
    kinds = {leaf.dtype for leaf in jax.tree.leaves(after.state[0])}
    assert kinds == {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
    if make is BOTH["run"]:
        assert types(after) == types(split)


@both
def test_metrics_that_differ_between_workers_have_an_axis_of_them(make):
    def step(x, batch):
        mean = jax.lax.pmean(batch, "workers")
        return x, {"own": batch, "mean": mean, "rate": 0.5, "steps": 3, "none": None}

    workers = make(step)
    batch = jnp.arange(4.0)
    split = workers.init(jnp.zeros(()), batch)
    metrics = jax.jit(workers.step)(split, batch)[1]
    assert jax.tree.map(jnp.shape, metrics) == {
        **{"own": (4,), "mean": (), "rate": (), "steps": (), "none": None}
    }
    np.testing.assert_array_equal(metrics["own"], batch)
    assert (metrics["mean"], metrics["rate"], metrics["steps"]) == (1.5, 0.5, 3)


# What a step may contain


def both_ways(step, state, batches, shared=None):
    """The split after all steps, simulated and run; the same axes, the same values."""
    ends = []
    for make in BOTH.values():
        workers = make(step)
        split = workers.init(state, jax.tree.map(lambda x: x[0], batches), shared)
        ends.append(scanned(workers, split, batches)[0])
    assert ends[0].axes == ends[1].axes
    assert_close(ends[0].state, ends[1].state)
    return ends[0]


@jax.custom_vjp
def by_hand(params, data):
    return logistic(params, data)


by_hand.defvjp(
    lambda params, data: (logistic(params, data), (params, data)),
    lambda kept, g: (
        jax.tree.map(lambda leaf: g * leaf, jax.grad(logistic)(*kept)),
        jnp.zeros_like(kept[1]),
    ),
)


def row_by_row(params, data):
    def body(total, row):
        return total + logistic(params, row[None]) / len(data), None

    start = dj.workers.vary(jnp.zeros(()))
    return jax.lax.scan(body, start, data)[0]


def by_a_branch(params, data):
    return jax.lax.cond(data[0, 0] > 0, logistic, jax.jit(logistic), params, data)


LOSSES = {
    "plain": logistic,
    "jit": jax.jit(logistic),
    "remat": jax.checkpoint(logistic),
    "custom_vjp": by_hand,
    "scan": row_by_row,
    "cond": by_a_branch,
}


def test_a_loss_may_be_jitted_rematerialized_looped_or_branch():
    tx = dj.exchange.overlapped_mean(optax.sgd(RATE))
    steps = {name: step_of(tx, loss) for name, loss in LOSSES.items()}

    def step(states, batch):
        return {name: steps[name](states[name], batch)[0] for name in steps}, {}

    states = {name: (START, tx.init(START)) for name in steps}
    end = both_ways(step, states, BATCHES, dict.fromkeys(states, (True, False))).state
    for name in steps:
        assert_close(end[name][0], end["plain"][0])


def test_an_update_may_stand_in_a_branch_that_all_workers_take():
    tx = dj.exchange.mean(optax.sgd(RATE))

    def step(state, batch):
        x, every_second = state
        grads = dj.workers.vary(x) - batch

        def update(x):
            return x + tx.update(grads, tx.init(x))[0]

        return (jax.lax.cond(every_second, update, lambda x: x, x), ~every_second), {}

    batches = jnp.asarray(normal(1, 5, WORKERS))
    x = 0.0
    for batch in batches[1::2]:
        x -= RATE * (x - float(jnp.mean(batch)))
    end = both_ways(step, (jnp.zeros(()), jnp.asarray(False)), batches)
    np.testing.assert_allclose(end.state[0], x, rtol=1e-5)


class Node(NamedTuple):
    left: Any
    right: Any


def test_states_of_any_tree_are_split():
    tx = dj.delayed(dj.exchange.overlapped_mean(ADAM), 1)
    params = Node({"empty": {}, "none": None}, [jnp.ones(()), (jnp.ones((0, 3)),)])

    def loss(params, data):
        return (params.right[0] - data) ** 2 + jnp.sum(params.right[1][0])

    inner = step_of(tx, loss)

    def step(state, batch):
        return inner(state, batch)[0], {}

    end = both_ways(step, (params, tx.init(params)), jnp.asarray(normal(1, 4, WORKERS)))
    assert jax.tree.structure(end.state[0]) == jax.tree.structure(params)


@pytest.mark.parametrize("state", [(), None, {}], ids=str)
@both
def test_a_step_may_hold_nothing(make, state):
    workers = make(lambda state, batch: (state, jax.lax.pmean(batch, "workers")))
    split = workers.init(state, jnp.arange(4.0))
    split, mean = workers.step(split, jnp.arange(4.0))
    assert (split.state, split.axes, mean) == (state, (), 1.5)


def test_keys_integers_and_flags_are_state_like_any_other():
    def step(state, batch):
        shared, own, raw, steps, flag = state
        shared, draw = jax.random.split(shared)
        own = jax.random.fold_in(own, jax.lax.axis_index("workers"))
        raw = jax.random.fold_in(raw, jax.lax.psum(1, "workers"))
        metrics = {"same": jax.random.normal(draw), "own": jax.random.normal(own)}
        return (shared, own, raw, steps + 1, ~flag), metrics

    state = (
        jax.random.key(0),
        jax.random.key(1),
        jax.random.PRNGKey(2),
        jnp.int8(0),
        jnp.asarray(True),
    )
    shared = (True, False, True, True, True)
    end = both_ways(step, state, jnp.zeros((3, WORKERS)), shared)
    assert end.axes == ((), ("workers",), (), (), ())
    assert (end.state[3], end.state[4]) == (3, False)
    assert end.state[1].shape == (WORKERS,)
    shared = jax.random.key(0)
    for _ in range(3):
        shared = jax.random.split(shared)[0]
    assert end.state[0] == shared


@pytest.mark.parametrize("state", [0.0, 1, True, np.float32(2), np.ones(3)], ids=repr)
@both
def test_python_and_numpy_values_are_state(make, state):
    workers = make(lambda state, batch: (state, {}))
    split = workers.init(state, jnp.zeros(WORKERS))
    split, _ = jax.jit(workers.step, donate_argnums=0)(split, jnp.zeros(WORKERS))
    np.testing.assert_array_equal(split.state, state)
    assert split.state.dtype == jnp.result_type(state)


def test_a_batch_may_be_keys_or_nothing():
    def draw(state, key):
        return state + jax.lax.pmean(jax.random.normal(key), "workers"), {}

    keys = jax.random.split(jax.random.key(0), (2, WORKERS))
    end = both_ways(draw, jnp.zeros(()), keys)
    expected = jnp.sum(jnp.mean(jax.vmap(jax.vmap(jax.random.normal))(keys), axis=1))
    np.testing.assert_allclose(end.state, expected, rtol=1e-5)

    for make in BOTH.values():
        workers = make(lambda state, batch: (state + jax.lax.psum(1, "workers"), {}))
        assert workers.step(workers.init(jnp.zeros(()), ()), ())[0].state == WORKERS


def test_one_worker_is_the_optimizer_alone():
    tx = dj.exchange.mean(ADAM)
    step, state = step_of(tx, logistic), (START, tx.init(START))
    expected = alone(oracle.adam(RATE), BATCHES[:, 0])
    for workers in (dj.workers.simulate(step, 1), dj.workers.run(step, mesh_of(1))):
        split = workers.init(state, BATCHES[0, :1])
        split, _ = scanned(workers, split, BATCHES[:, :1])
        assert_close(split.state[0], expected)


@pytest.mark.parametrize("counts", [(1, 4), (4, 1)], ids=str)
def test_an_axis_of_one_changes_nothing(counts):
    def step(x, batch):
        grads = dj.workers.vary(x, axis_name=GROUPS) - batch
        updates, _ = tx.update(grads, tx.init(x))
        return x + updates, {}

    tx = dj.exchange.mean(
        dj.exchange.mean(optax.sgd(RATE), axis_name="groups"), axis_name="members"
    )
    batches = jnp.asarray(normal(1, 5, *counts), jnp.float32)
    x = 0.0
    for batch in batches:
        x -= RATE * (x - float(jnp.mean(batch)))
    mesh = mesh_of(*counts, names=GROUPS)
    for workers in (
        dj.workers.simulate(step, counts, axis_name=GROUPS),
        dj.workers.run(step, mesh, axis_name=GROUPS),
    ):
        split = workers.init(jnp.zeros(()), batches[0])
        np.testing.assert_allclose(scanned(workers, split, batches)[0].state, x, 1e-5)


def test_a_grid_of_step_sizes_and_delays_is_one_program():
    @jax.jit
    def losses(rate, delay):
        tx = dj.delayed(dj.exchange.mean(optax.sgd(rate)), delay, max_delay=3)
        workers = dj.workers.simulate(step_of(tx, logistic), WORKERS)
        split = workers.init((START, tx.init(START)), BATCHES[0])
        return jax.lax.scan(workers.step, split, BATCHES)[1]["loss"]

    rates, delays = jnp.asarray([0.1, 0.2]), jnp.asarray([0, 3])
    together = jax.jit(jax.vmap(losses))(rates, delays)
    apart = [losses(rate, delay) for rate, delay in zip(rates, delays, strict=True)]
    np.testing.assert_allclose(together, jnp.stack(apart), rtol=1e-5)
    assert abs(together[0, -1] - together[1, -1]) > 1e-3


# Where the arrays are


@both
def test_the_caller_may_have_set_a_mesh(make):
    tx = dj.exchange.overlapped_mean(ADAM)
    with jax.set_mesh(mesh_of(WORKERS)):
        workers = make(step_of(tx, logistic))
        split = workers.init((START, tx.init(START)), BATCHES[0])
        after, _ = jax.eval_shape(workers.step, split, BATCHES[0])
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, split)


def test_a_split_goes_on_under_the_other_execution():
    """What one checkpoints is the same: steps may alternate."""
    tx = COMPOSITIONS["a delay a worker, overlapped"].tx
    step, state = step_of(tx, logistic), (START, tx.init(START))
    simulated, on_devices = (make(step) for make in BOTH.values())
    unmixed = mixed = simulated.init(state, BATCHES[0])
    steps = [jax.jit(simulated.step), jax.jit(on_devices.step)]
    for t, batch in enumerate(BATCHES):
        unmixed, _ = steps[0](unmixed, batch)
        mixed, _ = steps[t % 2](mixed, batch)
    assert unmixed.axes == mixed.axes
    assert_close(unmixed.state, mixed.state)


def test_run_places_what_is_shared_on_all_devices_and_what_is_own_on_one():
    tx = dj.delayed(dj.exchange.mean(ADAM), 2)
    workers = BOTH["run"](step_of(tx, logistic))
    split = workers.init((START, tx.init(START)), BATCHES[0])
    mesh = mesh_of(WORKERS)
    for leaf, axes in zip(jax.tree.leaves(split.state), split.axes, strict=True):
        assert leaf.sharding == NamedSharding(mesh, P(*axes))
    assert split.state[1].gradients.slots["w"].addressable_shards[0].data.shape == (
        *(1, 3, INPUTS),
    )


def test_more_workers_than_devices_run_under_jit():
    tx = dj.exchange.overlapped_mean(ADAM)
    data = BATCHES.reshape(3, 8, 3, -1)
    workers = dj.workers.simulate(step_of(tx, logistic), 8)
    start = workers.init((START, tx.init(START)), data[0])
    expected = scanned(workers, jax.tree.map(jnp.copy, start), data)[0]

    mesh = mesh_of(WORKERS)
    places = start.shardings(mesh)
    split = jax.device_put(start, places)
    batches = jax.device_put(data, NamedSharding(mesh, P(None, "workers")))
    split = scanned(workers, split, batches)[0]
    assert_close(split.state, expected.state)
    outbox = split.state[1].outbox["w"]
    assert outbox.sharding.is_equivalent_to(places.state[1].outbox["w"], 2)
    assert outbox.addressable_shards[0].data.shape == (2, INPUTS)


SHARDED_PARAMS = {"w": jnp.asarray(normal(1, 8, 3)), "b": jnp.asarray(normal(2, 3))}
SHARDED = {
    "overlapped": dj.exchange.overlapped_mean(ADAM),
    "late": dj.delayed(
        optax.chain(dj.compensate_delay(0.1), dj.exchange.mean(ADAM)),
        2,
        keep_params=True,
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_histories_are_sharded_like_sharded_parameters(name):
    tx = SHARDED[name]
    step = step_of(
        tx, lambda p, data: jnp.mean((data @ p["w"] + p["b"][None]) ** 2), "workers"
    )
    mesh = mesh_of(2, 2, names=("workers", "fsdp"))
    places = {"w": P("fsdp"), "b": P()}
    params = jax.device_put(
        SHARDED_PARAMS, jax.tree.map(lambda p: NamedSharding(mesh, p), places)
    )
    data = jnp.asarray(normal(3, 5, 2, 4, 8), jnp.float32)
    workers = dj.workers.run(step, mesh)
    split = workers.init((params, tx.init(params)), data[0])
    specs = jax.tree.map(lambda x: x.sharding.spec, split.state)
    program = jax.jit(workers.step, donate_argnums=0)
    for batch in data:
        split, _ = program(split, batch)
    after = jax.tree.map(lambda x: x.sharding.spec, split.state)
    assert after == specs
    sharded = [spec for spec in jax.tree.leaves(after) if "fsdp" in spec]
    # w, its two moments, and the outbox; or the history and the snapshots
    assert len(sharded) == {"overlapped": 4, "late": 5}[name]

    plain = dj.workers.simulate(step, 2)
    state = SHARDED_PARAMS, tx.init(SHARDED_PARAMS)
    expected = scanned(plain, plain.init(state, data[0]), data)[0]
    assert_close(split.state, expected.state)


def test_shardings_keep_how_a_leaf_is_sharded_over_other_axes():
    mesh = mesh_of(2, 2, names=("workers", "fsdp"))
    leaf = jax.device_put(
        jnp.zeros((2, 3, 4)), NamedSharding(mesh, P(None, None, "fsdp"))
    )
    split = WorkerState((leaf, jnp.zeros(3)), (("workers",), ()))
    places = split.shardings(mesh).state
    assert [p.spec for p in places] == [P("workers", None, "fsdp"), P()]


def test_one_is_the_state_of_one_worker():
    split = WorkerState(
        (jnp.asarray(5), jnp.arange(6).reshape(2, 3), jnp.arange(3)),
        ((), ("groups", "members"), ("members",)),
    )
    picked = split.one(worker={"groups": 1, "members": 2})
    assert picked == (5, 5, 2)
    first = split.one()
    assert first == (5, 0, 0)
    own = WorkerState(jnp.arange(4), (("workers",),))
    for index in (2, np.int64(2), jnp.int32(2)):
        assert own.one(worker=index) == 2


def test_there_is_no_worker_beyond_the_last():
    split = WorkerState(jnp.arange(4), (("workers",),))
    with pytest.raises(ValueError, match=r"`worker` must lie in 0 .. 3.*got 4"):
        split.one(worker=4)
    with pytest.raises(ValueError, match=r"`worker` must lie in 0 .. 3.*got -1"):
        split.one(worker=-1)


# What is refused, in the same words by both


PARAMS = {"layer": {"w": jnp.ones(INPUTS)}, "b": jnp.zeros(())}
DATA = BATCHES[0]


def deep(params, data):
    return logistic({"w": params["layer"]["w"], "b": params["b"]}, data)


def started(make, step, tx, **options):
    return make(step).init((PARAMS, tx.init(PARAMS)), DATA, **options)


@pytest.mark.parametrize(
    "tx",
    [MOMENTUM, dj.delayed(MOMENTUM, 2), dj.delayed(ADAM, PER_WORKER, max_delay=3)],
    ids=["plain", "delayed", "a delay a worker"],
)
@both
def test_replicas_that_would_drift_are_refused_by_name(make, tx):
    match = r"\[0\]\['b'\], \[0\]\['layer'\]\['w'\] would drift.*\.mean.*shared="
    with pytest.raises(ValueError, match=match):
        started(make, step_of(tx, deep), tx)


@both
def test_only_the_leaf_that_would_drift_is_named(make):
    tx = optax.masked(
        dj.exchange.mean(MOMENTUM), {"layer": True, "b": False}
    )  # b's gradient stays a worker's own
    with pytest.raises(ValueError, match=r"copies of \[0\]\['b'\] would drift"):
        started(make, step_of(tx, deep), tx)


@both
def test_refusing_by_a_staleness_of_its_own_makes_a_worker_drift(make):
    tx = dj.delayed(
        dj.drop_stale(dj.exchange.mean(MOMENTUM), 1), PER_WORKER, max_delay=3
    )
    with pytest.raises(ValueError, match=r"\[0\]\['b'\].* would drift apart"):
        started(make, step_of(tx, deep), tx)


@pytest.mark.parametrize("part", ["gradient", "step"])
def test_jit_inside_of_a_step_hides_no_drift(part):
    """Its cache remembers a trace: a second look must see what the first saw."""
    grads_of = jax.jit(lambda p, data: jax.grad(deep)(dj.workers.vary(p), data))

    def step(state, batch):
        params, opt_state = state
        updates, opt_state = MOMENTUM.update(grads_of(params, batch), opt_state)
        return (optax.apply_updates(params, updates), opt_state), {}

    step = jax.jit(step) if part == "step" else step
    for make in [*BOTH.values()] * 2:
        with pytest.raises(ValueError, match=r"\[0\]\['b'\].* would drift apart"):
            started(make, step, MOMENTUM)


def without_vary(tx):
    def step(state, batch):
        params, opt_state = state
        grads = jax.grad(deep)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    return step


@pytest.mark.parametrize(
    "tx",
    [
        dj.exchange.mean(ADAM),
        dj.exchange.overlapped_mean(ADAM),
        dj.delayed(dj.exchange.mean(ADAM), 0),
        dj.delayed(dj.exchange.mean(ADAM), 2),
    ],
    ids=["mean", "overlapped", "not delayed", "delayed"],
)
@both
def test_a_gradient_that_is_summed_already_is_refused_by_name(make, tx):
    match = r"`exchange\.\w*mean` got a gradient that is the same.*\['b'\].*vary"
    with pytest.raises(ValueError, match=match):
        started(make, without_vary(tx), tx)


class TheirOwnError(ValueError):
    pass


@pytest.mark.parametrize("when", ["vmap", "shard_map"])
@both
def test_an_error_of_the_step_comes_through_unchanged(make, when):
    """Whatever it says, and in whichever of the traces it is raised."""
    error = TheirOwnError("out_axes is wrong: not taken at workers.vary(params)")

    def step(state, batch):
        if ("vmap" in when) != bool(jax.sharding.get_abstract_mesh().manual_axes):
            raise error
        return state, {}

    with pytest.raises(TheirOwnError) as raised:
        make(step).init(PARAMS, DATA)
    assert raised.value is error
    assert raised.value.__cause__ is None


@both
def test_a_gradient_neither_at_vary_nor_exchanged_is_refused(make):
    """`run` would sum it and `simulate` would not."""
    message = r"not taken at workers\.vary\(params\).* \[0\]\[0\]\['b'\] of its \(state"
    with pytest.raises(ValueError, match=message):
        started(make, without_vary(MOMENTUM), MOMENTUM)


@pytest.mark.parametrize(
    ("batch", "where"),
    [
        (DATA[:3], r"\(3, 3, 5\) at the root"),
        (jnp.ones((8, 3)), r"\(8, 3\) at the root"),
        (jnp.ones(()), r"\(\) at the root"),
        ({"x": DATA, "y": np.ones(3)}, r"\(3,\) at \['y'\]"),
    ],
    ids=["short", "long", "scalar", "tree"],
)
@both
def test_a_batch_must_be_for_all_workers(make, batch, where):
    workers = make(lambda state, batch: (state, {}))
    match = rf"`batch` must have leading axes \(4,\).*got shape {where}"
    with pytest.raises(ValueError, match=match):
        workers.init(PARAMS, batch)
    split = workers.init(PARAMS, DATA)
    with pytest.raises(ValueError, match=match):
        workers.step(split, batch)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (lambda s, b: (s["layer"], {}), r"None for float32\[\] at \['b'\]"),
        (
            lambda s, b: ({**s, "b": s["b"].astype(jnp.bfloat16)}, {}),
            r"bfloat16\[\] for float32\[\] at \['b'\]",
        ),
        (
            lambda s, b: ({**s, "b": s["b"][None]}, {}),
            r"float32\[1\] for float32\[\] at \['b'\]",
        ),
    ],
    ids=["tree", "dtype", "shape"],
)
@both
def test_a_step_must_return_a_state_like_its_own(make, step, match):
    with pytest.raises(TypeError, match=match):
        make(step).init(PARAMS, DATA)


@both
def test_a_split_of_another_step_is_refused_by_name(make):
    tx = dj.exchange.overlapped_mean(ADAM)
    split = started(make, step_of(tx, deep), tx)
    all_shared = WorkerState(
        jax.tree.map(lambda x: x, (PARAMS, tx.init(PARAMS))), ((),) * len(split.axes)
    )
    with pytest.raises(ValueError, match=r"\[1\]\.outbox\['b'\].* would differ"):
        make(step_of(tx, deep)).step(all_shared, DATA)


def test_a_split_of_another_number_of_workers_is_refused_by_name():
    tx = dj.exchange.overlapped_mean(ADAM)
    split = started(BOTH["simulate"], step_of(tx, deep), tx)
    for workers in (
        dj.workers.simulate(step_of(tx, deep), 2),
        dj.workers.run(step_of(tx, deep), mesh_of(2)),
    ):
        match = r"`workers_state` must have .* \(2,\).*\(4,\) at \[1\]\.outbox\['b'\]"
        with pytest.raises(ValueError, match=match):
            workers.step(split, DATA[:2])


@pytest.mark.parametrize(
    ("number", "error", "match"),
    [
        (0, ValueError, "`num_workers` must be at least 1, got 0"),
        (-2, ValueError, "`num_workers` must be at least 1, got -2"),
        (4.0, TypeError, "`num_workers` must be a static integer, got 4.0"),
        (None, TypeError, "`num_workers` must be a static integer, got None"),
    ],
    ids=str,
)
def test_the_number_of_workers_is_checked(number, error, match):
    with pytest.raises(error, match=match):
        dj.workers.simulate(lambda state, batch: (state, {}), number)


@pytest.mark.parametrize(("number", "names"), [(4, GROUPS), ((2, 2), "workers")])
def test_every_axis_needs_its_number(number, names):
    with pytest.raises(ValueError, match=r"zip\(\) argument 2"):
        dj.workers.simulate(lambda s, b: (s, {}), number, axis_name=names)


@pytest.mark.parametrize("names", [(), ("a", "a"), 3, ["workers"]], ids=str)
def test_axes_need_different_names(names):
    for make in (
        lambda: dj.workers.simulate(lambda s, b: (s, {}), (2, 2), axis_name=names),
        lambda: dj.workers.run(lambda s, b: (s, {}), mesh_of(4), axis_name=names),
    ):
        with pytest.raises(TypeError, match="`axis_name` must be a name"):
            make()


@pytest.mark.parametrize(
    ("mesh", "error", "match"),
    [
        (
            lambda: mesh_of(4, names=("data",)),
            ValueError,
            r"`mesh` must have axes \('workers',\).*'data'.*make_mesh",
        ),
    ],
    ids=["no such axis"],
)
def test_the_mesh_is_checked(mesh, error, match):
    with pytest.raises(error, match=match):
        dj.workers.run(lambda state, batch: (state, {}), mesh())
    with pytest.raises(error, match=match):
        WorkerState(jnp.ones((4, 2)), (("workers",),)).shardings(mesh())


def test_the_mesh_must_divide_the_workers():
    split = WorkerState(jnp.ones((6, 2)), (("workers",),))
    with pytest.raises(ValueError, match="evenly divide"):
        jax.device_put(split, split.shardings(mesh_of(4)))


# Replicas


@pytest.mark.parametrize("shared", [False, (False, False)], ids=["all", "parts"])
def test_replicas_are_trained_where_they_are_asked_for(shared):
    """P trainings side by side: each what it would be alone."""
    inner = step_of(MOMENTUM, logistic)
    state = START, MOMENTUM.init(START)
    end = both_ways(lambda s, b: (inner(s, b)[0], {}), state, BATCHES, shared)
    assert set(end.axes) == {("workers",)}
    for p in range(WORKERS):
        expected = alone(oracle.momentum(RATE, 0.5), BATCHES[:, p])
        assert_close(end.one(worker=p)[0], expected)


@both
def test_a_leaf_that_differs_a_step_later_is_found(make):
    """The second has the batch, and the first what the second had the step before."""
    workers = make(lambda state, batch: ((state[1], batch), {}))
    split = workers.init((jnp.zeros(()), jnp.zeros(())), jnp.arange(4.0), shared=False)
    assert split.axes == (("workers",), ("workers",))
    for batch in (1 + jnp.arange(4.0), jnp.zeros(4)):
        split, _ = workers.step(split, batch)
    np.testing.assert_array_equal(split.state[0], 1 + jnp.arange(4.0))


@pytest.mark.parametrize("shared", [(True, False, False), (True, None)], ids=str)
@both
def test_shared_is_a_prefix_of_the_state(make, shared):
    with pytest.raises(ValueError, match="`shared` must be one value or a prefix"):
        started(make, step_of(MOMENTUM, deep), MOMENTUM, shared=shared)


@both
def test_a_state_that_is_no_pair_must_be_shared_unless_it_is_said(make):
    def step(state, batch):
        return {"x": state["x"], "own": batch}, {}

    start = {"x": jnp.zeros(()), "own": jnp.zeros(())}
    workers, batch = make(step), jnp.arange(4.0)
    with pytest.raises(ValueError, match=r"copies of \['own'\] would drift apart"):
        workers.init(start, batch)
    with pytest.raises(ValueError, match=r"copies of \['own'\] would drift apart"):
        workers.init(start, batch, {"x": False, "own": True})
    split = workers.init(start, batch, {"x": True, "own": False})
    assert workers.step(split, batch)[0].axes == (("workers",), ())
