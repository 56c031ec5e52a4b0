"""A grid of the numbers of a rule is one program; each cell equals a single run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import modulation, pipelines

START = jnp.array([1.0, -2.0, 0.5])
AGES = jnp.array([1, 1, 1, 1, 5, 7, 0, 3])


def scaled(make):
    """A rule: updates that are scaled by a law with these numbers."""
    return lambda *numbers: dj.scale_by_staleness(make(*numbers))


# name: (a function from the numbers to the rule, the values of each number)
GRIDS = {
    "closed_loop_momentum": (
        lambda target: dj.closed_loop_momentum(0.02, target, gain=0.05),
        [[0.1, 0.5]],
    ),
    "yellowfin": (
        lambda decay, factor, smoothing: dj.yellowfin(
            decay=decay, factor=factor, smoothing=smoothing
        ),
        [[0.9, 0.5], [1.0, 0.1], [0.0, 0.9]],
    ),
    "dana": (lambda decay: dj.dana(decay, workers=3), [[0.0, 0.5, 0.9]]),
    "compensate_delay": (dj.compensate_delay, [[0.0, 0.5, 3.0]]),
    "drop_stale": (lambda bound: dj.drop_stale(optax.sgd(0.1), bound), [[0, 2, 7]]),
    "attack": (
        lambda attackers: dj.attack(optax.scale(-1.0), attackers=attackers),
        [[[0, 1], [1, 2], [2, 2]]],
    ),
    "guided": (
        lambda period: dj.guided(lambda x: jnp.sum(x**2), period=period),
        [[2, 3, 5]],
    ),
    "reschedule_by_delay": (
        lambda delay, steps, size: pipelines.reschedule_by_delay(
            delay, annealing_steps=steps, microbatches=size
        ),
        [[7.0, 7.0, 3.0], [20, 5, 20], [1, 1, 2]],
    ),
    "polynomial": (scaled(modulation.polynomial), [[0.0, 0.5, 2.0]]),
    "hinge": (scaled(modulation.hinge), [[0.5, 10.0, 1.0], [0, 4, 20]]),
    "exponential": (scaled(modulation.exponential), [[0.0, 0.2, 1.0]]),
    "capped": (scaled(modulation.capped), [[1, 4, 20]]),
    "delay_adaptive": (
        scaled(modulation.delay_adaptive),
        [[0.5, 2.0, 0.5], [0, 0, 4]],
    ),
}


def run_of(make):
    """A function from numbers to all updates of the rule, with ages of gradients."""

    def run(*numbers):
        tx = make(*numbers)

        def step(state, row):
            t, age = row
            # the model grows: gradients at an earlier model are smaller
            x = (1 + t) * START
            extra_args = {"staleness": age, "stale_params": x - age * START / 8}
            extra_args = extra_args | {"worker": t % 3, "value": 1e3}
            updates, state = tx.update((1 + t % 4) * START, state, x, **extra_args)
            return state, updates

        rows = jnp.arange(len(AGES)), AGES
        return jax.lax.scan(step, tx.init(START), rows)[1]

    return run


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_one_program(name):
    make, values = GRIDS[name]
    run = run_of(make)
    cells = jax.jit(jax.vmap(run))(*map(jnp.asarray, values))
    expected = [run(*numbers) for numbers in zip(*values, strict=True)]
    np.testing.assert_allclose(cells, expected, rtol=1e-5, atol=1e-7)
    # the numbers have an effect
    assert not any(np.allclose(cells[0], other) for other in cells[1:])
