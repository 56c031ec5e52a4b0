"""A grid with late gradients equals its cells, trained one by one."""

import itertools

import chex
import jax
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import Experiment, run
from experiments.training.jobs import data_seed
from tests.support.training_runs import CURVATURES, DIGITS, QUIET, Trained

pytestmark = pytest.mark.runs

RATES, DELAYS = (0.01, 0.03), (0, 3)


def late_adam(learning_rate, delay):
    return dj.delayed(optax.adam(learning_rate), delay, max_delay=3)


def late_sgd(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=3)


def grid_of(training, **changes):
    kw = dict(grid={"learning_rate": RATES, "delay": DELAYS}, seeds=(0, 1), updates=20)
    return Trained(training, **kw | changes)


@pytest.fixture(scope="module")
def adam():
    """Digits, trained by Adam with both delays."""
    return grid_of(late_adam, task=DIGITS)


@jax.jit
def step_by_hand(rate, delay, params, state, batch):
    tx = late_adam(rate, delay)
    updates, state = tx.update(jax.grad(DIGITS.loss)(params, batch), state, params)
    return optax.apply_updates(params, updates), state


def by_hand(rate, delay, seed):
    """One cell and one seed, in a Python loop without vmap and scan."""
    params = DIGITS.init(jax.random.fold_in(jax.random.key(0), seed))
    state = late_adam(rate, delay).init(params)
    batches = DIGITS.batches(data_seed(seed), 0, 20)
    for t in range(20):
        batch = jax.tree.map(lambda x, t=t: x[t], batches)
        params, state = step_by_hand(rate, delay, params, state, batch)
    return params


def test_a_grid_is_its_cells_trained_one_by_one(adam):
    cells = [(rate, delay) for rate in RATES for delay in DELAYS]
    for s, (c, cell) in itertools.product((0, 1), enumerate(cells)):
        got = jax.tree.map(lambda x, s=s, c=c: x[s, c], adam.state.model.params)
        # batched and single matrix products add in another order
        chex.assert_trees_all_close(got, by_hand(*cell, s), rtol=1e-3, atol=1e-4)


def test_staleness_is_counted_at_every_update():
    def make(learning_rate, delay, key):
        law = dj.delays.geometric(key, delay)
        return dj.delayed(optax.sgd(learning_rate), law, max_delay=3)

    run = grid_of(make, task=QUIET)
    tau = np.concatenate([chunk.staleness for chunk in run.chunks])
    assert tau.max() == 3
    for s, c in np.ndindex(2, 4):
        counts = run.state.staleness_counts[s, c]
        expected = np.bincount(tau[:, s, c].astype(int), minlength=len(counts))
        np.testing.assert_array_equal(counts, expected)


def test_only_updates_with_arrivals_count_in_the_staleness_of_a_run():
    late = dj.delays.from_trace([3, 0, 1, 0])

    def once(learning_rate):
        return dj.delivered(optax.sgd(learning_rate), late, max_delay=3)

    run = grid_of(once, task=QUIET, grid={"learning_rate": RATES})
    counts = np.asarray(run.state.staleness_counts)
    # updates 1 and 5, 9, ... have one gradient of age 0; 3, 7, ... ages 3, 1, 0, mean
    # 4/3, rounded up; all other updates have none
    assert (counts == [5, 0, 5, 0, 0]).all()


def test_dropped_gradients_are_counted():
    def make(learning_rate, delay):
        inner = dj.drop_stale(optax.sgd(learning_rate), 2)
        return dj.delayed(inner, delay, max_delay=3)

    run = grid_of(make, task=QUIET)
    # in the cells of delay 3, the staleness is 3 from update 3 on
    dropped = run.trainer.counters(run.state).dropped
    assert dropped[0, 1] == 20 - 3 and dropped[0, 0] == 0


def test_batches_do_not_depend_on_where_a_chunk_begins(adam):
    given = adam.trainer.feed.given
    parts = [given(start, start + 10) for start in (0, 10)]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    chex.assert_trees_all_equal(given(0, 20), joined)


def test_a_diverged_cell_keeps_the_model_whose_loss_was_not_finite():
    run = grid_of(
        late_sgd, task=QUIET, grid={"learning_rate": (1e25,), "delay": DELAYS}
    )
    assert (run.state.diverged_step >= 0).all()
    start = np.asarray(run.begun.model.params)
    # after one step of 1e25 the parameters are finite, but the loss, a square, is not
    np.testing.assert_allclose(run.params, start * (1 - 1e25 * CURVATURES), rtol=1e-5)


def test_a_transformation_without_extra_arguments_trains():
    """A pair (init, update) whose update has three arguments, as in Optax."""

    def update(updates, state, params=None):
        return optax.tree.scale(-0.1, updates), state

    plain = optax.GradientTransformation(optax.init_empty_state, update)
    options = dict(question="?", task=DIGITS, updates=4, seeds=1, evaluations=1)
    ends = [
        run(Experiment(training=training, **options)).results["train_loss"].item()
        for training in (plain, optax.sgd(0.1))
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
