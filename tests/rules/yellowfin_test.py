"""YellowFin against a tuner in numpy, term by term from the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.support.cases import shortened

STEPS, SIZE = 100, 4
DECAY, WINDOW = 0.999, 20


def single_step(variance, distance, least, largest):
    """The paper's cubic by Vieta: (1 - z)^3 = z p, z = sqrt(beta)."""
    p = distance**2 * least**2 / (2 * variance)
    w3 = (-np.sqrt(p**2 + 4 * p**3 / 27) - p) / 2
    w = np.cbrt(w3)
    z = w - p / (3 * w) + 1
    k = largest / least
    beta = max(z**2, ((np.sqrt(k) - 1) / (np.sqrt(k) + 1)) ** 2)
    return beta, (1 - np.sqrt(beta)) ** 2 / least


class Mean:
    """A moving mean without the bias of its start at 0."""

    def __init__(self, decay):
        self.decay, self.total, self.t = decay, 0.0, 0

    def add(self, value):
        self.total = self.decay * self.total + (1 - self.decay) * value
        self.t += 1
        return self.total / (1 - self.decay**self.t)


class Tuner:
    def __init__(self, decay=DECAY, window=WINDOW, smoothing=0.0, clip=False):
        self.window, self.width, self.clip = [], window, clip
        names = ["log_least", "largest", "norm", "square", "gradient", "distance"]
        self.mean = {name: Mean(decay) for name in names}
        self.smooth = Mean(smoothing), Mean(smoothing)
        self.largest, self.t = np.inf, 0

    def tune(self, g):
        """beta, eta, and the gradient to use."""
        h = g @ g
        if self.clip:
            h = min(h, 100 * self.largest)
            g = g * min(1.0, np.sqrt(self.largest / (g @ g)))
        self.window = [*self.window, h][-self.width :]
        least = np.exp(self.mean["log_least"].add(np.log(min(self.window))))
        self.largest = self.mean["largest"].add(max(self.window))
        norm = self.mean["norm"].add(np.sqrt(g @ g))
        square = self.mean["square"].add(g @ g)
        mean_gradient = self.mean["gradient"].add(g)
        variance = max(square - mean_gradient @ mean_gradient, 1e-6)
        distance = self.mean["distance"].add(norm / square)
        tuned = single_step(variance, distance, least, self.largest)
        beta, eta = (m.add(x) for m, x in zip(self.smooth, tuned, strict=True))
        self.t += 1
        return beta, min(eta, eta * self.t / (10 * self.width)), g


def yellowfin(grad, start, staleness, *, factor=1.0, loop=None, **options):
    """Iterates, momenta and learning rates; closed loop with `loop`, its gain."""
    xs, seen, tuner, velocity = [start], [], Tuner(**options), np.zeros_like(start)
    momenta, rates, beta = [], [], 0.0
    for t, tau in enumerate(staleness):
        target, eta, g = tuner.tune(grad(xs[t - tau], t - tau))
        eta = factor * eta
        seen.append((tau, xs[t - tau], g))
        if loop is None:
            beta = target
        elif t >= 2 and seen[-1][0] == seen[-2][0] == seen[-3][0]:
            (_, x0, _), (_, x1, g1), (_, x2, _) = seen[-3:]
            estimate = np.median((x2 - x1 + eta * g1) / (x1 - x0))
            beta = np.clip(beta + loop * (target - estimate), -0.9999, 0.9999)
        velocity = beta * velocity - eta * g
        xs.append(xs[t] + velocity)
        momenta.append(beta)
        rates.append(eta)
    return xs[1:], momenta, rates


def runs_of(seed):
    """Staleness that stays for one to nine steps, then changes."""
    rng = np.random.default_rng(seed)
    drawn = [
        tau for _ in range(40) for tau in [rng.integers(0, 7)] * rng.integers(1, 9)
    ]
    return [min(t, int(tau)) for t, tau in enumerate(drawn[:STEPS])]


def trained(rule, grad, start, delay, max_delay, steps=STEPS):
    """Every iterate, momentum and learning rate of the library, in float64."""
    with jax.enable_x64(True):
        tx = dj.delayed(rule, delay, max_delay=max_delay, keep_params=True)

        def step(carry, t):
            x, state = carry
            updates, state = tx.update(grad(x, t), state, x)
            x = optax.apply_updates(x, updates)
            own = state.inner_state
            return (x, state), (x, own.momentum, own.learning_rate)

        x = jnp.asarray(start)
        scan = jax.jit(lambda x: jax.lax.scan(step, (x, tx.init(x)), jnp.arange(steps)))
        (_, state), found = scan(x)
        return [np.asarray(part) for part in found], jax.tree.map(
            np.asarray, state.inner_state
        )


def noisy_bowl(seed, noise=0.3, steps=STEPS, spikes=()):
    rng = np.random.default_rng(seed)
    noise = noise * rng.normal(size=(steps, SIZE))
    noise[list(spikes)] *= 100
    curvature = np.linspace(0.2, 2.0, SIZE)

    def grad(x, version):
        return jnp.asarray(curvature) * x + jnp.asarray(noise)[version]

    def grad_in_numpy(x, version):
        return curvature * x + noise[version]

    return grad, grad_in_numpy, rng.normal(size=SIZE)


VARIANTS = {
    "default": {},
    "factor": {"factor": 0.5},
    "smoothed": {"smoothing": 0.9},
    "clipped": {"clip": True},
    "window of 3": {"window": 3, "decay": 0.9},
    "window of 1": {"window": 1, "decay": 0.99, "factor": 0.1},
}


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_the_papers_tuner(name, seed):
    grad, in_numpy, start = noisy_bowl(seed, spikes=(30, 60))
    staleness, options = runs_of(seed), VARIANTS[name]
    delay = dj.delays.from_trace(staleness)
    ours, _ = trained(dj.yellowfin(**options), grad, start, delay, 7)
    theirs = yellowfin(in_numpy, start, staleness, **options)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_the_closed_loop_is_the_papers(seed):
    grad, in_numpy, start = noisy_bowl(seed)
    staleness = runs_of(seed)
    delay = dj.delays.from_trace(staleness)
    rule = dj.yellowfin(closed_loop=True, gain=0.05)
    ours, _ = trained(rule, grad, start, delay, 7)
    theirs = yellowfin(in_numpy, start, staleness, loop=0.05)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("closed_loop", [False, True])
def test_the_rule_is_felt(closed_loop):
    grad, _, start = noisy_bowl(1)
    (iterates, momenta, rates), _ = trained(
        dj.yellowfin(closed_loop=closed_loop, gain=0.05), grad, start, 2, 2
    )
    assert rates[0] < rates[10] < rates[50]  # the slow start
    assert np.ptp(momenta) > 0.1
    assert np.abs(iterates[-1]).max() < 0.5 * np.abs(start).max()


def test_curvatures_far_apart_bound_the_momentum_from_below():
    """sqrt(beta) = (sqrt(k) - 1) / (sqrt(k) + 1), k = h_max / h_min."""
    tx, direction = dj.yellowfin(window=4), jnp.array([0.6, 0.8])
    state = tx.init(direction)
    for size in (1.0, 1.5) * 9:
        _, state = tx.update(size * direction, state)
    k = float(state.largest) / np.exp(float(state.log_least))
    assert k > 2
    bound = ((np.sqrt(k) - 1) / (np.sqrt(k) + 1)) ** 2
    assert float(state.momentum) == pytest.approx(bound, rel=1e-5)


def test_equal_gradients_need_no_momentum():
    """No variance and k = 1: beta = 0 and eta = 1 / |g|^2."""
    tx, grads = dj.yellowfin(), jnp.array([30.0, 40.0])
    state = tx.init(grads)
    for _ in range(5):
        _, state = tx.update(grads, state)
    assert float(state.momentum) == pytest.approx(0.0, abs=1e-3)
    assert float(state.rate) == pytest.approx(1 / 2500, rel=0.02)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e3, 1e8])
def test_float32_is_float64_at_every_size_of_gradients(scale):
    """The cubic by a hyperbolic sine: Vieta's form overflows or cancels."""

    def run():
        tx = dj.yellowfin()
        state = tx.init(jnp.zeros(3))
        for t in range(30):
            grads = scale * (jnp.array([1.0, -2.0, 3.0]) + jnp.sin(1.0 * t))
            _, state = tx.update(grads, state)
        return float(state.momentum), float(state.learning_rate)

    single = run()
    with jax.enable_x64(True):
        double = run()
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-6)


def test_gradients_of_zero_are_no_curvature():
    tx, grads = dj.yellowfin(window=3), jnp.array([3.0, 4.0])
    state, late = tx.init(grads), tx.init(grads)
    for given in (0.0, 0.0, 1.0, 1.0):
        updates, state = tx.update(given * grads, state)
        assert np.isfinite(updates).all()
    for _ in range(2):
        _, late = tx.update(grads, late)
    assert float(state.window.max()) == float(late.window.max()) == 25.0


def test_a_spike_is_clipped_to_the_usual_size():
    """Scaled to sqrt(h_max): of |g| = 5 before, not of the spike."""
    grads = jnp.array([3.0, 4.0])
    moved = {}
    for clip in (False, True):
        tx = dj.yellowfin(clip=clip, decay=0.9, window=2)
        state = tx.init(grads)
        for _ in range(30):
            _, state = tx.update(grads, state)
        _, state = tx.update(1e3 * grads, state)
        moved[clip] = float(jnp.linalg.norm(state.gradient))
    assert moved[True] == pytest.approx(5, rel=1e-4)  # as if there were no spike
    assert moved[False] > 500


@pytest.mark.parametrize("tau", shortened([0, 1, 4], 4))
def test_the_closed_loop_brings_total_momentum_to_the_tuned_one(tau):
    """Under noise, whose size keeps the target fixed; open, the delay adds its own."""
    key, size, steps = jax.random.key(0), 400, 4000

    def grad(x, t):
        noise = jax.random.normal(jax.random.fold_in(key, t), (size,), jnp.float64)
        return x + 3.0 * noise

    rule = dj.yellowfin(closed_loop=True, factor=0.5)
    _, state = trained(rule, grad, np.ones(size), tau, tau, steps)
    assert 0.05 < state.target < 0.99
    assert state.loop.estimate == pytest.approx(state.target, abs=0.2)


def test_workers_on_devices_do_what_simulated_workers_do():
    """The mean gradient of workers, one step late, closed loop."""
    tx = dj.exchange.overlapped_mean(
        dj.yellowfin(closed_loop=True, gain=0.05), keep_params=True
    )
    workers, steps = 4, 30
    noise = jax.random.normal(jax.random.key(1), (steps, workers, SIZE))

    def step(state, batch):
        params, opt_state = state
        at = dj.workers.vary(params)
        updates, opt_state = tx.update(at + 0.5 * batch, opt_state, params)
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
    # sums over workers round differently; a ratio of small differences shows it
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), *ends
    )


def test_the_state_holds_two_trees():
    params = jnp.ones((300, 100))
    state = dj.yellowfin(closed_loop=True).init(params)
    whole = [x for x in jax.tree.leaves(state) if x.size >= params.size]
    assert len(whole) == 2


def test_bfloat16_keeps_its_type_and_its_means_are_wider():
    params = jnp.ones(3, jnp.bfloat16)
    tx = dj.yellowfin()
    updates, state = tx.update(params, tx.init(params))
    assert updates.dtype == jnp.bfloat16
    assert state.gradient.dtype == state.square.dtype == jnp.float32


def test_a_grid_of_hyper_parameters_is_one_program():
    grads = jnp.array([1.0, -2.0])

    def last(decay, factor, smoothing):
        tx = dj.yellowfin(decay=decay, factor=factor, smoothing=smoothing)
        state = tx.init(grads)
        for size in (1.0, 3.0, 2.0):
            updates, state = tx.update(size * grads, state)
        return updates

    grid = jnp.array([[0.9, 1.0, 0.0], [0.5, 0.1, 0.9]])
    np.testing.assert_allclose(
        jax.vmap(last)(*grid.T), [last(*map(float, row)) for row in grid], rtol=1e-5
    )


def test_the_open_loop_needs_no_extra_arguments_and_the_closed_one_names_them():
    params = jnp.ones(2)
    open_loop, closed = dj.yellowfin(), dj.yellowfin(closed_loop=True)
    open_loop.update(params, open_loop.init(params))
    state = closed.init(params)
    for missing in ("staleness", "stale_params"):
        given = {"staleness": 1, "stale_params": params}
        del given[missing]
        match = rf"`yellowfin`.*`{missing}`.*keep_params=True"
        with pytest.raises(TypeError, match=match):
            closed.update(params, state, params, **given)
