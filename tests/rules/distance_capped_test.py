"""A step size capped by the distance, against a loop in numpy."""

import jax.numpy as jnp
import numpy as np

import delayjax as dj
from tests.rules.drawn import SEEDS, STEPS, moved_rows, updates_of


@SEEDS
def test_distance_capped_is_the_papers_loop(seed):
    grads, staleness, params, stale = moved_rows(seed)
    ours, _ = updates_of(
        dj.step_sizes.distance_capped(0.3, 0.5), grads, staleness, params, stale
    )
    capped, theirs = 0, []
    for g, x, y in zip(grads, params, stale, strict=True):
        distance = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
        theirs.append(-min(0.5 / distance, 0.3) * g)
        capped += 0.5 / distance < 0.3
    assert 10 < capped < STEPS - 10
    # the distance is a difference of float32 numbers near 1, squared
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_parameters_that_did_not_move_take_the_full_step():
    tx, x = dj.step_sizes.distance_capped(0.5, 1e-6), jnp.array([3.0, -1.0])
    update, _ = tx.update(x, tx.init(x), x, stale_params=x)
    np.testing.assert_array_equal(update, -0.5 * x)
