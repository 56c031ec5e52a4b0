import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

TAUS = range(51)

# law, the same as a formula of papers' section C.2
LAWS = {
    "inverse": (dj.modulation.inverse, lambda tau: 1 / max(1, tau)),
    "polynomial(0.5)": (dj.modulation.polynomial(0.5), lambda tau: (1 + tau) ** -0.5),
    "polynomial(1)": (dj.modulation.polynomial(1.0), lambda tau: 1 / (1 + tau)),
    "polynomial(0)": (dj.modulation.polynomial(0.0), lambda tau: 1.0),
    "hinge(10, 4)": (
        dj.modulation.hinge(10.0, 4),
        lambda tau: 1 if tau <= 4 else 1 / (10 * (tau - 4) + 1),
    ),
    "hinge(0.5, 0)": (
        dj.modulation.hinge(0.5, 0),
        lambda tau: 1 / (0.5 * tau + 1),
    ),
    "exponential(0.2)": (
        dj.modulation.exponential(0.2),
        lambda tau: np.exp(-0.2 * tau),
    ),
    "capped(4)": (dj.modulation.capped(4), lambda tau: min(1, 4 / max(1, tau))),
    "capped(1)": (dj.modulation.capped(1), lambda tau: min(1, 1 / max(1, tau))),
    # Koloskova et al. at L = 2, eta = 1/16; FADAS at eta = 1/16: 1 up to 16 anyway
    "delay_adaptive, Koloskova": (
        dj.modulation.delay_adaptive(1 / 16, 4, bound=1 / (4 * 2.0)),
        lambda tau: 1 if tau <= 4 else min(1, 1 / (4 * 2.0 * tau * (1 / 16))),
    ),
    "delay_adaptive, FADAS": (
        dj.modulation.delay_adaptive(1 / 16, 4),
        lambda tau: (1 / 16 if tau <= 4 else min(1 / 16, 1 / tau)) / (1 / 16),
    ),
}


def sgd_with_law(grad, start, staleness, factor, learning_rate):
    """x_{t+1} = x_t - eta s(tau) g(x_{t-tau}), a list of iterates."""
    xs = [start]
    for t, tau in enumerate(staleness):
        xs.append(xs[t] - learning_rate * factor(tau) * grad(xs[t - tau]))
    return xs[1:]


def dropping_momentum(gradients, staleness, bound, learning_rate, momentum):
    """Momentum that a dropped gradient doesn't reach: updates, velocities, drops."""
    velocity, dropped = 0.0, 0
    updates, velocities, drops = [], [], []
    for g, tau in zip(gradients, staleness, strict=True):
        if tau > bound:
            dropped += 1
            updates.append(0.0)
        else:
            velocity = momentum * velocity + g
            updates.append(-learning_rate * velocity)
        velocities.append(velocity)
        drops.append(dropped)
    return updates, velocities, drops


@pytest.mark.parametrize("name", LAWS)
def test_law_is_its_formula(name):
    law, formula = LAWS[name]
    factors = jax.vmap(law)(jnp.arange(len(TAUS)))
    # a few roundings of float32
    np.testing.assert_allclose(factors, [formula(tau) for tau in TAUS], rtol=1e-6)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_takes_the_mean_staleness_of_several_gradients(name):
    law, formula = LAWS[name]
    means = np.arange(40, dtype=np.float32) / 4 + 0.25
    tx = dj.scale_by_staleness(law)

    def scale(mean):
        return tx.update(jnp.ones(()), tx.init(None), staleness=mean)[0]

    factors = jax.vmap(scale)(means)
    np.testing.assert_allclose(factors, [formula(mean) for mean in means], rtol=1e-6)


@pytest.mark.parametrize("concurrency", [0, 3, 40])
def test_delay_adaptive_without_a_full_part_is_capped(concurrency):
    """bound / eta = P: it is `capped(P)`, but for the full steps up to tau_C."""
    adaptive = dj.modulation.delay_adaptive(0.5, concurrency, bound=4 * 0.5)
    capped = dj.modulation.capped(4)
    for tau in TAUS:
        assert adaptive(tau) == (1 if tau <= concurrency else capped(tau))


@pytest.mark.parametrize("name", LAWS)
def test_a_fresh_gradient_is_left_alone_bitwise(name):
    law, _ = LAWS[name]
    updates = jnp.array([0.3, -1.7, 1e-20])
    tx = dj.scale_by_staleness(law)
    scaled, _ = tx.update(updates, tx.init(updates), staleness=0)
    np.testing.assert_array_equal(scaled, updates)


@pytest.mark.parametrize("name", LAWS)
def test_law_behind_sgd_scales_the_learning_rate(name):
    law, formula = LAWS[name]
    staleness = [min(t, (5 * t * t + t) % 7) for t in range(30)]
    curvature = np.array([0.25, 1.0], np.float32)
    start = np.array([1.0, -2.0], np.float32)
    tx = dj.delayed(
        optax.chain(optax.sgd(0.1), dj.scale_by_staleness(law)),
        dj.delays.from_trace(staleness),
        max_delay=6,
    )

    @jax.jit
    def step(carry, _):
        x, state = carry
        updates, state = tx.update(curvature * x, state)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    x = jnp.asarray(start)
    _, ours = jax.lax.scan(step, (x, tx.init(x)), length=len(staleness))
    theirs = sgd_with_law(lambda x: curvature * x, start, staleness, formula, 0.1)
    # thirty steps' rounding of float32
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_a_strongly_typed_law_keeps_bfloat16_momentum_in_a_scan():
    def law(staleness):
        return 1 / (1 + staleness.astype(jnp.float32))

    tx = dj.delayed(optax.chain(dj.scale_by_staleness(law), optax.trace(0.5)), 2)
    params = jnp.ones(3, jnp.bfloat16)

    def step(carry, _):
        updates, state = tx.update(params, carry[1])
        return (updates, state), None

    # scan refuses a carry whose type changes
    (updates, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=3)
    assert updates.dtype == jnp.bfloat16
    # weights 1, 1/2, 1/3 and momentum 1/2; bfloat16 keeps 8 bits
    np.testing.assert_allclose(
        updates.astype(jnp.float32), 1 / 4 + 1 / 4 + 1 / 3, rtol=2**-7
    )


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (dj.modulation.polynomial, ([0.0, 0.5, 2.0],)),
        (dj.modulation.hinge, ([0.5, 10.0, 1.0], [0, 4, 20])),
        (dj.modulation.exponential, ([0.0, 0.2, 1.0],)),
        (dj.modulation.capped, ([1, 4, 20],)),
        (dj.modulation.delay_adaptive, ([0.1, 0.5, 2.0], [0, 4, 8])),
    ],
)
def test_a_grid_of_law_parameters_is_one_program(make, values):
    updates = jnp.array([1.0, -3.0])

    def scale(*parameters):
        tx = dj.scale_by_staleness(make(*parameters))
        return tx.update(updates, tx.init(updates), staleness=5)[0]

    together = jax.vmap(scale)(*map(jnp.asarray, values))
    apart = [scale(*parameters) for parameters in zip(*values, strict=True)]
    np.testing.assert_allclose(together, jnp.stack(apart), rtol=1e-6)


def test_a_staleness_for_each_leaf_scales_leaf_by_leaf():
    updates = {"w": jnp.ones(2), "b": {"x": jnp.ones(()), "y": jnp.ones(3)}}
    tx = dj.scale_by_staleness(dj.modulation.inverse)
    staleness = {"w": 2, "b": {"x": jnp.int32(4), "y": 8}}
    scaled, _ = tx.update(updates, tx.init(updates), staleness=staleness)
    assert scaled["w"].tolist() == [1 / 2, 1 / 2]
    assert scaled["b"]["x"] == 1 / 4
    assert scaled["b"]["y"].tolist() == [1 / 8] * 3
    # a prefix of the tree is enough
    scaled, _ = tx.update(updates, tx.init(updates), staleness={"w": 2, "b": 4})
    assert scaled["b"]["y"].tolist() == [1 / 4] * 3


def test_a_delay_for_each_leaf_reaches_the_law_leaf_by_leaf():
    tx = dj.delayed(dj.scale_by_staleness(dj.modulation.inverse), {"w": 2, "b": 4})
    ones = {"w": jnp.ones(()), "b": jnp.ones(())}
    state = tx.init(ones)
    for _ in range(6):
        updates, state = tx.update(ones, state)
    assert updates == {"w": 1 / 2, "b": 1 / 4}


@pytest.mark.parametrize("bound", [0, 2, 6])
def test_refused_gradients_reach_neither_parameters_nor_momentum(bound):
    steps = 16
    staleness = [min(t, (5 * t * t + t) % 7) for t in range(steps)]
    fresh = np.random.default_rng(1).integers(-9, 10, steps)
    tx = dj.delayed(
        dj.drop_stale(optax.sgd(0.25, momentum=0.5), bound),
        dj.delays.from_trace(staleness),
        max_delay=6,
    )
    state = tx.init(jnp.zeros(()))
    ours = []
    for g in fresh:
        update, state = tx.update(jnp.asarray(g, jnp.float32), state)
        velocity = optax.tree.get(state, "trace")
        ours.append((update, velocity, state.inner_state.dropped))
    stale = [float(fresh[t - tau]) for t, tau in enumerate(staleness)]
    theirs = dropping_momentum(stale, staleness, bound, 0.25, 0.5)
    # small integers and halves: float32 holds every number exactly
    np.testing.assert_array_equal(np.array(ours, np.float64).T, theirs)
    assert theirs[2][-1] == sum(tau > bound for tau in staleness)


def test_a_refused_nan_leaves_every_bit_of_the_inner_state():
    params = {"w": jnp.array([0.3, -1.7]), "b": jnp.ones((), jnp.bfloat16)}
    tx = dj.drop_stale(optax.adam(0.1), 3)
    _, before = tx.update(params, tx.init(params), params, staleness=3)
    nans = jax.tree.map(lambda x: x * jnp.nan, params)
    updates, after = tx.update(nans, before, params, staleness=4)
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, before.inner_state)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    assert (before.dropped, after.dropped) == (0, 1)


def test_a_grid_of_bounds_is_one_program():
    staleness = jnp.array([0, 5, 2, 7, 1, 3])

    def count(bound):
        tx = dj.drop_stale(optax.sgd(0.1), bound)

        def step(state, tau):
            return tx.update(jnp.ones(2), state, staleness=tau)[1], None

        return jax.lax.scan(step, tx.init(jnp.ones(2)), staleness)[0].dropped

    bounds = jnp.array([0, 2, 7])
    np.testing.assert_array_equal(
        jax.vmap(count)(bounds), [sum(staleness > bound) for bound in bounds]
    )


def test_a_staleness_for_each_leaf_cannot_be_refused():
    params = {"w": jnp.ones(2), "b": jnp.ones(())}
    tx = dj.drop_stale(optax.sgd(0.1), 2)
    with pytest.raises(TypeError, match=r"not supported between instances of 'dict'"):
        tx.update(params, tx.init(params), staleness={"w": 1, "b": 5})


CONSUMERS = {
    "scale_by_staleness": dj.scale_by_staleness(dj.modulation.inverse),
    "drop_stale": dj.drop_stale(optax.sgd(0.1), 2),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_history_beside_a_consumer_hands_it_nothing(name):
    tx = optax.chain(dj.delayed(optax.identity(), 1), CONSUMERS[name])
    params = jnp.ones(2)
    match = rf"`{name}`.*`staleness`.*`delayed\(optax.chain\(...\), delay\)`"
    with pytest.raises(TypeError, match=match):
        tx.update(params, tx.init(params), params)


def test_the_mean_staleness_of_several_gradients_need_not_be_whole():
    tx = dj.scale_by_staleness(dj.modulation.inverse)
    updates, _ = tx.update(jnp.ones(2), tx.init(None), staleness=jnp.float32(2.5))
    np.testing.assert_array_equal(updates, np.float32(1 / 2.5))


@pytest.mark.parametrize("name", CONSUMERS)
def test_staleness_that_is_no_number_of_steps_is_refused(name):
    tx = CONSUMERS[name]
    params = jnp.ones(2)
    with pytest.raises(ValueError, match=rf"`staleness` handed to `{name}`.*True"):
        tx.update(params, tx.init(params), staleness=True)
    with pytest.raises(ValueError, match=rf"`staleness` handed to `{name}`.*-1"):
        tx.update(params, tx.init(params), staleness=-1)


def test_a_staleness_of_another_tree_is_refused():
    tx = dj.scale_by_staleness(dj.modulation.inverse)
    params = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="`staleness` must be one value or a prefix"):
        tx.update(params, tx.init(params), staleness={"v": 1})


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("power", lambda bad: dj.modulation.polynomial(bad)),
        ("slope", lambda bad: dj.modulation.hinge(bad, 4)),
        ("knee", lambda bad: dj.modulation.hinge(1.0, bad)),
        ("rate", lambda bad: dj.modulation.exponential(bad)),
        ("workers", lambda bad: dj.modulation.capped(bad)),
        ("learning_rate", lambda bad: dj.modulation.delay_adaptive(bad, 4)),
        ("concurrency", lambda bad: dj.modulation.delay_adaptive(0.1, bad)),
        ("bound", lambda bad: dj.modulation.delay_adaptive(0.1, 4, bound=bad)),
    ],
)
def test_negative_and_non_finite_law_parameters_are_named(name, make, bad):
    with pytest.raises(ValueError, match=rf"`{name}` must be .*, got {bad}"):
        make(bad)


def test_a_cap_of_no_workers_is_named():
    with pytest.raises(ValueError, match=r"`workers` must be .*positive, got 0"):
        dj.modulation.capped(0)


@pytest.mark.parametrize("bad", ["0.5", [0.5], None])
def test_law_parameters_that_are_no_numbers_are_named(bad):
    with pytest.raises(TypeError, match="`power` must be a number"):
        dj.modulation.polynomial(bad)


@pytest.mark.parametrize(("bad", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_bounds_that_are_no_count_of_steps_are_refused(bad, error):
    with pytest.raises(error, match=rf"`bound` must be .*, got {bad}"):
        dj.drop_stale(optax.sgd(0.1), bad)


def test_an_inner_that_is_no_transformation_is_refused():
    with pytest.raises(TypeError, match=r"`inner` must be an Optax transformation"):
        dj.drop_stale(0.1, 2)
