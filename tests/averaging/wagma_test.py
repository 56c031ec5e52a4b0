import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    SGD,
    STEPS,
    assert_follows,
    path,
    replicas,
    seen_of,
    train,
)
from tests.exchange.driving import WORKERS, mostly_simulated, program

LATE = np.random.default_rng(7).integers(0, 4, (STEPS, WORKERS)) % 3  # 0, 1, 2


def group_of(rank, t, workers, size):
    """The ranks that differ from `rank` in the step's bits alone."""
    bits, group = workers.bit_length() - 1, size.bit_length() - 1
    free = [(t * group + k) % bits for k in range(group)]
    fixed = sum(1 << b for b in range(bits) if b not in free)
    return [j for j in range(workers) if (j & fixed) == (rank & fixed)]


def group_matrix(t, workers, size):
    """W of a step on time: the mean of each group."""
    matrix = np.zeros((workers, workers))
    for i in range(workers):
        matrix[i, group_of(i, t, workers, size)] = 1 / size
    return matrix


def wait_avoiding(*, size=2, period=11, late=None, momentum=0.0):
    """D.10, worker by worker, with a list of everything each has ever shipped."""
    shipped = [replicas()]

    def mix(t, x, v):
        moved = x + v
        shipped.append(moved)
        if (t + 1) % period == 0:
            return np.tile(moved.mean(axis=0), (WORKERS, 1))
        ages = np.zeros(WORKERS, int) if late is None else late[t]
        x = np.empty_like(moved)
        for i in range(WORKERS):
            group = group_of(i, t, WORKERS, size)
            total = sum(shipped[max(0, t + 1 - ages[j])][j] for j in group)
            x[i] = (total + moved[i]) / (size + 1) if ages[i] else total / size
        return x

    return path(mix, momentum=momentum)


PER_WORKER = dj.delays.per_worker(LATE)
IN_TURNS = np.add.outer(np.arange(STEPS), np.arange(WORKERS)) % 3 == 0
METHODS = {
    "groups of two": (averaging.wagma(SGD), {}),
    "groups of four, momentum": (
        averaging.wagma(optax.sgd(ETA, momentum=0.9), group_size=4, period=5),
        {"size": 4, "period": 5, "momentum": 0.9},
    ),
    "late, by a table": (
        averaging.wagma(SGD, period=7, lateness=PER_WORKER, max_lateness=2),
        {"period": 7, "late": LATE},
    ),
    "late, at most a step": (
        averaging.wagma(SGD, lateness=PER_WORKER),
        {"late": np.minimum(LATE, 1)},
    ),
    "late, by a bool": (
        averaging.wagma(
            SGD, lateness=lambda t: (jax.lax.axis_index("workers") + t) % 3 == 0
        ),
        {"late": IN_TURNS * 1},
    ),
    "period one": (averaging.wagma(SGD, period=1), {"period": 1}),
}


@mostly_simulated
def test_models_follow_the_paper_s_loop(execution):
    trained = train(execution, {name: tx for name, (tx, _) in METHODS.items()})
    for name, (_, options) in METHODS.items():
        assert_follows(trained[name][0], wait_avoiding(**options), name)


def exchanges(workers, steps, moved=0.0, **options):
    """A start [P, 3], and x [T, P, 3] after steps of `moved` of the start each."""
    start = np.random.default_rng(1).normal(size=(workers, 3))
    tx = averaging.wagma(optax.sgd(1.0), period=1000, **options)
    return start, seen_of({"": tx}, start, -moved * np.tile(start, (steps, 1, 1)))[""]


@pytest.mark.parametrize(
    ("workers", "size"), [(2, 2), (8, 4), (16, 8), (64, 2), (64, 8)]
)
def test_groups_of_any_size_take_the_next_bits_and_wrap_around(workers, size):
    """P = 8, S = 4: bits 0 and 1, then 2 and 0, then 1 and 2."""
    # without steps all models would be equal before the last groups
    start, xs = exchanges(workers, 7, 0.5, group_size=size)
    x = start
    for t, seen in enumerate(xs):
        x = group_matrix(t, workers, size) @ (x + 0.5 * start)
        np.testing.assert_allclose(seen, x, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("workers", "size", "steps"),
    [(4, 2, 2), (16, 4, 2), (64, 8, 2), (64, 4, 3), (64, 2, 6), (8, 8, 1)],
)
def test_all_models_are_equal_after_log_s_of_p_steps(workers, size, steps):
    """And not before, by the matrices that the models follow."""
    product = np.eye(workers)
    for t in range(steps):
        assert np.ptp(product, axis=0).min() > 1e-3
        product = group_matrix(t, workers, size) @ product
    np.testing.assert_allclose(product, np.full_like(product, 1 / workers), rtol=1e-13)


@pytest.mark.parametrize(("workers", "size"), [(1, 1), (2, 2), (4, 2), (8, 4), (64, 8)])
def test_groups_are_the_root_of_all_or_the_next_power_of_two(workers, size):
    _, default = exchanges(workers, 3)
    _, given = exchanges(workers, 3, group_size=size)
    np.testing.assert_array_equal(default, given)


def computations(text):
    """{name: body} of a compiled module's text."""
    result = re.split(r"^(?=(?:ENTRY )?%?[\w.\-]+ \(.*\{$)", text, flags=re.MULTILINE)
    return {
        re.match(r"(?:ENTRY )?%?([\w.\-]+)", part)[1]: part for part in result if part
    }


def reached(bodies, name):
    """The text of a computation and of all that it calls."""
    called = re.findall(r"(?:to_apply|calls|body)=%?([\w.\-]+)", bodies[name])
    return bodies[name] + "".join(reached(bodies, c) for c in set(called))


def test_a_step_on_devices_sends_within_groups_and_to_all_at_the_period_s_end():
    params = {"w": jnp.zeros((8, 4)), "b": jnp.zeros(3)}
    tx = averaging.wagma(optax.sgd(0.1), lateness=dj.delays.per_worker(LATE))
    text = program(tx, params, shared=False).as_text()
    bodies = computations(text)
    entry = next(n for n, b in bodies.items() if b.startswith("ENTRY"))
    names = re.search(r"branch_computations=\{([^}]*)\}", text)[1]
    branches = [reached(bodies, n.strip(" %")) for n in names.split(",")]
    outside = reached(bodies, entry)
    assert not re.search(r"all-reduce|collective-permute|all-gather", outside)
    for bit, branch in enumerate(branches[:-1]):
        pairs = ",".join(f"{{{i},{i ^ (1 << bit)}}}" for i in range(WORKERS))
        sent = re.findall(r"source_target_pairs=\{(\{.*?\})\}", branch)
        assert sent == [pairs] * len(params)
        assert not re.search(r"all-reduce|all-gather|all-to-all", branch)
    assert len(branches) == 3
    assert "all-reduce" in branches[-1]
    assert "collective-permute" not in branches[-1]
