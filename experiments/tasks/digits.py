"""Handwritten digits, 8 x 8 pixels: 1,797 examples that come with scikit-learn."""

import dataclasses

import flax.linen as nn
import numpy as np

from experiments.tasks import batches, classification, models, networks
from experiments.tasks.task import Task, at_least


def digits_mlp(
    *,
    batch_size: int = 32,
    width: int = 32,
    depth: int = 1,
    test_fraction: float = 0.25,
    workers: int = 0,
    concentration: float = 1.0,
) -> Task:
    """Classifies digits with `depth` hidden layers of `width` units (0: softmax).

    Args:
        batch_size: examples per update; 0 is the full batch.
        width: the number of units of a hidden layer.
        depth: the number of hidden layers.
        test_fraction: the share of examples to hold out.
        workers: the number of workers among which the training examples are divided;
            with 0 every worker draws from all examples.
        concentration: of the Dirichlet distribution from which the workers' shares of
            each class are drawn; if it is small, a worker has few classes.
    """
    at_least("width", width, 1)
    at_least("depth", depth, 0)
    model = models.MLP(width=width, depth=depth, classes=10)
    return _task(model, batch_size, test_fraction, workers, concentration)


def digits_cnn(*, batch_size: int = 32, width: int = 32) -> Task:
    """Classifies digits with two convolutions of `width` and 2 `width` channels.

    Args:
        batch_size: examples per update; 0 is the full batch.
        width: the number of channels of the first convolution.
    """
    at_least("width", width, 1)
    model = models.CNN(width=width, classes=10)
    return _task(model, batch_size)


def _task(
    model: nn.Module,
    batch_size: int,
    test_fraction: float = 0.25,
    workers: int = 0,
    concentration: float = 1.0,
) -> Task:
    from sklearn import datasets  # seconds to import

    digits = datasets.load_digits()
    images = (digits.images[..., None] / 16.0).astype(np.float32)
    examples = {"image": images, "label": digits.target.astype(np.int32)}
    train, test = (
        {name: array[chosen] for name, array in examples.items()}
        for chosen in batches.split(len(images), test_fraction=test_fraction, seed=0)
    )
    task = classification.classify(
        networks.linen(model),
        batches.shuffled(train, batch_size),
        train,
        test,
        facts={
            "train_examples": len(train["label"]),
            "test_examples": len(test["label"]),
        },
        examples=batch_size or len(train["label"]),
    )
    if not workers:
        return task
    owner = batches.dirichlet(
        train["label"], workers, concentration=concentration, seed=0
    )
    per_worker = batches.of_workers(train, task.examples, owner)
    return dataclasses.replace(task, batches_of=per_worker)
