"""A grid under late gradients is its cells, trained one by one."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments.training.rules import data_seed
from tests.support.training_runs import CURVATURES, DIGITS, QUIET, Trained

RATES, DELAYS = (0.01, 0.03), (0, 3)


def late_adam(learning_rate, delay):
    return dj.delayed(optax.adam(learning_rate), delay, max_delay=3)


def late_sgd(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=3)


def grid_of(training, **changes):
    own = dict(grid={"learning_rate": RATES, "delay": DELAYS}, seeds=(0, 1), updates=20)
    return Trained(training, **own | changes)


def by_hand(gradient, rate, delay, seed):
    """One cell of a seed, a Python loop: no vmap, no scan."""
    tx = dj.delayed(optax.adam(rate), delay)
    update = jax.jit(tx.update)
    params = DIGITS.init(jax.random.fold_in(jax.random.key(0), seed))
    state = tx.init(params)
    batches = DIGITS.batches(data_seed(seed), 0, 20)
    for t in range(20):
        batch = jax.tree.map(lambda x, t=t: x[t], batches)
        updates, state = update(gradient(params, batch), state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_a_grid_is_its_cells_trained_one_by_one():
    run = grid_of(late_adam, task=DIGITS)
    gradient = jax.jit(jax.grad(DIGITS.loss))
    cells = [(rate, delay) for rate in RATES for delay in DELAYS]
    for c, cell in enumerate(cells):
        for s in (0, 1):
            got = jax.tree.map(lambda x, s=s, c=c: x[s, c], run.state.model.params)
            # batched and single matrix products sum in another order
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
                got,
                by_hand(gradient, *cell, s),
            )


@pytest.mark.parametrize("random", [False, True])
def test_staleness_is_counted_at_every_update(random):
    def make(learning_rate, delay, key):
        law = dj.delays.geometric(key, delay) if random else delay
        return dj.delayed(optax.sgd(learning_rate), law, max_delay=3)

    run = grid_of(make, task=QUIET)
    tau = np.concatenate([chunk.staleness for chunk in run.chunks])
    assert tau.max() == 3
    for s, c in np.ndindex(2, 4):
        counts = run.state.staleness_counts[s, c]
        expected = np.bincount(tau[:, s, c].astype(int), minlength=len(counts))
        np.testing.assert_array_equal(counts, expected)


def test_dropped_gradients_are_counted():
    def make(learning_rate, delay):
        inner = dj.drop_stale(optax.sgd(learning_rate), 2)
        return dj.delayed(inner, delay, max_delay=3)

    run = grid_of(make, task=QUIET)
    # staleness 3 from update 3 on, in the cells of delay 3
    dropped = run.trainer.counters(run.state).dropped
    assert dropped[0, 1] == 20 - 3 and dropped[0, 0] == 0


def test_batches_do_not_depend_on_where_a_chunk_begins():
    given = grid_of(late_sgd, task=DIGITS).trainer.given
    parts = [given(start, start + 10) for start in (0, 10)]
    jax.tree.map(
        lambda a, *b: np.testing.assert_array_equal(a, np.concatenate(b)),
        given(0, 20),
        *parts,
    )


def test_golden_row():
    """One row of metrics of a small grid.

    Update golden/metrics.json only for a change that is meant to change the numbers (a
    new initializer, another order of the data), and say so in the commit.
    """
    run = grid_of(late_adam, task=DIGITS, updates=10, evaluations=1)
    (chunk,) = run.chunks
    path = Path(__file__).parent / "golden" / "metrics.json"
    expected = json.loads(path.read_text())
    counts = np.asarray(run.state.staleness_counts)[..., :4]
    assert counts.tolist() == expected["staleness_counts"]
    # the last digits differ between versions of XLA
    losses = np.asarray(chunk.loss).mean(0)
    np.testing.assert_allclose(losses, expected["loss"], rtol=1e-4)
    assert jnp.isfinite(chunk.loss).all()


def test_only_updates_with_arrivals_count_in_the_staleness_of_a_run():
    late = dj.delays.from_trace([3, 0, 1, 0])

    def once(learning_rate):
        return dj.delivered(optax.sgd(learning_rate), late, max_delay=3)

    run = grid_of(once, task=QUIET, grid={"learning_rate": RATES})
    counts = np.asarray(run.state.staleness_counts)
    # steps 1 and 5, 9, ... have one of age 0; 3, 7, ... of ages 3, 1 and 0, on average
    # 4/3, rounded up; all others have none
    assert (counts == [5, 0, 5, 0, 0]).all()


def test_a_diverged_cell_keeps_the_model_whose_loss_was_not_finite():
    run = grid_of(
        late_sgd, task=QUIET, grid={"learning_rate": (1e25,), "delay": DELAYS}
    )
    assert (run.state.diverged_step >= 0).all()
    start = np.asarray(run.begun.model.params)
    # one step of 1e25 is finite, and its loss, a square, is not
    np.testing.assert_allclose(run.params, start * (1 - 1e25 * CURVATURES), rtol=1e-5)
