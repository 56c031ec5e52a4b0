"""YellowFin against a tuner in numpy, term by term from the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from tests.rules.steered import noisy_bowl, runs_of, trained
from tests.support.cases import shortened

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


def yellowfin(
    grad, start, staleness, *, factor=1.0, closed_loop=False, gain=None, **options
):
    """Iterates, momenta and learning rates."""
    xs, seen, tuner, velocity = [start], [], Tuner(**options), np.zeros_like(start)
    momenta, rates, beta = [], [], 0.0
    for t, tau in enumerate(staleness):
        target, eta, g = tuner.tune(grad(xs[t - tau], t - tau))
        eta = factor * eta
        seen.append((tau, xs[t - tau], g))
        if not closed_loop:
            beta = target
        elif t >= 2 and seen[-1][0] == seen[-2][0] == seen[-3][0]:
            (_, x0, _), (_, x1, g1), (_, x2, _) = seen[-3:]
            estimate = np.median((x2 - x1 + eta * g1) / (x1 - x0))
            beta = np.clip(beta + gain * (target - estimate), -0.9999, 0.9999)
        velocity = beta * velocity - eta * g
        xs.append(xs[t] + velocity)
        momenta.append(beta)
        rates.append(eta)
    return xs[1:], momenta, rates


def seen(state):
    return state.momentum, state.learning_rate


VARIANTS = {
    "default": {},
    "factor": {"factor": 0.5},
    "smoothed": {"smoothing": 0.9},
    "clipped": {"clip": True},
    "window of 3": {"window": 3, "decay": 0.9},
    "window of 1": {"window": 1, "decay": 0.99, "factor": 0.1},
    "closed loop": {"closed_loop": True, "gain": 0.05},
}


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_the_papers_tuner(name, seed):
    options, staleness = VARIANTS[name], runs_of(seed)
    spikes = () if name == "closed loop" else (30, 60)
    grad, in_numpy, start = noisy_bowl(seed, 4, spikes)
    delay = dj.delays.from_trace(staleness)
    _, ours = trained(dj.yellowfin(**options), grad, start, delay, 7, seen=seen)
    theirs = yellowfin(in_numpy, start, staleness, **options)
    rtol = 1e-7 if name == "closed loop" else 1e-8
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-9)
    assert np.ptp(ours[1]) > 0.1  # the momentum is felt


def after(tx, gradients):
    """The state after these gradients."""

    def step(state, grads):
        return tx.update(grads, state)[1], None

    gradients = jnp.asarray(gradients)
    return jax.lax.scan(step, tx.init(gradients[0]), gradients)[0]


def test_curvatures_far_apart_bound_the_momentum_from_below():
    """sqrt(beta) = (sqrt(k) - 1) / (sqrt(k) + 1), k = h_max / h_min."""
    state = after(dj.yellowfin(window=4), np.outer((1.0, 1.5) * 9, (0.6, 0.8)))
    k = float(state.largest) / np.exp(float(state.log_least))
    assert k > 2
    bound = ((np.sqrt(k) - 1) / (np.sqrt(k) + 1)) ** 2
    assert float(state.momentum) == pytest.approx(bound, rel=1e-5)


def test_equal_gradients_need_no_momentum():
    """No variance and k = 1: beta = 0 and eta = 1 / |g|^2."""
    state = after(dj.yellowfin(), [(30.0, 40.0)] * 5)
    assert float(state.momentum) == pytest.approx(0.0, abs=1e-3)
    assert float(state.rate) == pytest.approx(1 / 2500, rel=0.02)


def test_float32_is_float64_at_every_size_of_gradients():
    """The cubic by a hyperbolic sine: Vieta's form overflows or cancels."""

    def run(scale):
        turns = jnp.sin(1.0 * jnp.arange(30))[:, None]
        state = after(dj.yellowfin(), scale * (jnp.array([[1.0, -2.0, 3.0]]) + turns))
        return state.momentum, state.learning_rate

    def runs():
        return np.array(jax.jit(jax.vmap(run))(jnp.array([1e-12, 1e-3, 1.0, 1e3, 1e8])))

    single = runs()
    with jax.enable_x64(True):
        double = runs()
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-6)


def test_gradients_of_zero_are_no_curvature():
    tx = dj.yellowfin(window=3)
    state = after(tx, np.outer((0.0, 0.0, 1.0, 1.0), (3.0, 4.0)))
    assert np.isfinite(state.velocity).all()
    late = after(tx, [(3.0, 4.0)] * 2)
    assert float(state.window.max()) == float(late.window.max()) == 25.0


def test_a_spike_is_clipped_to_the_usual_size():
    """Scaled to sqrt(h_max): of |g| = 5 before, not of the spike."""
    gradients = np.outer([1.0] * 30 + [1e3], (3.0, 4.0))
    moved = {}
    for clip in (False, True):
        state = after(dj.yellowfin(clip=clip, decay=0.9, window=2), gradients)
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
    start = np.ones(size)
    state, _ = trained(rule, grad, start, tau, tau, seen=seen, steps=steps)
    assert 0.05 < state.target < 0.99
    assert state.loop.estimate == pytest.approx(state.target, abs=0.2)


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
