"""Every example is seen once an epoch, held out, or somebody's own."""

import itertools
import math

import numpy as np
import pytest

from experiments.tasks import batches


@pytest.mark.parametrize("batch_size", [1, 4, 7, 10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_example_is_seen_whole_and_once_an_epoch(seed, batch_size):
    x = np.arange(10)
    draw = batches.shuffled({"x": x, "square": x**2}, batch_size)
    seen = draw(seed, 0, 10)  # ten batches are `batch_size` epochs
    assert seen["x"].shape == (10, batch_size)
    np.testing.assert_array_equal(seen["square"], seen["x"] ** 2)
    epochs = seen["x"].reshape(batch_size, 10)
    np.testing.assert_array_equal(np.sort(epochs), [range(10)] * batch_size)
    for one, other in itertools.combinations(epochs, 2):
        assert not np.array_equal(one, other)


def test_the_full_batch_is_all_examples_in_place_at_every_step():
    x, part = np.arange(6.0), np.array([5, 0])
    draw = batches.shuffled({"x": x}, 0)
    seen = draw(0, 3, 7)["x"]
    np.testing.assert_array_equal(seen, np.tile(x, (4, 1)))
    assert np.shares_memory(seen, x)
    np.testing.assert_array_equal(draw(0, 3, 7, part)["x"], seen[:, part])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_split_puts_every_example_on_one_side(seed, fraction):
    train, test = batches.split(200, test_fraction=fraction, seed=seed)
    assert len(test) == fraction * 200
    assert sorted([*train, *test]) == list(range(200))
    other = batches.split(200, test_fraction=fraction, seed=seed + 1)
    assert set(test) != set(other[1])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("concentration", [0.01, 1.0, 100.0])
def test_a_dirichlet_split_gives_every_worker_something(seed, concentration):
    labels = np.arange(600) % 5
    owner = batches.dirichlet(labels, 6, concentration=concentration, seed=seed)
    assert owner.shape == (600,)
    assert set(owner) == set(range(6))


def test_the_smaller_the_concentration_the_fewer_classes_a_worker_has():
    labels = np.arange(6000) % 10

    def entropy(concentration):
        owner = batches.dirichlet(labels, 8, concentration=concentration, seed=0)
        shares = np.histogram2d(owner, labels, bins=(8, 10))[0]
        shares /= shares.sum(axis=1, keepdims=True)
        return -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1).mean()

    assert entropy(0.1) < entropy(1.0) < entropy(100.0)
    assert entropy(1e4) == pytest.approx(math.log(10), rel=1e-2)


def test_a_worker_draws_its_own_examples_whoever_came_before():
    owner = np.arange(30) % 3
    draw = batches.of_workers({"x": np.arange(30)}, 4, owner)
    workers = np.array([2, 0, 0, 1, 2])
    seen = draw(7, 100, workers)["x"]
    np.testing.assert_array_equal(seen % 3, np.repeat(workers[:, None], 4, axis=1))
    np.testing.assert_array_equal(seen[3:], draw(7, 103, workers[3:])["x"])
    assert not np.array_equal(seen[1], seen[2])
