import functools
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
    STEPS,
    assert_follows,
    gradient,
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions, program

LATE = np.random.default_rng(7).integers(0, 4, (STEPS, WORKERS)) % 3  # 0, 1, 2


def sgd():
    return optax.sgd(ETA)


def group_of(rank, t, workers, size):
    """The ranks that differ from `rank` in the step's bits alone."""
    bits, group = workers.bit_length() - 1, size.bit_length() - 1
    free = [(t * group + k) % bits for k in range(group)]
    fixed = sum(1 << b for b in range(bits) if b not in free)
    return [j for j in range(workers) if (j & fixed) == (rank & fixed)]


def wait_avoiding(*, size, period, late=None, momentum=0.0):
    """D.10, worker by worker, with a list of everything each has ever shipped."""
    x, v = replicas(), np.zeros((WORKERS, 5))
    shipped, xs = [x.copy()], []
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        moved = x + v
        shipped.append(moved)
        x = np.empty_like(moved)
        for i in range(WORKERS):
            if (t + 1) % period == 0:
                x[i] = moved.mean(axis=0)
                continue
            group = group_of(i, t, WORKERS, size)
            ages = np.zeros(WORKERS, int) if late is None else late[t]
            total = sum(shipped[max(0, t + 1 - ages[j])][j] for j in group)
            if ages[i]:
                x[i] = (total + moved[i]) / (size + 1)
            else:
                x[i] = total / size
        xs.append(x)
    return np.stack(xs)


METHODS = {
    "groups of two": (
        lambda: averaging.wagma(sgd()),
        lambda: wait_avoiding(size=2, period=11),
    ),
    "groups of four, momentum": (
        lambda: averaging.wagma(optax.sgd(ETA, momentum=0.9), group_size=4, period=5),
        lambda: wait_avoiding(size=4, period=5, momentum=0.9),
    ),
    "late, by a table": (
        lambda: averaging.wagma(
            sgd(), period=7, lateness=dj.delays.per_worker(LATE), max_lateness=2
        ),
        lambda: wait_avoiding(size=2, period=7, late=LATE),
    ),
    "late, at most a step": (
        lambda: averaging.wagma(sgd(), lateness=dj.delays.per_worker(LATE)),
        lambda: wait_avoiding(size=2, period=11, late=np.minimum(LATE, 1)),
    ),
    "late, by a bool": (
        lambda: averaging.wagma(
            sgd(), lateness=lambda t: (jax.lax.axis_index("workers") + t) % 3 == 0
        ),
        lambda: wait_avoiding(
            size=2,
            period=11,
            late=(np.add.outer(np.arange(STEPS), np.arange(WORKERS)) % 3 == 0) * 1,
        ),
    ),
    "period one": (
        lambda: averaging.wagma(sgd(), period=1),
        lambda: wait_avoiding(size=2, period=1),
    ),
}


@functools.cache
def trained(execution):
    return train(execution, {name: make for name, (make, _) in METHODS.items()})


@executions
@pytest.mark.parametrize("name", METHODS)
def test_models_follow_the_paper_s_loop(execution, name):
    xs, _ = trained(execution)[name]
    assert_follows(xs, METHODS[name][1]())


def exchanges(workers, steps, start, moved=0.0, **options):
    """x [T, P, n] where each worker first steps by `moved` of its start, in float64."""
    with jax.enable_x64(True):
        tx = averaging.wagma(optax.sgd(1.0), **options)

        def run(first):
            def step(carry, _):
                x, state = carry
                updates, state = tx.update(-moved * first, state, x)
                return (x + updates, state), x + updates

            return jax.lax.scan(step, (first, tx.init(first)), length=steps)[1]

        xs = jax.jit(jax.vmap(run, axis_name="workers"))(jnp.asarray(start))
        return np.moveaxis(np.asarray(xs), 0, 1)


@pytest.mark.parametrize(
    ("workers", "size", "steps"),
    [(4, 2, 2), (16, 4, 2), (64, 8, 2), (64, 4, 3), (64, 2, 6), (8, 8, 1)],
)
def test_all_models_are_equal_after_log_s_of_p_steps(workers, size, steps):
    start = np.random.default_rng(1).normal(size=(workers, 3))
    xs = exchanges(workers, steps, start, group_size=size, period=1000)
    expected = np.broadcast_to(start.mean(axis=0), xs[-1].shape)
    np.testing.assert_allclose(xs[-1], expected, rtol=1e-13, atol=1e-14)
    if steps > 1:
        assert np.ptp(xs[-2], axis=0).min() > 1e-3


@pytest.mark.parametrize(("workers", "size"), [(8, 4), (32, 8), (2, 2), (16, 8)])
def test_bits_that_do_not_divide_wrap_around(workers, size):
    """P = 8, S = 4: bits 0 and 1, then 2 and 0, then 1 and 2."""
    x = start = np.random.default_rng(1).normal(size=(workers, 3))
    # without steps all models would be equal before the last groups
    xs = exchanges(workers, 7, start, 0.5, group_size=size, period=1000)
    for t, seen in enumerate(xs):
        x = x + 0.5 * start
        x = np.stack(
            [x[group_of(i, t, workers, size)].mean(axis=0) for i in range(workers)]
        )
        np.testing.assert_allclose(seen, x, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("workers", "size"), [(1, 1), (2, 2), (4, 2), (8, 4), (64, 8)])
def test_groups_are_the_root_of_all_or_the_next_power_of_two(workers, size):
    start = np.random.default_rng(1).normal(size=(workers, 3))
    default = exchanges(workers, 3, start, period=1000)
    given = exchanges(workers, 3, start, group_size=size, period=1000)
    np.testing.assert_array_equal(default, given)


def test_the_workers_mean_is_conserved_on_time_and_not_if_some_are_late():
    start = np.random.default_rng(1).normal(size=(8, 3))
    xs = exchanges(8, 20, start)
    expected = np.broadcast_to(start.mean(axis=0), (20, 3))
    np.testing.assert_allclose(xs.mean(axis=1), expected, rtol=1e-12, atol=1e-13)
    late = dj.delays.per_worker(np.random.default_rng(2).integers(0, 2, (20, 8)))
    xs = exchanges(8, 20, start, lateness=late)
    assert np.abs(xs.mean(axis=1)[-1] - start.mean(axis=0)).max() > 1e-3


def test_a_function_for_partial_means_says_who_is_late():
    seconds = np.random.default_rng(3).random((20, 8))
    in_time = dj.exchange.solo(seconds)
    late = seconds > seconds.min(axis=1, keepdims=True)
    start = np.random.default_rng(1).normal(size=(8, 3))
    ours, theirs = (
        exchanges(8, 20, start, lateness=lateness)
        for lateness in (lambda t: ~in_time(t), dj.delays.per_worker(late.astype(int)))
    )
    # two programs: XLA may contract their means differently, over 20 steps
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_all_models_are_equal_after_a_global_average():
    late = dj.delays.per_worker(np.random.default_rng(2).integers(0, 2, (20, 8)))
    start = np.random.default_rng(1).normal(size=(8, 3))
    xs = exchanges(8, 12, start, lateness=late, period=4)
    apart = np.ptp(xs, axis=1).max(axis=-1)
    assert (apart[3::4] < 1e-15).all()
    assert apart[:3].min() > 1e-3


@pytest.mark.parametrize(("workers", "size"), [(16, 4), (64, 8), (16, 16)])
def test_disagreement_is_that_of_the_paper_s_noise_model(workers, size):
    """Noise of variance s^2 a worker and step: s^2 (1/S - 1/P) remains (D.11)."""
    deviation, steps, entries = 0.5, 40, 500
    tx = averaging.wagma(optax.sgd(1.0), group_size=size, period=10**6)

    def run(noise):
        def step(carry, noise):
            x, state = carry
            updates, state = tx.update(-noise, state, x)
            x = x + updates
            apart = jnp.sum((x - jax.lax.pmean(x, "workers")) ** 2)
            return (x, state), jax.lax.pmean(apart, "workers")

        zeros = jnp.zeros(entries)
        return jax.lax.scan(step, (zeros, tx.init(zeros)), noise)[1]

    noise = np.random.default_rng(0).normal(size=(workers, steps, entries))
    noise = jnp.asarray(deviation * noise, jnp.float32)
    apart = jax.jit(jax.vmap(run, axis_name="workers"))(noise)[0]
    settled = np.asarray(apart[4:], np.float64) / entries
    expected = deviation**2 * (1 / size - 1 / workers)
    # means over that many steps, coordinates and groups apart
    freedom = entries * len(settled) * max(workers / size - 1, 1)
    tolerance = 4 * np.sqrt(2 / freedom)
    np.testing.assert_allclose(settled.mean(), expected, rtol=tolerance, atol=1e-6)


def computations(text):
    """{name: body} of a compiled module's text."""
    found = re.split(r"^(?=(?:ENTRY )?%?[\w.\-]+ \(.*\{$)", text, flags=re.MULTILINE)
    return {
        re.match(r"(?:ENTRY )?%?([\w.\-]+)", part)[1]: part for part in found if part
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.wagma(sgd(), group_size=3),
            ValueError,
            "`group_size` must be a power of two, got 3",
        ),
        (
            lambda: averaging.wagma(sgd(), group_size=0),
            ValueError,
            "`group_size` must be at least 1, got 0",
        ),
        (lambda: averaging.wagma(sgd(), period=0), ValueError, "`period` must be at"),
        (
            lambda: averaging.wagma(sgd(), max_lateness=0),
            ValueError,
            "`max_lateness` must be at least 1, got 0",
        ),
        (
            lambda: dj.delays.per_worker([[0.5]]),
            ValueError,
            "`delays` must be a non-negative integer number",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("workers", "options", "error", "message"),
    [
        (6, {}, ValueError, "must be a power of two, got 6"),
        (
            4,
            {"group_size": 8},
            ValueError,
            "`group_size` must be at most the number of workers, 4, got 8",
        ),
        (
            4,
            {"lateness": dj.delays.per_worker([[0, 1]])},
            ValueError,
            "`delays` must have one column for each of the 4 workers",
        ),
        (
            4,
            {"lateness": lambda step: 0.5},
            TypeError,
            r"`lateness\(step\)` must be an integer or a bool",
        ),
        (
            4,
            {"lateness": lambda step: jnp.zeros(4, int)},
            ValueError,
            r"`lateness\(step\)` must be a scalar",
        ),
    ],
)
def test_workers_that_a_butterfly_cannot_serve_are_refused(
    workers, options, error, message
):
    with pytest.raises(error, match=message):
        exchanges(workers, 1, np.zeros((workers, 2)), **options)
