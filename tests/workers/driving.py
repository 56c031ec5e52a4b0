"""Two tasks with gradients by hand, the compositions, and the executions."""

import functools
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
from tests.exchange import oracle

STEPS, WORKERS = 50, 4
AGES = (0, 1, 3, 2)  # the delays of the workers, where these differ
TRACE = (0, 2, 1, 3)  # the delays of the steps, where these differ
GROUPS, MEMBERS = ("groups", "members"), (2, 2)
RATE = 0.1


def mesh_of(*sizes, names=("workers",), kind=AxisType.Auto):
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names))


# Two tasks, each with a gradient by hand, of the parameters as one vector (sorted by
# name). The last column of the data is the label.


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
    """Equal up to the rounding of float32 over a few steps of size `RATE`."""

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


# A composition: the transformation and its twin. `local` has the beginnings of the
# paths of the leaves that differ between workers.


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
    local: tuple[str, ...] = ()
    optimizer: Callable[[], Any] = lambda: oracle.adam(RATE)
    options: Callable[[], dict[str, Any]] = dict


def late_by(delay):
    return lambda: {"delay": lambda worker, step: delay}


ADAM = optax.adam(RATE)
MOMENTUM = optax.sgd(RATE, momentum=0.5)
PER_WORKER = dj.delays.per_worker(AGES)
compensated_sgd = optax.chain(dj.compensate_delay(0.5), optax.sgd(RATE))

COMPOSITIONS = {
    "late": Composition(
        dj.delayed(
            dj.exchange.mean(optax.chain(ADAM, dj.scale_by_staleness(halving))), 3
        ),
        local=("[1].gradients.slots",),
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
        local=("[1].gradients.slots", "[1].inner_state.outbox"),
        optimizer=lambda: oracle.scaled(oracle.momentum(RATE, 0.5), halving),
        options=lambda: {"overlapped": True, **late_by(2)()},
    ),
    "a history behind the mean": Composition(
        dj.exchange.mean(dj.delayed(ADAM, 3)), options=late_by(3)
    ),
    "a delay a worker, overlapped": Composition(
        dj.delayed(
            dj.exchange.overlapped_mean(ADAM, weight=halving), PER_WORKER, max_delay=3
        ),
        local=(
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
        local=("[1].staleness", "[1].gradients.slots"),
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
        local=("[1].gradients.slots", "[1].inner_state.outbox"),
        optimizer=lambda: oracle.compensated(oracle.sgd(RATE), 0.5),
        options=lambda: {"overlapped": True, **late_by(2)()},
    ),
    "dropped": Composition(
        dj.delayed(
            dj.exchange.mean(dj.drop_stale(MOMENTUM, 1)),
            dj.delays.from_trace(TRACE),
            max_delay=3,
        ),
        local=("[1].gradients.slots",),
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
        local=("[1].staleness", "[1].gradients.slots", "[1].inner_state[0].trace"),
        optimizer=lambda: oracle.sgd(RATE),
        options=lambda: {
            "delay": delay_of_worker,
            "weight": halving,
            "before_mean": trace_before_mean(),
        },
    ),
}

# The mean in a group is fresh, that over groups late. A group is a worker of the twin.
TWO_LEVELS = {
    "across groups overlapped": Composition(
        dj.exchange.mean(
            dj.exchange.overlapped_mean(ADAM, axis_name="groups"), axis_name="members"
        ),
        local=("[1].outbox",),
        options=lambda: {"overlapped": True},
    ),
    "across groups in shares": Composition(
        dj.exchange.late_between_groups(ADAM, MEMBERS[1]),
        local=("[1].outbox",),
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
        local=("[1].staleness", "[1].gradients.slots"),
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


# The executions. All compositions of a table train in one program.


@functools.cache
def simulation(task, level, names):
    """The simulated workers, their state, and the batches [T, P, ...]."""
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
    """The state of several trainings: (parameters, state of the optimizer) of each."""
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
    """Trains with `pmap`, where each device has a whole state."""
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
    """The split after all steps, and the metrics of each step."""
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
