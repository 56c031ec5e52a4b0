"""Classes that are mixtures of Gaussians around random points."""

import numpy as np

from experiments.tasks import batches, models
from experiments.tasks.classification import classify
from experiments.tasks.networks import linen
from experiments.tasks.task import Task, at_least


def gaussian_mixtures(
    *,
    batch_size: int = 32,
    dimension: int = 64,
    classes: int = 4,
    centers: int = 8,
    spread: float = 0.25,
    width: int = 32,
) -> Task:
    """The task of telling mixtures of Gaussians apart, by a perceptron.

        x = c_{y,j} + spread z,    z ~ N(0, I)

    The label y and the center j are uniform; the centers c_{y,j} are random points at
    distance 1 from the origin. The training set has 4096 points, the held-out set 1024.
    Liu et al. (arXiv:2401.09135) released such a toy with more dimensions and twice the
    spread.

    Args:
        batch_size: points per update; 0 is the full batch.
        dimension: the length of x.
        classes: the number of mixtures.
        centers: the number of Gaussians in each mixture.
        spread: the standard deviation of each Gaussian, in each direction.
        width: the number of hidden units, in one layer.

    Returns:
        The task; a batch is {"image": float32 [batch, dimension], "label": int32
        [batch]}, and its parameters are the network's.
    """
    for name, value in dict(dimension=dimension, classes=classes, width=width).items():
        at_least(name, value, 1)
    at_least("centers", centers, 1)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(classes, centers, dimension))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)

    def draw(size):
        label = rng.integers(classes, size=size)
        means = points[label, rng.integers(centers, size=size)]
        images = means + spread * rng.normal(size=(size, dimension))
        return {"image": np.float32(images), "label": np.int32(label)}

    train, test = draw(4096), draw(1024)
    network = linen(models.MLP(width=width, depth=1, classes=classes))
    shuffled = batches.shuffled(train, batch_size)
    return classify(network, shuffled, train, test, examples=batch_size or 4096)
