"""Handwritten digits, 8 x 8 pixels: 1,797 examples that come with scikit-learn."""

import flax.linen as nn
import numpy as np
from ml_collections import ConfigDict

from experiments.tasks import batches, classification, models
from experiments.tasks.task import Task, at_least


def make_mlp(config: ConfigDict) -> Task:
    """Digits with `depth` hidden layers of `width` units (0 layers: softmax)."""
    width, depth = at_least(config, "width", 1), at_least(config, "depth", 0)
    return _task(config, models.MLP(width=width, depth=depth, classes=10))


def make_cnn(config: ConfigDict) -> Task:
    """Digits with two convolutions of `width` and 2 `width` channels."""
    return _task(config, models.CNN(width=at_least(config, "width", 1), classes=10))


def _task(config: ConfigDict, model: nn.Module) -> Task:
    from sklearn import datasets  # seconds to import

    digits = datasets.load_digits()
    images = (digits.images[..., None] / 16.0).astype(np.float32)
    examples = {"image": images, "label": digits.target.astype(np.int32)}
    train, test = (
        {name: array[chosen] for name, array in examples.items()}
        for chosen in batches.split(config, len(images))
    )
    return classification.classify(
        model,
        batches.shuffled(train, config.batch_size),
        train,
        test,
        facts={
            "train_examples": len(train["label"]),
            "test_examples": len(test["label"]),
        },
        examples=config.batch_size or len(train["label"]),
    )
