"""Adam in a rotated basis, compared with a loop in NumPy; and invariances.

In float64, in which the rounding of the first update is far below eps.
"""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax import pipelines, testing
from delayjax._src.testing import placing
from delayjax.delays import Layers
from tests.support.cases import shortened

UPDATES = 100
WIDE, TALL, SQUARE = (3, 4), (4, 3), (4, 4)


def rate(step):
    return 0.02 / (1 + jnp.asarray(step, float) / 50)  # a schedule


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def orthogonal(seed, n):
    return np.linalg.qr(drawn(seed, n, n))[0]


def loop(start, noise, *, sides="both", b1=0.9, b2=0.99, eps=1e-8, lam=0.1, every=10):
    """The matrix after each update; g = x + noise. Line by line as the published class.

    Except: if only columns are rotated, they are refreshed each `every` updates, too.
    """
    x, (rows, columns) = start, start.shape
    sizes = {"L": rows, "R": columns}
    if sides == "one":
        del sizes["R" if rows < columns else "L"]
    moment = {side: np.zeros((n, n)) for side, n in sizes.items()}
    q, m, v, xs = {"L": np.eye(rows), "R": np.eye(columns)}, 0.0, np.zeros_like(x), []
    for t in range(1, len(noise) + 1):
        g, eta = x + noise[t - 1], 0.02 / (1 + (t - 1) / 50)
        square = {"L": g @ g.T, "R": g.T @ g}
        for side in sizes:
            moment[side] = b2 * moment[side] + (1 - b2) * square[side]
            if t == 1:
                q[side] = np.linalg.eigh(moment[side])[1][:, ::-1]
            elif t % every == 0:
                order = np.argsort(-np.diag(q[side].T @ moment[side] @ q[side]))
                v = v[order] if side == "L" else v[:, order]
                q[side] = np.linalg.qr(moment[side] @ q[side][:, order])[0]
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (q["L"].T @ g @ q["R"]) ** 2
        u = (q["L"].T @ m @ q["R"]) / (np.sqrt(v) + eps)
        x = (1 - eta * lam) * x
        x = x - eta * np.sqrt(1 - b2**t) / (1 - b1**t) * q["L"] @ u @ q["R"].T
        xs.append(x)
    return np.array(xs)


def made(**options):
    options = {"b2": 0.99, "weight_decay": 0.1} | options
    return pipelines.rotated_adam(rate, **options)


def trained(tx, start, noise, point=lambda state, x: x):
    """The parameters after each update; g = x + noise, or at another point than x."""

    def step(carry, noise):
        x, state = carry
        grads = optax.tree.add(point(state, x), noise)
        updates, state = tx.update(grads, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    with jax.enable_x64():
        x = jax.tree.map(jnp.asarray, start)
        noise = jax.tree.map(jnp.asarray, noise)
        run = jax.jit(functools.partial(jax.lax.scan, step))
        return jax.tree.map(np.asarray, run((x, tx.init(x)), noise)[1])


# the first update divides rounding errors by eps: 1e-16 / 1e-8
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-7)


@pytest.mark.parametrize("shape", [WIDE, TALL, SQUARE])
@pytest.mark.parametrize("sides", ["both", "one"])
def test_a_run_is_the_loop(sides, shape):
    start, noise = drawn(1, *shape), drawn(2, UPDATES, *shape)
    expected = loop(start, noise, sides=sides)
    close(trained(made(sides=sides), start, noise), expected)


def test_all_numbers_are_those_of_the_loop():
    start, noise = drawn(1, *TALL), drawn(2, UPDATES, *TALL)
    expected = loop(start, noise, b1=0.5, b2=0.8, eps=0.3, lam=2.0, every=3)
    others = made(b1=0.5, b2=0.8, eps=0.3, weight_decay=2.0, refresh_every=3)
    close(trained(others, start, noise), expected)


def test_the_defaults_are_those_of_the_published_runs_but_for_weight_decay():
    start, noise = drawn(1, *TALL), drawn(2, UPDATES, *TALL)
    expected = loop(start, noise, b1=0.9, b2=0.999, eps=1e-8, lam=0.0, every=10)
    close(trained(pipelines.rotated_adam(rate), start, noise), expected)


# the basis


def test_where_the_basis_is_the_coordinates_it_is_adam_with_eps_before_the_correction():
    """Gradients are diagonal; the order of their sizes changes: v is sorted with Q."""
    sizes = np.where(np.arange(UPDATES)[:, None] < 40, [3.0, 1.0, 0.2], [0.1, 0.5, 4.0])
    grads = drawn(3, UPDATES, 3) * sizes
    tx = pipelines.rotated_adam(1.0, b2=0.9, eps=0.1, refresh_every=4)
    diagonals = np.stack([np.diag(g) for g in grads])

    def step(state, g):
        updates, state = tx.update(g, state)
        return state, (updates, state.bases[0].basis)

    with jax.enable_x64():
        state = tx.init(jnp.zeros((3, 3)))
        updates, basis = jax.lax.scan(step, state, jnp.asarray(diagonals))[1]
    m = v = np.zeros(3)
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g**2
        scale = np.sqrt(1 - 0.9**t) / (1 - 0.9**t)
        close(updates[t - 1], -scale * np.diag(m / (np.sqrt(v) + 0.1)))
    assert np.abs(basis[0]).argmax(0).tolist() == [0, 1, 2]  # later it is sorted again
    assert np.abs(basis[-1]).argmax(0).tolist() == [2, 1, 0]


def test_the_basis_changes_where_it_is_refreshed_alone():
    """With only columns rotated, too, where the published program always changes it."""
    noise, tx = drawn(1, 12, *TALL), made(sides="one", refresh_every=5)

    def step(state, g):
        _, state = tx.update(g, state, jnp.zeros(TALL))
        return state, state.bases[1].basis

    bases = jax.lax.scan(step, tx.init(jnp.zeros(TALL)), jnp.asarray(noise))[1]
    changed = np.abs(np.diff(np.asarray(bases), axis=0)).max((1, 2)) > 1e-3
    assert (np.flatnonzero(changed) + 2).tolist() == [5, 10]


def test_a_fixed_moment_leads_to_its_eigenvectors():
    """Orthogonal iteration: Q^T L Q becomes diagonal, with the largest entry first."""
    vectors = orthogonal(4, 3)
    moment = vectors @ np.diag([1.0, 9.0, 4.0]) @ vectors.T
    root = vectors @ np.diag([1.0, 3.0, 2.0]) @ vectors.T  # L is the mean of g g^T
    tx = made(b2=0.0, refresh_every=1)
    with jax.enable_x64():
        state = tx.init(jnp.zeros((3, 3)))._replace(step=jnp.int32(1))
        update = jax.jit(tx.update)
        for _ in range(60):
            _, state = update(jnp.asarray(root), state, jnp.zeros((3, 3)))
    for side in jax.tree.map(np.asarray, state.bases):
        close(side.second_moment, moment)
        close(side.basis.T @ moment @ side.basis, np.diag([9.0, 4.0, 1.0]))


def conditions(jaxpr, inside=False):
    """(name, whether it is inside of a condition) of each operation."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, inside
        deeper = inside or equation.primitive.name == "cond"
        for inner in jaxprs_in_params(equation.params):
            yield from conditions(inner, deeper)


def test_eigenvectors_and_factors_cost_nothing_between_refreshes():
    x, tx = jnp.zeros((2, *SQUARE)), made(is_rotated=True)
    jaxpr = jax.make_jaxpr(tx.update)(x, tx.init(x), x)
    result = set(conditions(jaxpr.jaxpr))
    costly = {name for name, _ in result} & {
        "eigh",
        "geqrf",
        "qr",
        "householder_product",
    }
    assert costly
    assert {inside for name, inside in result if name in costly} == {True}


# rotations


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_rotated_rows_and_columns_have_rotated_updates(seed):
    """x -> U x V^T, and the same for gradients: coordinates do not matter."""
    start, noise = drawn(seed, *TALL), drawn(seed + 9, UPDATES, *TALL)
    u, v = orthogonal(seed, 4), orthogonal(seed + 1, 3)
    xs = trained(made(), start, noise)
    turned = trained(made(), u @ start @ v.T, u @ noise @ v.T)
    np.testing.assert_allclose(turned, u @ xs @ v.T, rtol=0, atol=1e-5)
    # one side: only the columns of a tall matrix
    xs = trained(made(sides="one"), start, noise)
    turned = trained(made(sides="one"), start @ v.T, noise @ v.T)
    np.testing.assert_allclose(turned, xs @ v.T, rtol=0, atol=1e-5)
    turned = trained(made(sides="one"), u @ start, u @ noise)
    assert np.abs(turned - u @ xs).max() > 1e-2


def test_complex_matrices_are_rotated_by_unitary_ones():
    """The same for complex matrices; a transpose in place of an adjoint would fail."""

    def both(seed, *shape):
        return drawn(seed, *shape) + 1j * drawn(seed + 1, *shape)

    start, noise = both(1, *TALL), both(3, UPDATES, *TALL)
    u, v = (np.linalg.qr(both(seed, n, n))[0] for seed, n in ((5, 4), (6, 3)))
    xs = trained(made(), start, noise)
    turned = trained(made(), u @ start @ v, u @ noise @ v)
    np.testing.assert_allclose(turned, u @ xs @ v, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("delay", "harder"), [(0, 3), (8, 10)])
def test_a_turned_quadratic_is_as_easy_as_an_aligned_one(delay, harder):
    """Eight problems with curvatures of 0.01 to 10, and noise in proportion.

    Adam needs coordinates along the axes of the curvature, above all with delay.
    """
    problems, updates, n = 8, 400, 4
    scale = 10.0 ** -np.linspace(0.0, 1.5, n)
    curvature = 10 * np.outer(scale, scale)
    starts, noise = drawn(1, problems, n, n), drawn(2, problems, updates, n, n)
    turns = np.linalg.qr(drawn(3, 2, problems, n, n))[0]
    none = np.broadcast_to(np.eye(n), turns.shape)
    falling = optax.linear_schedule(0.03, 0.0, updates)

    def loss(inner, turns):
        tx = dj.delayed(inner, delay)

        def last(u, v, start, noise):
            def step(carry, noise):
                x, state = carry
                slope = curvature * (u.T @ x @ v) + 0.1 * np.sqrt(curvature) * noise
                moves, state = tx.update(u @ slope @ v.T, state, x)
                x = x + moves
                return (x, state), jnp.sum(curvature * (u.T @ x @ v) ** 2) / 2

            x = u @ start @ v.T
            return jax.lax.scan(step, (x, tx.init(x)), noise)[1][-40:].mean()

        with jax.enable_x64():
            return float(jax.jit(jax.vmap(last))(*turns, starts, noise).mean())

    adam = optax.adam(falling, b2=0.99)
    rotated = pipelines.rotated_adam(falling, b2=0.99)
    assert loss(adam, turns) > harder * loss(adam, none)
    assert loss(rotated, turns) < 2 * loss(adam, none)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_side_lies_on_the_devices_as_its_rows_or_columns_do(kind, axis):
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(kind,))
    spec = P(*("fsdp" if i == axis else None for i in range(2)))
    start, noise = drawn(1, 8, 4), drawn(2, 5, 8, 4)
    tx = pipelines.rotated_adam(0.1, eps=0.1, refresh_every=2)

    def place(x):
        return jax.device_put(jnp.float32(x), NamedSharding(mesh, spec))

    def parts(state):
        return [tuple(map(placing.shard, side)) for side in state.bases]

    x = place(start)
    state, update = tx.init(x), jax.jit(tx.update)
    left, right = (2, 8) if axis == 0 else (8, 8), (4, 1) if axis == 1 else (4, 4)
    wanted = [(list(left),) * 2, (list(right),) * 2]
    assert parts(state) == parts(jax.jit(tx.init)(x)) == wanted
    for g in noise:
        updates, state = update(place(g), state, x)
    assert parts(state) == wanted
    assert placing.shard(updates) == placing.shard(x)


# which leaves are rotated


def test_the_default_rotates_matrices_and_other_leaves_have_adamw():
    shapes = {"matrix": TALL, "bias": (3,), "kernel": (2, 3, 2), "scale": ()}
    start = {name: drawn(1, *shape) for name, shape in shapes.items()}
    noise = {name: drawn(2, UPDATES, *shape) for name, shape in shapes.items()}
    ours = trained(made(eps=0.1), start, noise)
    adamw = optax.adamw(rate, b2=0.99, eps=0.1, weight_decay=0.1)
    theirs = trained(adamw, start, noise)
    for name in ("bias", "kernel", "scale"):
        close(ours[name], theirs[name])
    close(ours["matrix"], loop(start["matrix"], noise["matrix"], eps=0.1))


CHOICES = {
    "a function": lambda path, leaf: path == "block/attention" and leaf.ndim == 2,
    "a prefix": {"block": {"attention": True, "embedding": False}, "head": False},
    "a bool": False,
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_caller_says_which_leaves_are_rotated(name):
    params = {
        "block": {"attention": jnp.zeros((3, 2)), "embedding": jnp.zeros((9, 2))},
        "head": (jnp.zeros((2, 9)), jnp.zeros(9)),
    }
    state = made(is_rotated=CHOICES[name]).init(params)
    sizes = [leaf.shape for leaf in jax.tree.leaves(state.bases)]
    rotated = [(3, 3), (3, 3), (2, 2), (2, 2)]  # L and Q_L, R and Q_R
    assert sizes == ([] if name == "a bool" else rotated)


def check_layers(tx):
    """Inside of `Layers` and `predict_weights`, each layer has its own delay."""
    delays = (2, 0, 2)
    start, noise = drawn(1, 3, *TALL), drawn(2, 25, 3, *TALL)

    def run(delay, start, noise):
        late = dj.predict_weights(dj.delayed(tx, delay), delay)
        return trained(late, start, noise, dj.gradient_params)

    whole = run(Layers(delays), start, noise)
    for layer, delay in enumerate(delays):
        close(whole[:, layer], run(delay, start[layer], noise[:, layer]))


@pytest.mark.parametrize("sides", ["both", "one"])
def test_a_stack_of_layers_is_its_layers(sides):
    check_layers(made(sides=sides, is_rotated=True, refresh_every=4))


# types and errors


@pytest.mark.long
def test_both_sides_keep_the_contract_of_a_transformation():
    """With matrices of full rank from the start, and an eps above rounding errors."""
    shapes = {"square": (3, 3), "stack": (4, 3, 3), "bias": (4,)}
    params = {
        name: jnp.asarray(drawn(0, *shape), jnp.float32)
        for name, shape in shapes.items()
    }
    tx = pipelines.rotated_adam(
        jnp.float32(0.1),
        eps=jnp.float32(0.1),
        refresh_every=jnp.int32(2),
        is_rotated=lambda path, leaf: leaf.ndim > 1,
    )
    devices = jax.devices()[:4]
    testing.check(tx, params, devices=devices, tolerance=1e-4).require()


@pytest.mark.parametrize("sides", ["both", "one"])
def test_parameters_in_bfloat16_have_states_and_steps_in_float32(sides):
    tx = made(sides=sides, eps=0.1)
    narrow = jnp.asarray(drawn(1, *TALL), jnp.bfloat16)

    def twice(dtype):
        x, state = narrow.astype(dtype), tx.init(narrow.astype(dtype))
        for factor in (1.0, -0.5):
            updates, state = tx.update(factor * x, state, x)
        return updates, state

    updates, state = twice(jnp.bfloat16)
    exact, of_wide = twice(jnp.float32)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_array_equal(updates, exact.astype(jnp.bfloat16))
    jax.tree.map(np.testing.assert_array_equal, state, of_wide)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"sides": "left"}, '`sides` must be "both" or "one", got \'left\''),
        ({"is_rotated": True}, r"`is_rotated` must be False .* shape \[3\] at \['b'\]"),
        ({"is_rotated": {"c": True}}, "`is_rotated` must be one value or a prefix"),
    ],
)
def test_bad_arguments_are_refused(bad, word):
    with pytest.raises(ValueError, match=word):
        pipelines.rotated_adam(**{"learning_rate": 0.1} | bad).init({"b": jnp.ones(3)})


def test_an_answer_that_is_no_bool_is_refused():
    tx = pipelines.rotated_adam(0.1, is_rotated=lambda path, leaf: None)
    with pytest.raises(
        TypeError, match=r"True or False of each leaf, got None at \['b"
    ):
        tx.init({"b": jnp.ones((2, 2))})


# many factorizations at once


SEVERAL_BATCHES = """
import jax, jax.numpy as jnp
from delayjax import pipelines

tx = pipelines.rotated_adam(0.1, refresh_every=1, is_rotated=True)
grads = [jax.random.normal(jax.random.key(n), (300, 16, 16)) for n in range(8)]
state, update = tx.init(grads), jax.jit(tx.update)
for _ in range(60):
    _, state = jax.block_until_ready(update(grads, state))
"""


@pytest.mark.runs  # it guards against a deadlock of XLA, in a process of its own
def test_many_batches_are_factored_in_one_program():
    # in a new process, as a failure here would wait forever
    subprocess.run([sys.executable, "-c", SEVERAL_BATCHES], check=True, timeout=120)
