"""The closed loop against a loop in numpy, and against roots of its equation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.support.cases import shortened

STEPS, SIZE = 100, 5


def closed_loop(grad, start, staleness, *, rates, target, gain):
    """Iterates, momenta and estimates: papers, C.13, with three x in a row."""
    xs, seen = [start], []  # seen: staleness, x_{t-tau}, g(x_{t-tau})
    beta, estimate, betas, estimates = 0.0, 0.0, [], []
    velocity = np.zeros_like(start)
    for t, (tau, rate) in enumerate(zip(staleness, rates, strict=True)):
        seen.append((tau, xs[t - tau], grad(xs[t - tau], t - tau)))
        if t >= 2 and seen[-1][0] == seen[-2][0] == seen[-3][0]:
            (_, x0, _), (_, x1, g1), (_, x2, _) = seen[-3:]
            estimate = np.median((x2 - x1 + rate * g1) / (x1 - x0))
            beta = np.clip(beta + gain * (target - estimate), -0.9999, 0.9999)
        velocity = beta * velocity - rate * seen[-1][2]
        xs.append(xs[t] + velocity)
        betas.append(beta)
        estimates.append(estimate)
    return xs[1:], betas, estimates


def runs_of(seed):
    """Staleness that stays for one to nine steps, then changes."""
    rng = np.random.default_rng(seed)
    drawn = [
        tau for _ in range(40) for tau in [rng.integers(0, 7)] * rng.integers(1, 9)
    ]
    return [min(t, int(tau)) for t, tau in enumerate(drawn[:STEPS])]


def trained(rule, grad, start, delay, steps, max_delay, wrap=lambda tx: tx):
    """Every iterate, momentum and estimate of the library, in float64."""
    with jax.enable_x64(True):
        tx = dj.delayed(wrap(rule), delay, max_delay=max_delay, keep_params=True)

        def step(carry, t):
            x, state = carry
            updates, state = tx.update(grad(x, t), state, x)
            x = optax.apply_updates(x, updates)
            own = state.inner_state
            return (x, state), (x, own.momentum, own.loop.estimate)

        x = jnp.asarray(start)
        found = jax.jit(
            lambda x: jax.lax.scan(step, (x, tx.init(x)), jnp.arange(steps))[1]
        )(x)
        return [np.asarray(part) for part in found]


def noisy_bowl(seed):
    rng = np.random.default_rng(seed)
    noise = 0.3 * rng.normal(size=(STEPS, SIZE))
    curvature = np.linspace(0.2, 2.0, SIZE)

    def grad(x, version):
        return jnp.asarray(curvature) * x + jnp.asarray(noise)[version]

    def grad_in_numpy(x, version):
        return curvature * x + noise[version]

    return grad, grad_in_numpy, rng.normal(size=SIZE)


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_it_is_the_papers_loop_where_neighbors_follow(seed, gain):
    grad, in_numpy, start = noisy_bowl(seed)
    staleness = runs_of(seed)
    rule = dj.closed_loop_momentum(0.05, 0.3, gain=gain)
    delay = dj.delays.from_trace(staleness)
    ours = trained(rule, grad, start, delay, STEPS, 7)
    rates = [0.05] * STEPS
    theirs = closed_loop(in_numpy, start, staleness, rates=rates, target=0.3, gain=gain)
    for one, other in zip(ours, theirs, strict=True):
        # float64; a ratio of small differences loses some digits
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def test_a_schedule_is_read_at_each_step():
    grad, in_numpy, start = noisy_bowl(1)
    rates = np.array([0.1 / (1 + t / 20) for t in range(STEPS)])
    rule = dj.closed_loop_momentum(lambda t: jnp.asarray(rates)[t], 0.5, gain=0.05)
    ours = trained(rule, grad, start, 3, STEPS, 3)
    staleness = [min(t, 3) for t in range(STEPS)]
    theirs = closed_loop(in_numpy, start, staleness, rates=rates, target=0.5, gain=0.05)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def bowl(curvature):
    def grad(x, t):
        del t
        return jnp.asarray(curvature) * x

    return grad


def settled(tau, rate, target, gain=0.01, curvature=(1.0, 1.0), steps=1500):
    """The explicit momentum and the estimate at the end, without noise."""
    rule = dj.closed_loop_momentum(rate, target, gain=gain)
    start = np.linspace(1.0, 2.0, len(curvature))
    _, momenta, estimates = trained(rule, bowl(curvature), start, tau, steps, tau)
    return momenta[-1], estimates[-1]


def slowest(*coefficients):
    """The largest root of a polynomial, real in all of these cases."""
    root = max(np.roots(coefficients), key=abs)
    assert abs(root.imag) < 1e-12
    return root.real


@pytest.mark.parametrize("target", [0.3, 0.6])
@pytest.mark.parametrize("tau", [0, 1, 4, 8])
def test_the_estimate_settles_on_the_target(tau, target):
    """No mode oscillates at this step: the ratio of one that does never settles."""
    curvature = (0.4, 0.7, 1.0, 1.3, 1.6)
    _, estimate = settled(tau, 0.01, target, curvature=curvature)
    assert estimate == pytest.approx(target, abs=0.01)


@pytest.mark.parametrize("tau", shortened([0, 1, 4, 8], 4))
def test_with_noise_the_estimates_mean_settles_on_the_target(tau):
    key, size, target, steps = jax.random.key(0), 400, 0.5, 1500

    def grad(x, t):
        noise = jax.random.normal(jax.random.fold_in(key, t), (size,), jnp.float64)
        return x + 0.3 * noise

    rule = dj.closed_loop_momentum(0.02, target)
    start = np.linspace(1.0, 2.0, size)
    _, _, estimates = trained(rule, grad, start, tau, steps, tau)
    assert estimates[-500:].mean() == pytest.approx(target, abs=0.03)


RATES, DELAYS, TARGET = (0.01, 0.02, 0.03), (0, 1, 4, 8), 0.5


def test_the_explicit_momentum_makes_room_for_the_delay():
    """beta = target - a (1 + 1/z + ... + z^{1-tau}), z the root of the target's ball.

    The delayed ball, (z - 1)(z - beta) + a z^{1-tau} = 0, must have the dominant root
    of the ball without delay, (z - 1)(z - target) + a z = 0.
    """
    found = []
    for a in RATES:
        z = slowest(1.0, a - 1 - TARGET, TARGET)
        for tau in DELAYS:
            momentum, _ = settled(tau, a, TARGET)
            theory = TARGET - a * sum(z**-k for k in range(tau))
            assert momentum == pytest.approx(theory, abs=2e-3)
            found.append(momentum)
    table = np.array(found).reshape(len(RATES), len(DELAYS))
    assert (np.diff(table, axis=1) < 0).all()  # falls as the delay grows
    assert (np.diff(table[:, 1:], axis=0) < 0).all()  # and as the step grows


def test_without_feedback_the_estimate_is_the_momentum_of_the_delay():
    """z - z^{tau+1}, z the root of z^{tau+1} - z^tau + a = 0: it rises with both."""
    found = []
    for a in RATES:
        for tau in DELAYS:
            z = slowest(1.0, -1.0, *[0.0] * (tau - 1), a) if tau else 1 - a
            momentum, estimate = settled(tau, a, TARGET, gain=0.0)
            assert momentum == 0.0
            assert estimate == pytest.approx(z - z ** (tau + 1), abs=1e-6)
            found.append(estimate)
    table = np.array(found).reshape(len(RATES), len(DELAYS))
    assert (np.diff(table, axis=1) > 0).all()
    assert (np.diff(table[:, 1:], axis=0) > 0).all()


def test_a_delay_with_more_momentum_than_the_target_makes_it_negative():
    momentum, estimate = settled(8, 0.03, 0.0)
    assert momentum < -0.1
    assert estimate == pytest.approx(0.0, abs=0.01)


def test_the_momentum_stays_in_its_interval():
    grad, _, start = noisy_bowl(1)
    rule = dj.closed_loop_momentum(0.05, 0.3, gain=1e3)
    iterates, momenta, _ = trained(rule, grad, start, 3, STEPS, 3)
    assert np.abs(momenta).max() == pytest.approx(0.9999)
    assert np.isfinite(iterates).all()


def test_random_delays_without_neighbors_leave_the_momentum():
    """Staleness 0, 1, 0, 1: no three versions follow each other."""
    grad, _, start = noisy_bowl(1)
    rule = dj.closed_loop_momentum(0.05, 0.3, gain=0.1)
    delay = dj.delays.from_trace([0, 1])
    _, momenta, estimates = trained(rule, grad, start, delay, STEPS, 1)
    assert not momenta.any()
    assert not estimates.any()


def test_coordinates_that_stand_still_are_left_out():
    momentum, estimate = settled(4, 0.02, TARGET, curvature=(0, 0, 1, 0, 0))
    assert (momentum, estimate) == pytest.approx(settled(4, 0.02, TARGET), abs=1e-9)


def test_of_an_even_number_the_median_is_the_mean_of_the_two_in_the_middle():
    curvature, steps = np.array([0.2, 0.5, 1.0, 2.0]), 20

    def grad(x, t):
        return curvature * x

    start = np.array([1.0, -2.0, 3.0, 4.0])
    rule = dj.closed_loop_momentum(0.05, 0.3, gain=0.05)
    _, _, ours = trained(rule, grad, start, 1, steps, 1)
    staleness, rates = [0] + [1] * (steps - 1), [0.05] * steps
    options = dict(rates=rates, target=0.3, gain=0.05)
    _, _, theirs = closed_loop(grad, start, staleness, **options)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_where_nothing_moves_nothing_is_measured():
    momentum, estimate = settled(1, 0.02, TARGET, curvature=(0, 0), steps=20)
    assert (momentum, estimate) == (0.0, 0.0)


def test_a_sample_of_coordinates_is_the_run_of_these_coordinates():
    grad, _, start = noisy_bowl(1)
    wide = np.array([0, 9, 1, 9, 2, 9, 3, 9, 4])  # every second one, and others

    def of_wide(x, t):
        return grad(x[::2], t)[np.minimum(wide, 4)]

    many = dj.closed_loop_momentum(0.05, 0.3, gain=0.05, coordinates=5)
    one = dj.closed_loop_momentum(0.05, 0.3, gain=0.05, coordinates=SIZE)
    wider = start[np.minimum(wide, 4)]
    ours = trained(many, of_wide, wider, 2, STEPS, 2)
    theirs = trained(one, grad, start, 2, STEPS, 2)
    for name in (1, 2):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)


def test_the_state_does_not_grow_with_the_delay_nor_the_sample_with_the_parameters():
    params = jnp.ones((300, 100))
    state = dj.closed_loop_momentum(0.1, 0.5).init(params)
    assert state.velocity.shape == params.shape
    vectors = [x for x in jax.tree.leaves(state.loop) if x.ndim]
    assert [x.size <= 1024 for x in vectors] == [True] * 3


def test_a_grid_of_targets_is_one_program():
    def last(target):
        rule = dj.closed_loop_momentum(0.02, target, gain=0.05)
        tx = dj.delayed(rule, 2, keep_params=True)

        def step(carry, _):
            x, state = carry
            updates, state = tx.update(x, state, x)
            return (x + updates, state), None

        x = jnp.array([1.0, -2.0])
        (_, state), _ = jax.lax.scan(step, (x, tx.init(x)), length=30)
        return state.inner_state.momentum

    targets = jnp.array([0.1, 0.5])
    together = jax.vmap(last)(targets)
    np.testing.assert_allclose(together, [last(t) for t in targets], rtol=1e-4)
    assert together[0] < together[1]


def test_workers_on_devices_do_what_simulated_workers_do():
    tx = dj.exchange.overlapped_mean(
        dj.closed_loop_momentum(0.1, 0.5, gain=0.1), keep_params=True
    )
    assert_workers_agree(tx)


def assert_workers_agree(tx, workers=4, steps=30):
    """The mean gradient of workers, one step late; and the loop is at work."""
    noise = jax.random.normal(jax.random.key(1), (steps, workers, SIZE))

    def step(state, batch):
        params, opt_state = state
        at = dj.workers.vary(params)
        updates, opt_state = tx.update(at + 0.1 * batch, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    mesh = jax.make_mesh((workers,), ("workers",), axis_types=(AxisType.Auto,))
    ends = []
    for made in (dj.workers.simulate(step, workers), dj.workers.run(step, mesh)):
        params = jnp.linspace(1.0, 2.0, SIZE)
        held = made.init((params, tx.init(params)), noise[0])
        go = jax.jit(made.step)
        for batch in noise:
            held, _ = go(held, batch)
        ends.append(held.one())
    assert abs(optax.tree.get(ends[0][1], "momentum")) > 0.01
    # sums over workers round differently; a ratio of small differences shows it
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *ends
    )


def test_along_a_trace_of_one_version_an_update_it_steers_too():
    cluster = dj.cluster.Cluster(5, dj.cluster.constant(1.0))
    protocol = dj.cluster.protocols.k_async(1)
    trace = dj.cluster.simulate(cluster, protocol, 1500, seed=0)

    def grad_fn(params, batch, key):
        del batch, key
        return {}, params

    with jax.enable_x64(True):
        training = dj.replay(trace, grad_fn, dj.closed_loop_momentum(0.02, 0.5))
        state = training.init(jnp.array([1.0, 2.0]), jax.random.key(0))
        state, _ = training.run(state, jnp.zeros((1500, 1)))
        own = jax.tree.map(np.asarray, state.opt_state)
    momentum, _ = settled(4, 0.02, 0.5)
    assert own.loop.estimate == pytest.approx(0.5, abs=0.01)
    assert own.momentum == pytest.approx(momentum, abs=1e-3)


def test_missing_arguments_name_the_wrapper():
    rule, params = dj.closed_loop_momentum(0.1, 0.5), jnp.ones(2)
    state = rule.init(params)
    match = r"`closed_loop_momentum`.*`{}`.*keep_params=True"
    with pytest.raises(TypeError, match=match.format("staleness")):
        rule.update(params, state, params, stale_params=params)
    with pytest.raises(TypeError, match=match.format("stale_params")):
        rule.update(params, state, params, staleness=1)


def test_another_tree_of_parameters_is_named():
    rule, params = dj.closed_loop_momentum(0.1, 0.5), {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="`stale_params` handed to `closed_loop"):
        other = {"w": jnp.ones(3)}
        rule.update(params, rule.init(params), staleness=1, stale_params=other)


def test_a_tree_of_staleness_says_what_to_write():
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    tx = dj.delayed(
        dj.closed_loop_momentum(0.1, 0.5), {"w": 2, "b": 0}, keep_params=True
    )
    with pytest.raises(TypeError, match=r"one `staleness`.*optax\.partition"):
        tx.update(params, tx.init(params), params)
