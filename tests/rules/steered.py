"""What tests of tuned momentum share: a noisy bowl, its delays and a float64 run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj

STEPS = 100


def runs_of(seed):
    """Staleness that stays for one to nine steps, then changes."""
    rng = np.random.default_rng(seed)
    drawn = [
        tau for _ in range(40) for tau in [rng.integers(0, 7)] * rng.integers(1, 9)
    ]
    return [min(t, int(tau)) for t, tau in enumerate(drawn[:STEPS])]


def noisy_bowl(seed, size, spikes=()):
    """Gradients at a version, for JAX and for NumPy, and a start."""
    rng = np.random.default_rng(seed)
    noise = 0.3 * rng.normal(size=(STEPS, size))
    noise[list(spikes)] *= 100
    curvature = np.linspace(0.2, 2.0, size)

    def grad(x, version):
        return jnp.asarray(curvature) * x + jnp.asarray(noise)[version]

    def grad_in_numpy(x, version):
        return curvature * x + noise[version]

    return grad, grad_in_numpy, rng.normal(size=size)


def steered(rule, grad, start, delay, max_delay, *, steps, seen):
    """The last state of the rule, and at every step the iterate and `seen(state)`."""
    tx = dj.delayed(rule, delay, max_delay=max_delay, keep_params=True)

    def step(carry, t):
        x, state = carry
        updates, state = tx.update(grad(x, t), state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), (x, *seen(state.inner_state))

    carry = start, tx.init(start)
    (_, state), result = jax.lax.scan(step, carry, jnp.arange(steps))
    return state.inner_state, result


def trained(rule, grad, start, delay, max_delay, *, seen, steps=STEPS):
    """The same in float64, as NumPy's arrays."""
    with jax.enable_x64(True):
        run = jax.jit(
            lambda x: steered(rule, grad, x, delay, max_delay, steps=steps, seen=seen)
        )
        return jax.tree.map(np.asarray, run(jnp.asarray(start)))
