"""Tasks of a small size, by name."""

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

from experiments import tasks
from experiments.tasks import batches

TEXT = dict(batch_size=8, width=16, heads=2, context=16)
STATEFUL = ("linen", "nnx")
TASKS = [
    "digits_mlp",
    "digits_cnn",
    "breast_cancer",
    "quadratic",
    "char_lm",
    "tokens",
    "tfds",
    "gaussian_mixtures",
    *STATEFUL,
]


class Normed(nn.Module):
    """A Linen model with BatchNorm, whose statistics are state, and dropout."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(16)(x.reshape(x.shape[0], -1))
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(10)(x)


class NormedNNX(nnx.Module):
    """The same as an nnx module."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.hidden(x.reshape(x.shape[0], -1))))
        return self.out(self.dropout(x))


def own_digits(network, batch_size=8):
    """Digits with a network, and a metric, of one's own."""
    from sklearn import datasets

    data = datasets.load_digits()
    images = (data.images[..., None] / 16).astype(np.float32)
    examples = {"image": images, "label": data.target.astype(np.int32)}
    train = {name: array[:1400] for name, array in examples.items()}
    test = {name: array[1400:] for name, array in examples.items()}
    return tasks.classify(
        network,
        batches.shuffled(train, batch_size),
        train,
        test,
        examples=batch_size,
        metrics={"confidence": lambda logits, label: jax.nn.softmax(logits).max()},
    )


def plain(name, shards, images, options):
    """A task, small but for the options."""
    match name:
        case "digits_mlp":
            return tasks.digits_mlp(**dict(batch_size=8, width=16) | options)
        case "digits_cnn":
            return tasks.digits_cnn(**dict(batch_size=8, width=8) | options)
        case "breast_cancer":
            return tasks.breast_cancer(**dict(batch_size=8) | options)
        case "quadratic":
            return tasks.quadratic(**dict(noise=0.1) | options)
        case "char_lm":
            return tasks.char_lm(**TEXT | options)
        case "tokens":
            return tasks.tokens(shards, vocab=16, **TEXT | options)
        case "gaussian_mixtures":
            return tasks.gaussian_mixtures(**dict(batch_size=8, width=8) | options)
        case "tfds":
            options = dict(batch_size=8, data_dir=images) | options
            return tasks.images("tiny_images", **options)
        case "linen":
            return own_digits(tasks.linen(Normed()), **options)
        case "nnx":
            return own_digits(tasks.nnx(NormedNNX), **options)
