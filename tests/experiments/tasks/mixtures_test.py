"""The mixtures have the centers, the labels and the spread of their definition."""

import numpy as np

from experiments import tasks


def examples(**options):
    """All training points, and their labels."""
    task = tasks.gaussian_mixtures(batch_size=0, **options)
    batch = task.batches(0, 0, 1)
    return batch["image"][0], batch["label"][0]


def test_without_spread_the_points_are_the_centers_of_their_class():
    points, label = examples(dimension=6, classes=3, centers=5, spread=0.0)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, rtol=1e-5)
    centers = [np.unique(points[label == y], axis=0) for y in range(3)]
    assert [len(c) for c in centers] == [5, 5, 5]
    assert len(np.unique(np.concatenate(centers), axis=0)) == 15
    # uniform: 4096 / 3 examples a class, to five standard deviations
    assert np.abs(np.bincount(label) - 4096 / 3).max() < 5 * np.sqrt(4096 * 2 / 9)


def test_the_spread_is_the_deviation_of_a_point_from_its_center():
    points, label = examples(spread=0.25)
    centers, same = examples(spread=0.0)
    np.testing.assert_array_equal(label, same)
    offsets = points - centers
    np.testing.assert_allclose(offsets.std(), 0.25, rtol=0.01)
    np.testing.assert_allclose(offsets.mean(axis=0), 0.0, atol=5 * 0.25 / 64)
